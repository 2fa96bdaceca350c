"""Your own texts: classification of one text or of a pair, from a table, by configuration alone.

    lra run task=table task.train=mine.csv task.labels=[ham,spam] task.text=message task.label=kind

A table is a CSV, TSV, JSON Lines or parquet file with a column of texts and one of labels, or a
data set on the hub (`dataset`). A second column of texts (`second_text`) makes it a task of pairs.
Texts become UTF-8 bytes, id = byte + 1, cut to `max_length`. Where no validation or test table is
given, a share of train is held out, stratified by label and chosen by the hash of the text: the
same on every machine, and copies of a text stay together.

Values are read as they stand in a file: see `lra.tasks.classification.table_files`.
Labels are compared as text, so 1 and "1" are one label, and 1 and 01 are two. A data set on the hub
is read by the `datasets` library.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from math import isnan
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
        """What copies have in common."""
        return b"\0".join(self.texts)


class TableTask(ClassificationTask):
    """The task; see the module's text.

    Args:
        labels: Every label, in the order of the classes.
        train: Table of the training examples; or name a `dataset`.
        validation: Table to validate on; null: `validation_fraction` of train is held out.
        test: Table to test on; null: `test_fraction` of train is held out.
        dataset: A data set on the hub, instead of tables; its splits are train and, where it has
            them, validation and test.
        revision: Of that data set: a commit, a branch or a tag.
        text: Name of the column of texts.
        second_text: Name of a second column of texts; null: the task is about one text.
        label: Name of the column of labels.
        max_length: Bytes kept of each text.
        validation_fraction: Share of train.
        test_fraction: Share of train.
        bucket_batches: Training batches that are formed together by length; None groups nothing:
            batches are cut from the shuffled split, and evaluation keeps the split's order.
        objective: What a model answers: classify; or masked, causal, prefix, unilm or
            permutation (tokens).
        masked_share: Of the tokens, where some are asked for; null: 15 %.
        masked_replacement: What stands in their place: mask, or bert (80/10/10).
    """

    shift = 1
    holds_text = True
    incidental: ClassVar[frozenset[str]] = frozenset({"train", "validation", "test"})
    """Options that change no number: not part of a result's identity (their content is)."""

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
                "name a table by task.train, or a data set on the hub by task.dataset: got "
                f"train={short_repr(train)}, dataset={short_repr(dataset)}"
            )
        if dataset is not None and (validation or test):
            raise ValueError(
                f"task.dataset={short(dataset)} has splits already: got "
                f"validation={short_repr(validation)}, test={short_repr(test)}; leave them null"
            )
        if len(labels) < 2 or len(set(labels)) < len(labels):
            raise ValueError(
                "task.labels must list each label once, two at least: got "
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
                f"task.label={short(label)} must be different columns: name each once"
            )
        self.label, self.max_length, self.bucket_batches = label, max_length, bucket_batches
        self.answer(objective, masked_share, masked_replacement)

    @cached_property
    def spec(self) -> TaskSpec:
        """The facts. Tables must be there: their hashes are the identity."""
        name = (
            self.files.paths["train"].name
            if self.files.paths
            else f"{self.dataset}@{self.revision}"
        )
        spec = TaskSpec(
            name="table",
            version=VERSION,
            kind=Kind.classification if len(self.texts) == 1 else Kind.pair,
            vocabulary=257,
            classes=len(self.labels),
            max_length=self.max_length,
            padded=True,
            metric="accuracy",
            source=name,
            data_hash=self.content_hash(self._identity),
        )
        return self.facts_of(spec)

    def _identity(self) -> str:
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
        """Where the prepared data lie; one store serves every `max_length`."""
        return data_root() / f"table-{self.spec.data_hash}"

    def copies_allowed(self, first: str, second: str) -> float:
        """Return the share of texts in both splits: it is your data."""
        del first, second
        return 1.0

    def make(self) -> None:
        """Read the tables and store the bytes of their texts."""
        rows = self._read()
        self.files.hold_out(rows, lambda row: (row.key, row.label))
        splits = {split: _ragged(rows[split]) for split in SPLITS}
        remarks = self.files.repeated(rows, lambda row: row.key)
        trained = {row.label for row in rows["train"]}
        if absent := [label for n, label in enumerate(self.labels) if n not in trained]:
            remarks["labels"] = (
                f"no row of train has the label {short_list(map(short_repr, absent))}, so it "
                "cannot be learnt: is it spelt correctly in task.labels?"
            )
        self.write(splits, vocabulary=BYTES, labels=self.labels, remarks=remarks)

    def _read(self) -> dict[str, list[TableExample]]:
        columns, files = [*self.texts, self.label], self.files.paths
        records: dict[str, Iterable[TableRecord]] = (
            _hub_records(self.dataset, self.revision, columns)
            if self.dataset is not None
            else {split: table_records(path, columns) for split, path in files.items()}
        )
        examples = {}
        for split, some in records.items():
            origin = f"{self.files.paths.get(split, self.dataset)}"
            examples[split] = list(
                self._rows(some, origin if self.files.paths else f"{origin}, {split}")
            )
            if not examples[split]:
                raise BadData(f"{origin}: {split} contains no row")
        return examples

    def _rows(self, records: Iterable[TableRecord], origin: str) -> Iterator[TableExample]:
        numbers = {label: number for number, label in enumerate(self.labels)}
        for number, (*texts, label) in records:
            where = f"{origin}, {number}"
            given = isinstance(label, str | int) or (isinstance(label, float) and not isnan(label))
            if not given or str(label) not in numbers:
                raise BadData(
                    f"{where}: label {short_repr(label)}, wanted one of "
                    f"{short_list(map(short_repr, self.labels))}; list every label in "
                    "task.labels, in quotes if it is a number such as '01'"
                )
            columns = zip(texts, self.texts, strict=True)
            yield TableExample(
                tuple(text_bytes(text, f"{where}, {name}") for text, name in columns),
                numbers[str(label)],
            )

    def describe(self, split: str, index: int) -> str:
        """Return one example's texts and its label."""
        rows, target = self.example(split, index)
        texts = [row.tobytes().decode(errors="replace") for row in rows]
        return "\n---\n".join([*texts, f"-> {target} ({self.labels[target]})"])


def _hub_records(
    name: str, revision: str, columns: Sequence[str]
) -> dict[str, Iterable[TableRecord]]:
    """Return the rows of a data set on the hub, by split.

    Raises:
        NotPrepared: Neither network nor cache has it.
        BadData: It cannot be read, or a column or the train split is missing.
    """
    import datasets
    import pyarrow

    cache = str(data_root() / "huggingface")
    try:
        loaded = datasets.load_dataset(name, revision=revision, cache_dir=cache)
    except (ConnectionError, datasets.exceptions.DatasetNotFoundError) as error:
        raise NotPrepared(
            f"{name} cannot be reached and is not in the cache ({reason(error)}); download its "
            "files elsewhere and name them by task.train, task.validation and task.test"
        ) from error
    except (
        datasets.exceptions.DatasetGenerationError,
        pyarrow.ArrowException,
        ValueError,
    ) as error:
        raise BadData(f"{name} cannot be read: {reason(error)}") from error
    if "train" not in loaded:
        raise BadData(f"{name}: splits {short_repr(sorted(loaded))}, wanted train at least")
    return {
        split: _records(loaded[split], f"{name}, {split}", columns)
        for split in SPLITS
        if split in loaded
    }


def _records(table: Any, where: str, columns: Sequence[str]) -> Iterator[TableRecord]:
    positions(table.column_names, columns, where)
    values = [class_names(table[name], table.features[name]) for name in columns]
    for number, row in enumerate(zip(*values, strict=True)):
        yield TableRecord(f"row {number}", row)


def _ragged(rows: Sequence[TableExample]) -> RaggedRows:
    texts = [np.frombuffer(text, np.uint8) for row in rows for text in row.texts]
    return from_rows(texts, np.array([row.label for row in rows], np.int64))
