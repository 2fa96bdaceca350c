"""ListOps: evaluate a nested list of operations (arXiv:1804.06028; as in arXiv:2011.04006).

    tokens   [MAX  2   9   [MIN  4   7   ]   0   ]
    id        12   3  10    11   5   8  15   1  15
    target    9

Operators are MIN, MAX, MED (for an even count, the mean of the middle two, truncated) and SM (sum
modulo 10); the answer is a digit 0-9. Tokens are operators, digits and closing brackets; id 0 pads.

`source=generated` generates trees with the official distribution. The data depend on the options
alone, whereas the official generator sets no seed. `source=tsv` reads the official files
`basic_{train,val,test}.tsv` in the folder `path`; another number of trees than 96,000 / 2,000 /
2,000 needs `partial`. `source=sample` is a small generated set for trials; options can make it
smaller, and its results say `sample`. Generated data need no licence; the official files belong to
google-research/long-range-arena (Apache-2.0).
"""

from dataclasses import asdict
from enum import StrEnum, auto
from functools import cached_property, partial
from itertools import cycle
from pathlib import Path
from typing import ClassVar

import numpy as np

from lra.tasks.classification.base import ClassificationTask, baseline
from lra.tasks.classification.listops import oracle as listops_oracle
from lra.tasks.classification.listops.text import (
    FILES,
    FOLDER,
    VOCABULARY,
    VOCABULARY_VERSION,
    decode,
    holds_trees,
    read_split,
)
from lra.tasks.classification.listops.trees import Limits, distinct_trees
from lra.tasks.classification.objectives import InputObjective, MaskedReplacement
from lra.tasks.data import arena
from lra.tasks.data.batching import Draw, check_lengths, permutation
from lra.tasks.data.published_data import MARK, check_partial, check_whole, named_path
from lra.tasks.data.sources import data_root, remembered_sha256
from lra.tasks.data.storage import PreparedStore, RaggedRows, from_rows
from lra.tasks.data.stored_task import identity_of
from lra.tasks.errors import BadData, NotPrepared
from lra.tasks.task import SPLITS, Baseline, Kind, TaskSpec

VERSION = 1
FILLER_TREE = 40
"""A tree of the filler has fewer tokens than this."""
FILLER_TREES = 5003
"""Number of different trees of the filler: a prime, so that rows do not repeat each other."""
SAMPLE_LIMITS = {"min_length": 20, "max_length": 150, "max_depth": 4, "max_args": 10}
SAMPLE_SIZES = (2000, 400, 400)
"""Most that options can ask for with `source=sample`."""
OFFICIAL = {"train": 96_000, "validation": 2000, "test": 2000}
"""Number of trees in each official file."""


class ListOpsSource(StrEnum):
    """Where the trees come from."""

    generated = auto()
    tsv = auto()
    sample = auto()


class ListOps(ClassificationTask):
    """Evaluate nested lists of operations; the answer is a digit.

    Args:
        source: generated, tsv or sample.
        path: Folder of the official TSV files, or the unpacked archive; only for source=tsv.
        partial: Whether the files have only a part of the trees, or others; every row then says so.
        min_length: Generated trees have more tokens than this.
        max_length: Generated trees have fewer tokens than this; trees of files have at most this.
        max_depth: Levels of a generated tree, including the level of digits.
        max_args: Most arguments of an operator.
        train_examples: Number of generated training trees.
        validation_examples: Number of generated validation trees.
        test_examples: Number of generated test trees.
        filler: Most tokens of further small trees after a generated tree. They add length, but no
            difficulty: the answer is the value of the first tree.
        data_seed: Seed of the generated trees; the seed of a run does not change them.
        processes: Number of processes that generate trees, without effect on the trees; 0: one for
            each core.
        check_answers: Whether to evaluate every tree of a file and refuse a wrong answer.
        padded_length: Number of tokens to which every row is padded, for models that attend to
            padding; null: the longest row of each batch.
        bucket_batches: Number of training batches whose examples are sorted by length together, so
            that batches need less padding; null: no sorting.
        objective: What a model predicts: classify (a class), or masked, causal, prefix, unilm,
            permutation or replaced (tokens).
        masked_share: Fraction of tokens to draw, not for classify, causal and prefix; null: 10 %.
        masked_replacement: What masked tokens become: mask, or bert (80 % mask, 10 % random id).
    """

    usual_share: ClassVar[float] = 0.1
    incidental: ClassVar[frozenset[str]] = frozenset(
        {"path", "partial", "processes", "check_answers"}
    )
    """Options that change no number: not part of a result's identity."""
    _longest: int | None = None
    """Tokens of the longest prepared tree."""

    def __init__(
        self,
        *,
        source: ListOpsSource = ListOpsSource.generated,
        path: str | None = None,
        partial: bool = False,
        min_length: int = 500,
        max_length: int = 2000,
        max_depth: int = 10,
        max_args: int = 10,
        train_examples: int = 96000,
        validation_examples: int = 2000,
        test_examples: int = 2000,
        filler: int = 0,
        data_seed: int = 0,
        processes: int = 0,
        check_answers: bool = True,
        padded_length: int | None = None,
        bucket_batches: int | None = 16,
        objective: InputObjective = InputObjective.classify,
        masked_share: float | None = None,
        masked_replacement: MaskedReplacement = MaskedReplacement.mask,
    ) -> None:
        self.source = source
        if (self.source is ListOpsSource.tsv) != (path is not None):
            raise ValueError(
                "task.path, the folder of the TSV files, needs task.source=tsv, and the other way "
                f"round: got source={source}, path={path!r}; set both or neither"
            )
        check_partial(partial, path is not None)
        wrong = [
            f"{name} must be at least {least}: got {value}"
            for name, value, least in (
                ("train_examples", train_examples, 1),
                ("validation_examples", validation_examples, 1),
                ("test_examples", test_examples, 1),
                ("filler", filler, 0),
                ("data_seed", data_seed, 0),
                ("processes", processes, 0),
                ("max_length", max_length, 1),
            )
            if value < least
        ]
        if wrong:
            raise ValueError(f"ListOps: {'; '.join(wrong)}")
        if filler and self.source is not ListOpsSource.generated:
            raise ValueError(f"task.filler={filler} needs task.source=generated: got {source}")
        self.numbers: tuple[int, ...] = (train_examples, validation_examples, test_examples)
        limits = {
            "min_length": min_length,
            "max_length": max_length,
            "max_depth": max_depth,
            "max_args": max_args,
        }
        if self.source is ListOpsSource.sample:
            self.numbers = tuple(map(min, self.numbers, SAMPLE_SIZES))
            limits = {name: min(limits[name], most) for name, most in SAMPLE_LIMITS.items()}
        if self.source is not ListOpsSource.tsv:
            self.limits = Limits(**limits)
        self.data_seed, self.partial, self.filler = data_seed, partial, filler
        self.path = named_path(path) if path is not None else None
        self.max_length = max_length if self.path else self.limits.max_length + filler
        self.processes, self.check_answers = processes, check_answers
        self.bucket_batches = bucket_batches
        self.padded_length = padded_length
        check_lengths(
            "ListOps",
            max_length=self.max_length,
            padded_length=padded_length,
            bucket_batches=bucket_batches,
        )
        self.answer(objective, masked_share, masked_replacement)

    @cached_property
    def spec(self) -> TaskSpec:
        """The facts about this task; with source=tsv, the data hash is a hash of the files."""
        spec = TaskSpec(
            name="listops",
            version=VERSION,
            kind=Kind.classification,
            vocabulary=len(VOCABULARY),
            classes=10,
            max_length=self.padded_length or self.max_length,
            padded=True,
            metric="accuracy",
            source=f"{self.source}{MARK if self.partial else ''}",
            data_hash=self.content_hash(self._identity),
            sizes={} if self.path else dict(zip(SPLITS, self.numbers, strict=True)),
        )
        return self.facts_of(spec)

    def _identity(self) -> str:
        """Return the hash of everything that decides the prepared data."""
        facts: dict[str, object] = {"version": VERSION, "vocabulary": VOCABULARY_VERSION}
        if self.path is not None:
            facts |= {split: remembered_sha256(self._file(split)) for split in SPLITS}
            if self.partial:
                facts["partial"] = True
        else:
            facts |= {"numbers": self.numbers, "seed": self.data_seed, **asdict(self.limits)}
        if self.filler:
            facts["filler"] = self.filler
        return identity_of(facts)

    def _file(self, split: str) -> Path:
        """Return the path of the TSV file of `split`; raise `NotPrepared` if it is missing."""
        path = arena.find_task_folder(self.path or Path(), FOLDER, holds_trees) / FILES[split]
        if not path.is_file():
            raise NotPrepared(
                f"{path} is missing; set task.path to a folder with {', '.join(FILES.values())} "
                f"(the folder {FOLDER} of {arena.ABOUT}), or to the unpacked archive; or set "
                "task.source=generated"
            )
        return path

    @property
    def folder(self) -> Path:
        """Folder of the prepared data."""
        return data_root() / f"listops-{self.source}-{self.spec.data_hash}"

    @property
    def trained_length(self) -> int:
        """Limit of the tokens of a training tree."""
        return self.max_length

    @property
    def tested_length(self) -> int:
        """Limit of the tokens of a test tree."""
        return self.max_length

    def stretched(self, factor: float) -> dict[str, object]:
        """Return the options that make trees `factor` times as long, with the same depth and width.

        The seed changes, too, so that training trees do not occur again, except by chance.

        Raises:
            ValueError: The source of the trees is not `generated`.
        """
        if factor == 1:
            return {}
        if self.source is not ListOpsSource.generated:
            raise ValueError(
                "trees of another length need task.source=generated: got "
                f"source={self.source}; set task.source=generated"
            )
        limits = self.limits
        return {
            "min_length": round(factor * limits.min_length),
            "max_length": round(factor * limits.max_length),
            "filler": round(factor * self.filler),
            "train_examples": 1,
            "validation_examples": 1,
            "data_seed": self.data_seed + 1,
            "processes": 1,
        }

    def equal_work(self, examples: int, factor: float) -> int:
        """Return `examples`, because a tree of any length has one answer."""
        del factor
        return examples

    def describe(self, split: str, index: int) -> str:
        """Return an example as text: the tree and its value."""
        (row,), target = self.example(split, index)
        return f"{decode(row)}\n-> {target}"

    def make(self) -> None:
        """Generate or read the trees and store them."""
        splits = self._read_files(self.path) if self.path is not None else self._generate()
        generated = {} if self.path else {"seed": self.data_seed, "limits": asdict(self.limits)}
        self.write(
            splits, vocabulary=list(VOCABULARY), vocabulary_version=VOCABULARY_VERSION, **generated
        )

    def store(self) -> PreparedStore:
        """Return the opened data; raise BadData if a prepared tree is longer than `max_length`."""
        opened = super().store()
        if self._longest is None:
            self._longest = max(int(data.lengths.max()) for data in opened.splits.values())
        if self._longest > self.max_length:
            raise BadData(
                f"{self.folder} contains a tree of {self._longest} tokens, more than "
                f"task.max_length={self.max_length}; set task.max_length={self._longest} or more, "
                "because a truncated tree has no answer"
            )
        return opened

    def _generate(self) -> dict[str, RaggedRows]:
        """Generate all trees, shuffle them, and return them by split."""
        number = sum(self.numbers)
        parts = distinct_trees(
            self.limits, seed=self.data_seed, number=number, processes=self.processes
        )
        rows = [row for part in parts for row in part.rows(np.arange(len(part.targets)))]
        if self.filler:
            rows = self._append_filler(rows)
        targets = np.concatenate([part.targets for part in parts])
        # Trees of rare kinds come late, so only a shuffle gives all splits the same distribution.
        order = permutation(Draw.split, self.data_seed, number)
        splits, first = {}, 0
        for split, size in zip(SPLITS, self.numbers, strict=True):
            chosen = order[first : first + size]
            splits[split] = from_rows([rows[i] for i in chosen.tolist()], targets[chosen])
            first += size
        return splits

    def _append_filler(self, rows: list[np.ndarray]) -> list[np.ndarray]:
        """Return the rows with small trees appended, of at most `self.filler` tokens together.

        The first small tree that does not fit ends a row and is not used again at once.
        """
        small = Limits(min_length=2, max_length=FILLER_TREE, max_depth=4, max_args=5)
        parts = distinct_trees(small, seed=self.data_seed, number=FILLER_TREES, processes=1)
        pool = [row for part in parts for row in part.rows(np.arange(len(part.targets)))]
        picks = cycle(permutation(Draw.sample, self.data_seed, len(pool)).tolist())
        filled = []
        for row in rows:
            pieces, tokens_left = [row], self.filler
            while len(piece := pool[next(picks)]) <= tokens_left:
                pieces.append(piece)
                tokens_left -= len(piece)
            filled.append(np.concatenate(pieces))
        return filled

    def _read_files(self, folder: Path) -> dict[str, RaggedRows]:
        """Return the trees of the TSV files by split; check their numbers."""
        read = partial(read_split, max_length=self.max_length, check_answers=self.check_answers)
        splits = {split: read(self._file(split)) for split in SPLITS}
        numbers = {split: len(data.targets) for split, data in splits.items()}
        check_whole(numbers, OFFICIAL, where=str(folder), of="trees", partial=self.partial)
        return splits

    def baselines(self, split: str) -> list[Baseline]:
        """Compute the baselines of every task, of the root operator, and of `DEPTHS` oracles."""
        if self.per_token:
            return super().baselines(split)
        train, data = self.seen("train"), self.seen(split)
        best = np.zeros(len(VOCABULARY), np.int64)  # most frequent answer, by id of the root
        train_roots = listops_oracle.roots(train)
        for root in np.unique(train_roots):
            best[root] = self.counts(train.targets[train_roots == root]).argmax()
        guesses = best[listops_oracle.roots(data)]
        most_frequent = listops_oracle.habits(train)
        return [
            *super().baselines(split),
            baseline(
                "root_operator",
                guesses == data.targets,
                "This baseline reads only the first token, the outermost operator, and gives its "
                "most frequent answer in training. A model with this score may use nothing else.",
            ),
            *(
                baseline(
                    f"oracle_depth_{depth}",
                    listops_oracle.oracle_answers(data, depth, most_frequent),
                    f"This baseline evaluates the operators of the first {depth} levels and "
                    "guesses the deeper ones. A model that evaluates these levels perfectly would "
                    "reach this score.",
                )
                for depth in listops_oracle.DEPTHS
            ),
        ]
