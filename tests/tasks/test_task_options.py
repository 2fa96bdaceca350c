"""Options of tasks that make no sense: refused by name, value and what is wanted."""

from typing import Any

import pytest

from lra.tasks.classification.gray import Encoding
from lra.tasks.classification.listops.task import ListOps, ListOpsSource
from lra.tasks.classification.pathfinder.task import Pathfinder, PathfinderSource
from lra.tasks.classification.pixels import Dataset, Pixels, PixelSource
from lra.tasks.classification.text import Text, TextSource
from lra.tasks.language.base import Regime
from lra.tasks.language.characters import Characters, CharacterSource
from lra.tasks.language.corpus import Corpus, CorpusUnits
from lra.tasks.language.wikitext import Units, WikiText, WikiTextSource
from lra.tasks.language.wikitext_files import WikiTextForm
from lra.tasks.language.words import Unknown
from lra.tasks.proteins.data import ProteinSource
from lra.tasks.proteins.task import JudgedSplit, ProteinForm, Proteins
from tests.tasks.proteins.written_proteins import MASKED, STREAM

REFUSED: dict[type, list[tuple[dict[str, Any], str]]] = {
    ListOps: [
        ({"source": ListOpsSource.tsv}, "path=None; set both or neither"),
        ({"path": "/nowhere"}, "path='/nowhere'; set both or neither"),
        ({"train_examples": 0}, r"train_examples must be at least 1: got 0"),
        ({"data_seed": -1, "processes": -2}, "data_seed .* got -1; processes .* got -2"),
        ({"bucket_batches": 0}, "bucket_batches=0"),
        ({"max_depth": 2}, "longest tree with max_depth=2"),
    ],
    Pathfinder: [
        ({"side": 48}, "wanted one of 32, 64, 128, 256"),
        ({"canvas": 16}, "canvas must be at least 32"),
        ({"contour": 1}, "contour must be at least 2"),
        ({"source": PathfinderSource.files}, "task.path, a set of pictures"),
        ({"path": "x"}, "task.path, a set of pictures"),
        ({"test_examples": 0}, "test_examples must be at least 1"),
    ],
    Pixels: [
        ({"max_length": 1025}, "wanted 1 to 1024"),
        ({"dataset": Dataset.mnist, "max_length": 0}, "wanted 1 to 784"),
        ({"validation_fraction": 1.0}, r"must lie in \(0, 1\)"),
        ({"encoding": Encoding.scalars, "black_is_padding": True}, "needs task.encoding=symbols"),
        ({"deviation": 0.0}, "above 0"),
        ({"permutation_seed": -1}, "must be at least 0"),
        ({"source": PixelSource.sample, "path": "x"}, "reads no files"),
    ],
    Text: [
        ({"max_length": 0}, "max_length=0"),
        ({"bucket_batches": 0}, "bucket_batches=0"),
        ({"validation_fraction": 1.0}, "got 1.0; to validate on the test split, set"),
        (
            {"source": TextSource.sample, "path": "x"},
            "got task.path='x'; set task.source=files or task",
        ),
    ],
    Characters: [
        ({"length": 0}, "length must be at least 1"),
        ({"regime": Regime.sliding}, "needs a task.stride from 1 to 511"),
        ({"regime": Regime.sliding, "stride": 512}, "needs a task.stride"),
        ({"stride": 5}, "needs task.regime=sliding"),
        ({"regime": Regime.memory}, "memory=0"),
        ({"memory": 5}, "regime=non_overlapping, memory=5"),
        ({"source": CharacterSource.sample, "path": "x"}, "reads no files"),
    ],
    WikiText: [
        ({"source": WikiTextSource.sample, "path": "x"}, "reads no files"),
        ({"subword_vocabulary": 300}, "needs task.units=subwords"),
        ({"tokenizer": "x.json"}, "needs task.units=subwords"),
        ({"form": WikiTextForm.raw}, "needs task.form=tokens"),
        ({"units": Units.subwords, "vocabulary_size": 9}, "need task.units=words"),
        ({"units": Units.subwords, "unknown": Unknown.unk}, "need task.units=words"),
    ],
    Corpus: [
        ({}, r"got null; set this option to a text file, a folder"),
        ({"train": " "}, "wanted a file or a folder"),
        ({"train": "x", "validation_fraction": 0.0}, "validation_fraction must lie in .* got 0.0"),
        ({"train": "x", "test_fraction": 0.5}, r"must lie in \(0, 0.5\): got 0.5"),
        ({"train": "x", "least_count": 3}, "needs task.units=characters or words: got units=byte"),
        ({"train": "x", "units": CorpusUnits.words, "least_count": 0}, "at least 1: got 0"),
        ({"train": "x", "subword_vocabulary": 300}, "needs task.units=subwords: got units=bytes"),
        ({"train": "x", "tokenizer": "t.json"}, "tokenizer='t.json' needs task.units=subwords"),
        ({"train": "x", "stride": 5}, "needs task.regime=sliding"),
    ],
    Proteins: [
        ({"source": ProteinSource.sample, "path": "x"}, "reads no files"),
        ({"source": ProteinSource.datasets}, r"revision must be .*40 hexadecimal.*got None"),
        ({"source": ProteinSource.datasets, "revision": "main"}, "got main"),
        ({"revision": "a" * 40}, "needs task.source=datasets"),
        ({"source": ProteinSource.datasets, "path": "x", "families": "y"}, "needs FASTA files"),
        ({"held_out_families": ["PF00001"]}, "needs task.families, a table"),
        ({"test": JudgedSplit.families}, r"needs task\.families"),
        ({"families": "x", "held_out_families": ["zinc"]}, "for example PF18369: got 'zinc'"),
        ({"validation_fraction": 0.5}, r"must lie in \(0, 0.5\): got 0.5"),
        ({"max_length": 0}, "max_length=0"),
        (
            {"form": ProteinForm.concatenated, **MASKED},
            "needs task.objective=causal: got objective=masked",
        ),
        ({"memory": 5}, "need task.form=concatenated"),
        ({"contiguous": True}, "need task.form=concatenated"),
        ({**STREAM, "stride": 5}, "needs task.regime=sliding"),
    ],
}
"""Each with a pattern of its message."""
CASES = [(kind, *case) for kind, cases in REFUSED.items() for case in cases]


@pytest.mark.parametrize(("kind", "options", "message"), CASES)
def test_options_that_make_no_sense_are_refused(
    kind: type, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        kind(**options)
