"""Your own texts: classification of one text or of a pair, from a table, by configuration alone.

    lra run task=table task.train=mine.csv task.labels=[ham,spam] task.text=message task.label=kind

A table is a CSV, TSV, JSON Lines or parquet file with a column of texts and one of labels, or a
data set on the Hugging Face hub (`dataset`). With a second column of texts (`second_text`), an
example is a pair. Texts become UTF-8 bytes, id = byte + 1, cut to `max_length`. Without a
validation or test table, a share of train becomes this split, stratified by label. The hash of the
text decides, so the split is the same on every machine, and copies of a text stay together.

Values are read unchanged: see `lra.tasks.classification.table_files`. Labels are compared as text,
so 1 and "1" are one label, and 1 and 01 are two. The `datasets` library reads data sets of the hub.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from lra.conf.short_values import reason, short, short_list, short_repr
from lra.tasks.classification.base import ClassificationTask
from lra.tasks.classification.objectives import InputObjective, MaskedReplacement
from lra.tasks.classification.split_files import SplitFiles
from lra.tasks.classification.table_files import (
    TableRecord,
    class_names,
    label_number,
    positions,
    table_records,
    text_bytes,
)
from lra.tasks.data.batching import check_lengths
from lra.tasks.data.sources import data_root
from lra.tasks.data.storage import RaggedRows, from_rows
from lra.tasks.data.stored_task import BYTES, identity_of
from lra.tasks.errors import BadData, NotPrepared
from lra.tasks.task import SPLITS, Kind, TaskSpec

VERSION = 3


class TableExample(NamedTuple):
    """One example: its texts and the number of its label."""

    texts: tuple[bytes, ...]
    label: int

    @property
    def key(self) -> bytes:
        """The bytes of all texts, by which copies of an example are recognised."""
        return b"\0".join(self.texts)


class TableTask(ClassificationTask):
    """Classification of your texts, or of pairs of them. The model reads their bytes.

    Args:
        labels: Every label, in the order of the classes.
        train: Table of the training examples; null if you set `dataset`.
        validation: Table to validate on; null: `validation_fraction` of train.
        test: Table to test on; null: `test_fraction` of train.
        dataset: Name of a data set on the Hugging Face hub, instead of tables; its split train is
            needed, validation and test are used if they exist.
        revision: Version of `dataset`: a commit, a branch or a tag.
        text: Name of the column of texts.
        second_text: Name of a second column of texts, for pairs; null: one text.
        label: Name of the column of labels.
        max_length: Number of bytes that a model reads of each text.
        validation_fraction: Share of train that becomes the validation split.
        test_fraction: Share of train that becomes the test split.
        bucket_batches: Number of training batches whose examples are sorted by length together, so
            that batches need less padding; null: no sorting.
        objective: What a model predicts: classify (a class), or masked, causal, prefix, unilm,
            permutation or replaced (tokens).
        masked_share: Fraction of tokens to draw, not for classify, causal and prefix; null: 15 %.
        masked_replacement: What masked tokens become: mask, or bert (80 % mask, 10 % random id).
    """

    shift = 1
    holds_text = True
    incidental: ClassVar[frozenset[str]] = frozenset({"train", "validation", "test"})
    """Options that are no part of a result's identity; the content of the files is."""

    def __init__(
        self,
        *,
        labels: list[str],
        train: str | None = None,
        validation: str | None = None,
        test: str | None = None,
        dataset: str | None = None,
        revision: str = "main",
        text: str = "text",
        second_text: str | None = None,
        label: str = "label",
        max_length: int = 1000,
        validation_fraction: float = 0.1,
        test_fraction: float = 0.1,
        bucket_batches: int | None = 16,
        objective: InputObjective = InputObjective.classify,
        masked_share: float | None = None,
        masked_replacement: MaskedReplacement = MaskedReplacement.mask,
    ) -> None:
        if (train is None) == (dataset is None):
            raise ValueError(
                "set either task.train, a table, or task.dataset, a data set on the Hugging Face "
                f"hub: got train={short_repr(train)}, dataset={short_repr(dataset)}"
            )
        if dataset is not None and (validation or test):
            raise ValueError(
                "task.validation and task.test must be null, because the splits come from "
                f"task.dataset={short(dataset)}: got validation={short_repr(validation)}, "
                f"test={short_repr(test)}"
            )
        if len(labels) < 2 or len(set(labels)) < len(labels):
            raise ValueError(
                "task.labels must list at least two labels, each once: got "
                f"{short_repr(labels)}; type for example task.labels=[neg,pos]"
            )
        check_lengths("Table", max_length=max_length, bucket_batches=bucket_batches)
        self.files = SplitFiles.resolve(
            {"train": train, "validation": validation, "test": test},
            {"validation": validation_fraction, "test": test_fraction},
        )
        self.dataset, self.revision, self.labels = dataset, revision, [str(x) for x in labels]
        self.texts = (text,) if second_text is None else (text, second_text)
        if len({*self.texts, label}) <= len(self.texts):
            raise ValueError(
                f"task.text={short(text)}, task.second_text={short(second_text)} and "
                f"task.label={short(label)} must be different columns; change one of these names"
            )
        self.label, self.max_length, self.bucket_batches = label, max_length, bucket_batches
        self.answer(objective, masked_share, masked_replacement)

    @cached_property
    def spec(self) -> TaskSpec:
        """The facts about this task; the data hash is a hash of the tables."""
        name = (
            self.files.paths["train"].name
            if self.files.paths
            else f"{self.dataset}@{self.revision}"
        )
        spec = TaskSpec(
            name="table",
            version=VERSION,
            kind=Kind.classification if len(self.texts) == 1 else Kind.pair,
            vocabulary=257,  # 256 bytes and padding
            classes=len(self.labels),
            max_length=self.max_length,
            padded=True,
            metric="accuracy",
            source=name,
            data_hash=self.content_hash(self._identity),
        )
        return self.facts_of(spec)

    def _identity(self) -> str:
        """Return the hash of everything that decides the prepared data."""
        facts: dict[str, object] = {
            "version": VERSION,
            "columns": [*self.texts, self.label],
            "labels": self.labels,
            "dataset": f"{self.dataset}@{self.revision}" if self.dataset else None,
            "shares": self.files.shares,
        }
        return identity_of(facts | self.files.hashes("table"))

    @property
    def folder(self) -> Path:
        """Folder of the prepared data; every `max_length` uses the same one."""
        return data_root() / f"table-{self.spec.data_hash}"

    def copies_allowed(self, first: str, second: str) -> float:
        """Return 1: your splits may have any number of texts in common."""
        del first, second
        return 1.0

    def make(self) -> None:
        """Read the tables, make missing splits, and store the bytes of the texts."""
        rows = self._read_tables()
        self.files.hold_out(rows, lambda row: (row.key, row.label))
        splits = {split: _ragged(rows[split]) for split in SPLITS}
        remarks = self.files.repeated(rows, lambda row: row.key)
        train_labels = {row.label for row in rows["train"]}
        if absent := [label for n, label in enumerate(self.labels) if n not in train_labels]:
            remarks["labels"] = (
                f"no row of train has the label {short_list(map(short_repr, absent))}, so a model "
                "cannot learn this label; check the spelling in task.labels"
            )
        self.write(splits, vocabulary=BYTES, labels=self.labels, remarks=remarks)

    def _read_tables(self) -> dict[str, list[TableExample]]:
        """Return the examples of every split that has a table."""
        columns, files = [*self.texts, self.label], self.files.paths
        records: dict[str, Iterable[TableRecord]] = (
            _hub_records(self.dataset, self.revision, columns)
            if self.dataset is not None
            else {split: table_records(path, columns) for split, path in files.items()}
        )
        examples = {}
        for split, split_records in records.items():
            origin = f"{self.files.paths.get(split, self.dataset)}"
            examples[split] = list(
                self._examples(split_records, origin if self.files.paths else f"{origin}, {split}")
            )
            if not examples[split]:
                raise BadData(f"{origin}: the {split} table has no rows")
        return examples

    def _examples(self, records: Iterable[TableRecord], origin: str) -> Iterator[TableExample]:
        """Yield an example for each record; `origin` names the table in messages."""
        numbers = {label: number for number, label in enumerate(self.labels)}
        for place, (*texts, label) in records:
            where = f"{origin}, {place}"
            columns = zip(texts, self.texts, strict=True)
            yield TableExample(
                tuple(text_bytes(text, f"{where}, {name}") for text, name in columns),
                label_number(label, numbers, where),
            )

    def describe(self, split: str, index: int) -> str:
        """Return an example as text: its one or two texts and its label."""
        rows, target = self.example(split, index)
        texts = [row.tobytes().decode(errors="replace") for row in rows]
        return "\n---\n".join([*texts, f"-> {target} ({self.labels[target]})"])


def _hub_records(
    name: str, revision: str, columns: Sequence[str]
) -> dict[str, Iterable[TableRecord]]:
    """Return the rows of a data set on the Hugging Face hub, by split.

    Raises:
        NotPrepared: Neither the network nor the cache has the data set.
        BadData: The data set cannot be read, or lacks a column or the train split.
    """
    import datasets
    import pyarrow

    cache = str(data_root() / "huggingface")
    try:
        loaded = datasets.load_dataset(name, revision=revision, cache_dir=cache)
    except (ConnectionError, datasets.exceptions.DatasetNotFoundError) as error:
        raise NotPrepared(
            f"{name} cannot be reached on the hub, and the cache of lra does not have it "
            f"({reason(error)}); download its files on another machine and set task.train, "
            "task.validation and task.test to these files"
        ) from error
    except (
        datasets.exceptions.DatasetGenerationError,
        pyarrow.ArrowException,
        ValueError,
    ) as error:
        raise BadData(f"lra cannot read the data set {name}: {reason(error)}") from error
    if "train" not in loaded:
        raise BadData(
            f"{name}: the data set has the splits {short_repr(sorted(loaded))}, but not train"
        )
    return {
        split: _split_records(loaded[split], f"{name}, {split}", columns)
        for split in SPLITS
        if split in loaded
    }


def _split_records(table: Any, where: str, columns: Sequence[str]) -> Iterator[TableRecord]:
    """Yield the rows of one split of a loaded data set; `where` names the split in messages."""
    positions(table.column_names, columns, where)
    values = [class_names(table[name], table.features[name]) for name in columns]
    for number, row in enumerate(zip(*values, strict=True)):
        yield TableRecord(f"row {number}", row)


def _ragged(rows: Sequence[TableExample]) -> RaggedRows:
    """Return the texts of examples as rows of bytes, one after another, with the labels."""
    texts = [np.frombuffer(text, np.uint8) for row in rows for text in row.texts]
    return from_rows(texts, np.array([row.label for row in rows], np.int64))
