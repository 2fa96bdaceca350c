"""MAD's table: six tasks, micro beside macro, and a mean only of all six."""

from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from lra.reports.rows import prepare
from lra.reports.sections.mad import TASKS, mad_table
from lra.reports.tables.scores import BASELINES, ORACLES
from lra.reports.tables.table import Entry, Table


def scored(make: SimpleNamespace, model: str, task: str, micro: float, **columns: Any) -> list[Any]:
    """The micro accuracy of a training, and a macro accuracy that is a tenth lower."""
    split, value = columns.pop("split", "test"), columns.pop("value", None)
    told = {"model": model, "task": task, "family": model, "options": {}, "source": "x"} | columns
    if options := told["options"]:
        told["cell"] = f"{model}-{task}-{split}-{options}-{told['source']}"
    labels = {"split": split}
    return [
        make.row(metric, number if value is None else value, labels=labels, **told)
        for metric, number in (("accuracy", micro), ("macro_accuracy", micro - 0.1))
    ]


def table(make: SimpleNamespace, rows: list[Any]) -> Table | None:
    parts = [*mad_table(prepare(make.frame(*rows)))]
    return parts[0].table if parts else None


def entries(found: Table, title: str) -> dict[tuple[str, str], Entry]:
    (line,) = (row for row in found.rows if row.title == title)
    keys = [(column.group, column.title) for column in found.columns]
    return dict(zip(keys, line.entries, strict=True))


def test_a_mean_is_over_all_six_tasks(make: SimpleNamespace) -> None:
    rows = [
        row
        for number, task in enumerate(TASKS)
        for row in scored(make, "sdpa", task, 0.4 + 0.1 * number)
    ]
    rows += [row for task in [*TASKS][:5] for row in scored(make, "gla", task, 0.5)]
    found = table(make, rows)
    assert found is not None
    whole, part = entries(found, "sdpa"), entries(found, "gla")
    assert whole["compression", "micro"].text == "40.0"
    assert whole["copying", "macro"].value == pytest.approx(0.8)
    assert whole["mean of 6", "micro"].value == pytest.approx(0.65)
    assert whole["mean of 6", "macro"].value == pytest.approx(0.55)
    assert part["mean of 6", "micro"].value is None
    assert part["mean of 6", "micro"].notes == ("5 of 6 tasks have a score",)
    assert part["copying", "micro"].notes == ("not run",)


def test_settings_are_averaged_and_validation_chooses_among_trainings(
    make: SimpleNamespace,
) -> None:
    rows = scored(make, "sdpa", "mad_copy", 0.9)
    for rate, validation, test in (("1", 0.7, 0.5), ("2", 0.6, 0.8)):
        told = {"options": {"optim.peak_learning_rate": rate}}
        rows += scored(make, "sdpa", "mad_recall", validation, split="validation", **told)
        rows += scored(make, "sdpa", "mad_recall", test, **told)
    for size, value in (("800", 0.3), ("1600", 0.1)):
        rows += scored(make, "sdpa", "mad_recall", value, options={"task.train_examples": size})
    found = table(make, rows)
    assert found is not None
    recall = entries(found, "sdpa")["recall", "micro"]
    assert recall.value == pytest.approx((0.5 + 0.3 + 0.1) / 3)
    assert recall.notes == ("3 settings", "validation chose among up to 2 trainings")


def test_failures_and_floors_are_told(make: SimpleNamespace) -> None:
    rows = scored(make, "sdpa", "mad_copy", 0.9) + scored(make, "sdpa", "mad_recall", 0.6)
    told = {"model": "sdpa", "family": "sdpa", "options": {}, "task": "mad_recall", "source": "y"}
    why = {"status": "out_of_memory", "reason": "9 GiB are too much", "cell": "f"}
    failed = make.row("accuracy", None, **told, **why)
    # A target that was not reached is no failure.
    short = {"task": "mad_copy", "cell": rows[0]["cell"], "status": "skipped", "reason": "no"}
    rows.append(make.row("steps_to_target", None, **told | short))
    floor = {"task": "mad_recall", "family": "baseline/majority", "options": {}}
    rows += [failed, make.baseline("majority", 0.13, "always v1", **floor)]
    top = {"task": "mad_memorisation", "family": "baseline/ceiling_seen_keys", "options": {}}
    found = table(make, [*rows, make.baseline("ceiling_seen_keys", 0.9, "seen keys", **top)])
    assert found is not None
    assert [line.section for line in found.rows] == ["", BASELINES, ORACLES]
    assert entries(found, "sdpa")["recall", "micro"].notes[0] == "1 setting"
    assert "9 GiB are too much" in entries(found, "sdpa")["recall", "micro"].notes[1]
    assert entries(found, "sdpa")["copying", "micro"].text == "90.0"
    assert entries(found, "majority")["recall", "micro"].text == "13.0"
    assert entries(found, "majority")["recall", "macro"].value is None


def test_other_tasks_have_no_such_table(make: SimpleNamespace) -> None:
    assert table(make, scored(make, "sdpa", "mqar", 0.9)) is None
    assert table(make, scored(make, "sdpa", "mad_copy", 0.9)) is None


def test_pandas_frames_are_left_alone(make: SimpleNamespace) -> None:
    frame = prepare(
        make.frame(*scored(make, "a", "mad_copy", 0.9), *scored(make, "a", "mad_recall", 0.9))
    )
    before = frame.copy()
    assert [*mad_table(frame)]
    pd.testing.assert_frame_equal(frame, before)
