"""Steps to a target as a table: a mean only if every run reached it."""

from lra.reports.rows import prepare
from lra.reports.sections.target_steps import target_steps

FACTS = {"task": "mqar", "length": 64, "causal": True, "runner": "train", "mode": "train"}


def rows_of(make, model, results, target="accuracy at least 0.99"):
    """Return the rows of one run for each seed: its steps, or the status of a run without."""
    rows = []
    for seed, result in enumerate(results):
        told = {**FACTS, "model": model, "seed": seed, "labels": {"stop_at": target}}
        missed = {**told, "labels": {**told["labels"], "threshold": target}}
        if result == "diverged":
            rows.append(make.failed("train_loss", status="diverged", reason="inf", **told))
            continue
        rows.append(make.row("accuracy", 0.5, **told))
        if result is None:
            rows.append(
                make.failed("steps_to_target", status="skipped", reason="0.43 at best", **missed)
            )
        else:
            rows.append(make.row("steps_to_target", float(result), **missed))
    return rows


def test_no_mean_is_over_runs_that_reached_it_alone(make):
    frame = prepare(
        make.frame(
            *rows_of(make, "softmax", [100, 300, 200]),
            *rows_of(make, "linear", [100, None, 1500]),
            *rows_of(make, "gla", [None, "diverged"]),
            *rows_of(make, "performer", [40], target="loss at most 0.1"),
            make.row("accuracy", 0.9, **FACTS, model="rwkv6", seed=0, labels={"split": "test"}),
        )
    )
    (part,) = target_steps(frame)
    columns = [column.group for column in part.table.columns]
    assert [group.rsplit(", ", 1)[1] for group in columns] == [
        "accuracy at least 0.99", "loss at most 0.1",
    ]  # fmt: skip
    entries = {row.title: row.entries for row in part.table.rows}
    assert len(entries) == 4  # the run without a target is in no line
    whole, some, none = (entries[name][0] for name in ("softmax", "linear", "gla"))
    assert (whole.text, whole.value) == ("200", 200.0)
    assert (whole.facts["low"], whole.facts["high"], whole.facts["seeds"]) == (100, 300, 3)
    assert (some.text, some.value) == ("2 of 3 reached", None)
    assert some.notes == (
        "the median over seeds is 1,500 steps, with failures as infinity",
        "steps of the others: 100, 1,500",
        "0.43 at best",
    )
    assert some.facts["median"] == 1500
    assert (none.text, none.value) == ("0 of 2 reached", None)
    assert none.notes == ("0.43 at best", "inf")
    assert [entry.text for entry in entries["performer"]] == ["–", "40"]


def test_trainings_without_a_target_have_no_table(make):
    row = make.row("accuracy", 0.9, **FACTS, model="softmax", seed=0, labels={"split": "test"})
    assert not [*target_steps(prepare(make.frame(row)))]
