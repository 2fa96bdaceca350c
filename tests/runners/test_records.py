import math
import pickle
import re
from dataclasses import replace
from pathlib import Path

import pytest
from program_tables import written

from lra.runners.metrics import METRICS
from lra.runners.records import (
    CELL_COLUMNS,
    COLUMNS,
    LONGEST_REASON,
    SCHEMA,
    Cell,
    Measurement,
    Outcomes,
    Status,
    baseline_model,
    baseline_of,
    canonical,
    digest,
    legible,
    row,
)

DOCUMENT = Path(__file__).parent.parent.parent / "docs" / "results.md"


def make_cell(**changes):
    columns = dict.fromkeys(CELL_COLUMNS, None) | {"runner": "train", "model": "linear", "seed": 0}
    given = {
        "identity": {"model": "linear", "seed": 0},
        "columns": columns,
        "config": {"seed": 0},
        "fingerprint": "abc123",
    }
    return Cell(**(given | changes))


def test_keys_do_not_depend_on_order_and_do_on_values():
    assert digest({"a": 1, "b": [1.5, None]}) == digest({"b": [1.5, None], "a": 1})
    assert digest({"a": 1}) != digest({"a": 2})
    assert digest({"a": 1}) != digest({"a": 1.0})  # the resolved type is part of the identity


def test_the_key_is_fixed_for_ever():
    """A change of this value would make every stored cell invisible."""
    key = make_cell(identity={"model": "performer", "steps": 100, "rate": 0.001, "x": None}).key
    assert key == "aea28773f483aa76"
    assert canonical({"b": 0.001, "a": "é"}) == '{"a":"\\u00e9","b":0.001}'


def test_key_ignores_what_does_not_decide_the_result():
    cell = make_cell()
    other = replace(cell, config={"logger": "x"}, overrides=("a=1",), fingerprint="def")
    assert cell.key == other.key
    assert re.fullmatch(r"[0-9a-f]{16}", cell.key)


ODD = [Path("x"), math.nan, math.inf, -math.inf, "\udc80", b"bytes", {1, 2}, 1j]


@pytest.mark.parametrize(
    ("part", "value"),
    [(part, value) for part in ("identity", "columns", "config") for value in ODD]
    + [("overrides", "\udc80"), ("fingerprint", "\udc80")],
)
def test_a_cell_that_could_not_be_stored_is_refused_at_once(part, value):
    whole = make_cell()
    given = {
        "identity": {"deep": {"list": [1, value]}},
        "columns": {**whole.columns, "seed": value},
        "config": {"deep": [{"option": value}]},
        "overrides": ("seed=0", value),
        "fingerprint": value,
    }[part]
    with pytest.raises(ValueError, match="cannot be stored") as caught:
        replace(whole, **{part: given})
    place = {"identity": "identity.deep.list.1", "columns": "columns.seed"}.get(part, part)
    assert str(caught.value).startswith(place)


@pytest.mark.parametrize("odd", [{"labels": {"split": "\udc80"}}, {"model": "\ud800"}])
def test_a_row_that_could_not_be_stored_is_refused_where_it_is_made(odd):
    with pytest.raises(ValueError, match="cannot be stored"):
        Measurement(metric="accuracy", value=0.5, **odd)


@pytest.mark.parametrize(
    ("said", "line"),
    [
        ("a\nb\t c", "a b c"),
        ("half \udc80 a surrogate", "half \\udc80 a surrogate"),
        ("nul \0, escape \x1b[31m", "nul \\x00, escape \\x1b[31m"),
        ("\u202eright to left", "\\u202eright to left"),
        ("größer 😀", "größer 😀"),
        ("x" * 10_000_000, f"{'x' * 998} … {'x' * 998}"),
    ],
)
def test_any_text_becomes_a_line_and_any_reason_can_be_stored(said, line):
    assert legible(said) == line
    row = Measurement(metric="accuracy", status=Status.crashed, reason=said)
    assert len(row.reason) <= LONGEST_REASON
    assert legible(row.reason.encode().decode()) == line  # it can be encoded, and says the same


def test_a_cell_with_wrong_columns_is_refused_at_once():
    columns = dict(make_cell().columns)
    del columns["seed"]
    with pytest.raises(ValueError, match=r"missing \['seed'\], unknown \['sede'\]"):
        make_cell(columns=columns | {"sede": 1})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"metric": "time"}, "status ok needs a value"),
        (
            {"metric": "time", "value": 1.0, "status": Status.timeout, "reason": "x"},
            "status ok needs a value",
        ),
        ({"metric": "time", "status": Status.timeout}, "needs a reason"),
        ({"metric": "acuracy", "value": 1.0}, "unknown metric 'acuracy'; near matches: accuracy"),
        ({"metric": "zzz", "value": 1.0}, "unknown metric 'zzz'"),
        ({"metric": "loss", "value": math.nan}, "finite"),
        ({"metric": "loss", "value": math.inf}, "finite"),
        ({"metric": "time", "value": 1.0, "samples": (1.0, math.nan)}, "finite"),
    ],
)
def test_rows_that_say_nothing_are_refused(given, message):
    with pytest.raises(ValueError, match=message):
        Measurement(**given)


def test_a_row_has_exactly_the_columns_and_the_unit_of_its_metric():
    measurement = Measurement(metric="time", value=0.5, samples=(0.5, 0.6), labels={"a": "b"})
    made = row(make_cell(), measurement, "2026-01-01T00:00:00+00:00")
    assert tuple(made) == COLUMNS
    assert made["schema"] == SCHEMA
    assert made["unit"] == "s"
    assert made["samples"] == [0.5, 0.6]
    assert made["labels"] == {"a": "b"}
    assert made["model"] == "linear"
    assert made["cell"] == make_cell().key


def test_a_baseline_names_itself():
    measurement = Measurement(metric="accuracy", value=0.2, model="baseline/majority")
    assert row(make_cell(), measurement, "")["model"] == "baseline/majority"


def test_a_baseline_is_known_by_its_model_column() -> None:
    assert baseline_model("majority") == "baseline/majority"
    assert baseline_of("baseline/majority") == "majority"
    assert baseline_of("performer") is None
    assert baseline_of("my baseline/majority") is None


def test_what_travels_between_processes_arrives():
    for thing in (
        Measurement(metric="loss", value=1.0, labels={"split": "test"}),
        Outcomes(split="test", index=[0], hit=[True], nll=[0.5]),
    ):
        assert pickle.loads(pickle.dumps(thing)) == thing  # noqa: S301


def test_metrics_are_documented_by_themselves():
    for name, metric in METRICS.items():
        assert re.fullmatch(r"[a-z0-9_]+", name)
        assert metric.unit
        assert len(metric.meaning) > 10


def tables(text):
    """Return the tables of a Markdown text as lists of rows of cells."""
    found, rows = [], []
    for line in [*text.splitlines(), ""]:
        if line.startswith("|"):
            rows.append([cell.strip() for cell in line.strip("|").split(" | ")])
        elif rows:
            found.append(rows)
            rows = []
    return found


def named(heading):
    return next(rows for rows in tables(DOCUMENT.read_text()) if rows[0][0] == heading)


def test_the_document_lists_every_column_in_order():
    assert [cells[0].strip("`") for cells in named("column")[2:]] == list(COLUMNS)
    assert f"version {SCHEMA}" in DOCUMENT.read_text()


def test_the_document_lists_every_status():
    part = DOCUMENT.read_text().partition("\n## Status\n")[2].partition("\n## ")[0]
    assert re.findall(r"^- `(\w+)`:", part, re.MULTILINE) == [each.value for each in Status]


def test_the_document_lists_every_metric_with_unit_and_meaning():
    text = DOCUMENT.read_text(encoding="utf-8")
    assert written(text) == text, "make pages writes this table"
    better = {True: "higher", False: "lower", None: "–"}
    listed = named("metric")
    assert listed[2:] == [
        [
            f"`{name}`",
            metric.unit,
            better[metric.higher_is_better],
            metric.meaning.replace("|", "\\|"),
        ]
        for name, metric in METRICS.items()
    ]


@pytest.mark.parametrize(
    ("metric", "value"),
    [("accuracy", 7.0), ("accuracy", -0.1), ("time", 0.0), ("time_ratio", 0.0),
     ("peak_tensor_bytes", -1.0), ("batch_size", 0.0), ("output_error", -0.5)],
)  # fmt: skip
def test_a_number_that_nothing_can_measure_is_refused(metric, value):
    with pytest.raises(ValueError, match=f"{metric} must be from .*: got"):
        Measurement(metric=metric, value=value)
    good = METRICS[metric].most
    with pytest.raises(ValueError, match=f"{metric} must be from"):
        Measurement(metric=metric, value=good, samples=(good, value))


@pytest.mark.parametrize(
    ("metric", "value"),
    [("accuracy", 0.0), ("accuracy", 1.0), ("state_bytes", 0.0), ("stalls", 0.0), ("span", 0.0),
     ("utilisation", 1.3), ("peer_error", 0.0), ("initial_parameters", 0.0), ("train_loss", -0.5),
     ("compile_time", 0.0), ("train_time", 0.0), ("data_wait", 0.0)],
)  # fmt: skip
def test_a_number_that_runners_yield_is_taken(metric, value):
    assert Measurement(metric=metric, value=value).value == value
