"""Small protein files, and what a task stores of them."""

import random

import numpy as np

from lra.tasks.proteins.alphabet import MASK, to_text
from lra.tasks.proteins.task import Objective, ProteinForm, Proteins
from lra.tasks.task import SPLITS

MASKED = {"objective": Objective.masked}
STREAM = {"form": ProteinForm.concatenated, "max_length": 50}


def sequences(number, seed=0):
    drawn = random.Random(seed)
    return [
        "".join(drawn.choices("ACDEFGHIKLMNPQRSTVWYUX", k=drawn.randint(5, 40)))
        for _ in range(number)
    ]


def every(task):
    return sorted(text for split in SPLITS for text in stored(task, split))


def fasta(path, texts, prefix="P"):
    lines = [f">sp|{prefix}{i}|N_O\n{text}\n" for i, text in enumerate(texts)]
    path.write_text("".join(lines))
    return str(path)


def prepared(**options):
    task = Proteins(partial=True, **options)
    task.prepare()
    return task


def stored(task, split):
    data = task.split(split)
    return [to_text(np.array(row[1:])) for row in data.rows(np.arange(len(data.targets)))]


def masks(task, split, seed=3, **options):
    """By example: which places are masked."""
    found = {}
    for batch in task.batches(split, seed=seed, **options):
        for index, row in zip(batch.index.tolist(), batch.tokens[:, 0] == MASK, strict=True):
            found[index] = row.nonzero().flatten().tolist()
    return found
