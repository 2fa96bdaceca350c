"""The score of a run in one line: its interval, the level of chance, and the best baseline."""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any

from lra.runners.metrics import JUDGED_BY
from lra.runners.records import Cell, baseline_of, is_oracle
from lra.runners.storage.formats import BadStore, read_newest_rows
from lra.runners.store import Store

Rows = Sequence[Mapping[str, Any]]
PLACE, LABELS = (
    ("task", "task_version", "source", "length", "metric"),
    ("split", "regime", "tokenizer"),
)
"""Columns and labels that are equal for a score and the baselines to compare it with."""
ITS_DATA = re.compile(r"\+?(task|protocol|scale|plugins|results)[.=]")
"""Arguments that decide the data of a run, and where its baselines are stored."""
MOST = 5_000
"""At most so many runs are searched for baselines, because each is a file to read."""


def score_lines(cell: Cell, rows: Rows, store: Store) -> Iterator[str]:
    """Yield a line for each split on which a run has one score, test first.

    For example: test accuracy 25.5% [23.6, 27.5] (chance 10.0%; best baseline: root operator 41.7%)
    """
    final = [r for r in rows if r["step"] is None and r["status"] == "ok" and r["labels"]]
    mine = [r for r in final if r["model"] == cell.columns["model"] and r["metric"] in JUDGED_BY]
    splits = {r["labels"].get("split", "") for r in mine} - {""}
    for split in sorted(splits, key=lambda name: (name != "test", name)):
        of_split = [row for row in mine if row["labels"].get("split") == split]
        metric = min((row["metric"] for row in of_split), key=JUDGED_BY.index)
        judged = [row for row in of_split if row["metric"] == metric]
        if len(judged) == 1:  # of several lengths or contexts, each has a score
            shares = [r["value"] for r in final if r["metric"] == "original_share"
                      and r["labels"].get("split") == split]  # fmt: skip
            yield _format_line(cell, judged[0], store, *shares)


def _format_line(
    cell: Cell, row: Mapping[str, Any], store: Store, guessed: float | None = None
) -> str:
    """Return a score with its interval; on the test split also with chance and best baseline.

    `guessed` is the accuracy of a guess, if it depends on the model; None: that of the task.
    """
    from lra.reports.tables.scores import CHANCE, score_interval, score_of  # with pandas

    score, task, split = score_of(row["metric"]), row["task"], row["labels"]["split"]
    unit = "%" if score.shares else ""
    text = f"{split} {score.title.lower()} {score.text(row['value'])}{unit}"
    examples_label = str(row["labels"].get("examples", ""))
    examples = int(examples_label) if examples_label.isdecimal() else 0
    if interval := score_interval(score, [row["value"]], examples):
        text += f" [{score.text(interval.low)}, {score.text(interval.high)}]"
    if split != "test":
        return text
    guessed = CHANCE.get(task) if guessed is None else guessed
    chance = f"chance {score.text(guessed)}%; " if score.shares and guessed is not None else ""
    rivals = [baseline for baseline in _baselines(task, store) if _place(baseline) == _place(row)]
    if not rivals:
        return (
            f"{text} ({chance}the baselines are not measured: `{_certify(cell, task)}` adds them)"
        )
    best = (max if score.higher else min)(rivals, key=lambda baseline: baseline["value"])
    name = str(baseline_of(best["model"])).replace("_", " ")
    return f"{text} ({chance}best baseline: {name} {score.text(best['value'])}{unit})"


def _certify(cell: Cell, task: str) -> str:
    """Return the command that measures the baselines of a run's task."""
    words = [word for word in cell.overrides if ITS_DATA.match(word)]
    names_task = any(word.startswith("task=") for word in words)
    return shlex.join(
        ["lra", "run", "runner=certify", *([] if names_task else [f"task={task}"]), *words]
    )


def _place(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return a key that is equal for a score and the baselines to compare it with."""
    return (*(row[name] for name in PLACE), *((row["labels"] or {}).get(name) for name in LABELS))


def _baselines(task: str, store: Store) -> Iterator[Mapping[str, Any]]:
    """Yield the stored scores of a task's baselines, except those that compute the answer."""
    keys = dict[str, None]()
    with suppress(OSError):
        for file in islice((store.root / "sweeps").glob("*/*"), MOST):
            title = file.read_text(encoding="utf-8", errors="replace")
            if re.match(rf"baselines of {re.escape(task)}(,|$)", title):
                keys[file.name] = None
    for key in keys:
        with suppress(BadStore):
            _, rows = read_newest_rows(store.cell_folder(key)) or ((), ())  # file and rows
            for row in rows:
                name = baseline_of(row["model"])
                if name and not is_oracle(name) and row["status"] == "ok":
                    yield row
