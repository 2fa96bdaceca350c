from types import SimpleNamespace

import pandas as pd
import pytest

from lra.reports.rows import EQUAL, CostPoint, by_setting, cost_points, cost_rows, prepare
from lra.reports.statistics.power_law import Reach
from lra.reports.style import ModelStyle, ReportStyle, using
from lra.reports.tables.costs import (
    crossover_table,
    efficiency_table,
    growth_table,
    measured_crossover,
    modes,
    references,
    significant,
)
from lra.reports.tables.table import Entry, Table
from lra.sweep.model_names import with_backbones


def points(rows: pd.DataFrame) -> list[CostPoint]:
    found = by_setting(cost_rows(prepare(rows)))
    assert len(found) == 1
    return cost_points(found[0].rows)


def entry(table: Table | None, section: str, model: str, column: int = 0) -> Entry:
    (row,) = [r for r in table.rows if section in r.section and r.title == model]
    return row.entries[column]


def sweep(make: SimpleNamespace, **columns: object) -> pd.DataFrame:
    """Linear takes 1 ms per 128 tokens; SDPA is quadratic and meets it at 512."""
    rows = []
    for n in (256, 512, 1024, 2048):
        linear, sdpa = n / 128e3, n * n / 512 / 128e3
        rows += make.timing("linear", n, linear, references={"sdpa": sdpa}, batch=2, **columns)
        rows += make.timing("sdpa", n, sdpa, references={"softmax": 2 * sdpa}, batch=2, **columns)
    return make.frame(*rows)


def test_speed_is_reference_over_model_from_the_paired_ratio(make: SimpleNamespace) -> None:
    rows = make.timing("linear", 1024, 0.010, references={"sdpa": 0.040}, noise=0.05)
    found = entry(efficiency_table(points(make.frame(*rows)), "step"), "speed relative", "linear")
    assert found.value == pytest.approx(4.0, rel=0.1)
    (ratio,) = [r for r in rows if r["metric"] == "time_ratio"]
    assert found.value == pytest.approx(1 / ratio["value"])
    assert found.interval.low < found.value < found.interval.high
    assert found.interval.source == "timing noise"
    assert found.text == "4.0"


def test_a_factor_that_may_be_one_is_marked(make: SimpleNamespace) -> None:
    rows = make.timing("linear", 256, 0.01, references={"sdpa": 0.01})
    for row in rows:
        if row["metric"] == "time_ratio":
            row["samples"] = [0.9, 1.1, 0.95, 1.05, 0.97, 1.03, 1.0]
    found = entry(efficiency_table(points(make.frame(*rows)), "step"), "speed relative", "linear")
    assert found.text == "≈ 1.0"


def test_the_fraction_of_what_the_machine_could_do(make: SimpleNamespace) -> None:
    rows = make.timing("linear", 512, 0.010)
    plain = efficiency_table(points(make.frame(*rows)), "step")
    assert not any("could do" in row.section for row in plain.rows)
    assert "could do" not in plain.caption
    cell = {column: rows[0][column] for column in ("runner", "mode", "model", "length")}
    numbers = {"flops": 4e6, "flops_per_second": 4e8, "utilisation": 0.2, "bandwidth": 1e9}
    for saved, text in ((1e6, "28 (memory)"), (1e5, "20")):
        more = [make.row(name, each, **cell) for name, each in numbers.items()]
        more.append(make.row("saved_bytes", saved, **cell))
        table = efficiency_table(points(make.frame(*rows, *more)), "step")
        assert entry(table, "could do", "linear").text == text
        assert "could do" in table.caption


def test_speed_against_an_unpaired_reference_is_a_mark_and_no_chain(make: SimpleNamespace) -> None:
    table = efficiency_table(points(sweep(make)), "step")
    found = entry(table, "speed relative to literal", "linear")
    assert (found.text, found.value) == ("–", None)
    assert found.notes == ("softmax was not timed interleaved with this model",)
    assert entry(table, "speed relative to exact", "sdpa").text == "ref."


def test_rate_counts_sequences_and_memory_is_of_the_batch(make: SimpleNamespace) -> None:
    rows = make.timing("linear", 256, 0.5, batch=8, peak=3 * 2.0**20)
    table = efficiency_table(points(make.frame(*rows)), "step")
    assert entry(table, "sequences per second", "linear").value == pytest.approx(16.0)
    assert entry(table, "MiB", "linear").text == "3.00"
    assert "batch size 8 at every length" in table.caption


def test_failures_are_marks_with_reasons(make: SimpleNamespace) -> None:
    cell = {"runner": "scaling", "mode": "step", "length": 512}
    rows = [
        *make.timing("linear", 256, 0.01, references={"softmax": 0.02}),
        *make.timing("linear", 512, 0.02),
        make.failed("time_ratio", "linear", "skipped", "step_limit_s=10", **cell,
                    labels={"reference": "softmax"}),
        *make.timing("performer", 256, 0.01, references={"softmax": 0.02}),
        make.failed("time", "performer", "out_of_memory", "needs 5 GiB", **cell),
        *make.timing("identity", 256, 0.01),
    ]  # fmt: skip
    table = efficiency_table(points(make.frame(*rows)), "step")
    assert entry(table, "speed", "linear", 1).text == "skipped"
    assert entry(table, "speed", "linear", 1).notes == (
        "there is no ratio, because softmax failed",
        "step_limit_s=10",
    )
    for section in ("speed", "sequences", "MiB", "memory relative"):
        found = entry(table, section, "performer", 1)
        assert (found.text, found.value, found.status) == ("OOM", None, "out_of_memory")
        assert found.notes == ("needs 5 GiB",)
        assert entry(table, section, "identity", 1).notes == ("not run",)


def test_lengths_are_columns_in_order(make: SimpleNamespace) -> None:
    table = efficiency_table(points(sweep(make)), "step")
    assert [(c.title, c.key) for c in table.columns] == [
        ("256", "256"), ("512", "512"), ("1,024", "1024"), ("2,048", "2048"),
    ]  # fmt: skip


def test_modes_and_references_present(make: SimpleNamespace) -> None:
    found = points(make.frame(
        *make.timing("linear", 256, 0.01, mode="forward", references={"sdpa": 1.0}),
        *make.timing("linear", 256, 0.01, references={"softmax": 1.0, "own": 1.0}),
    ))  # fmt: skip
    assert modes(found) == ["step", "forward"]
    assert references(found) == ["softmax", "sdpa", "own"]
    assert efficiency_table(found, "decode") is None


def test_crossover_from_paired_ratios(make: SimpleNamespace) -> None:
    found = points(sweep(make))
    own = [p for p in found if p.model == "linear"]
    assert measured_crossover(own, "sdpa").length == pytest.approx(512)
    assert measured_crossover(own, "softmax").reach is Reach.unknown
    table = crossover_table(found)
    assert [c.title for c in table.columns] == ["faster than softmax from", "faster than sdpa from"]
    texts = {r.title: [e.text for e in r.entries] for r in table.rows}
    assert texts == {"linear": ["–", "512 [512, 512]"], "sdpa": ["≤ 256", "ref."]}


def test_the_reference_is_itself_whatever_a_style_calls_it(make: SimpleNamespace) -> None:
    with using(ReportStyle(models={"sdpa": ModelStyle(name="SDPA")})):
        found = points(sweep(make))
        speed = entry(efficiency_table(found, "step"), "speed relative to SDPA", "SDPA")
        crossing = entry(crossover_table(found), "", "SDPA", 1)
    assert speed.text == crossing.text == "ref."
    assert speed.notes == crossing.notes == ("the reference itself",)


def test_crossover_says_where_it_is_blind(make: SimpleNamespace) -> None:
    cell = {"runner": "scaling", "mode": "step", "length": 1024}
    rows = [
        *make.timing("linear", 256, 0.02, references={"sdpa": 0.01}),
        *make.timing("linear", 512, 0.02, references={"sdpa": 0.01}),
        make.failed("time", "linear", "timeout", "after 60 s", **cell),
    ]
    table = crossover_table(points(make.frame(*rows)))
    found = table.rows[0].entries[0]
    assert found.text == "not up to 512"
    assert found.notes == ("the ratio is unknown at 1,024 tokens", "after 60 s")
    assert crossover_table(points(make.frame(*make.timing("linear", 256, 0.1)))) is None


def test_growth_is_of_one_sequence_whatever_the_batch(make: SimpleNamespace) -> None:
    rows = []
    for n in (256, 512, 1024, 2048):  # a token budget: every batch takes the same time
        rows += make.timing("linear", n, 0.1, batch=8192 // n, peak=1e6)
    table = growth_table(points(make.frame(*rows)))
    time, last, memory, _ = table.rows[0].entries
    assert time.value == pytest.approx(1.0)
    assert last.text == "1.00"
    assert memory.value == pytest.approx(1.0)
    assert time.facts == {"shortest": 256, "longest": 2048, "points": 4}
    assert growth_table(points(make.frame(*make.timing("linear", 256, 0.1)))) is None


def test_several_seeds_pool_their_samples(make: SimpleNamespace) -> None:
    rows = make.frame(
        *make.timing("linear", 256, 0.010), *make.timing("linear", 256, 0.030, seed=1)
    )
    (point,) = points(rows)
    assert point.time.value == pytest.approx(0.020)
    assert len(point.time.samples) == 22


def test_a_cell_that_broke_off_counts_as_failed(make: SimpleNamespace) -> None:
    rows = make.timing("linear", 256, 0.010)
    cell = {"runner": "scaling", "mode": "step", "length": 256}
    why = "KeyError: x; traceback in results/cells/ba/log.txt"
    rows.append(make.failed("time", "linear", "crashed", why, **cell))
    (point,) = points(make.frame(*rows))
    assert (point.time.status, point.time.reason) == ("crashed", "KeyError: x")
    assert point.memory.value is None


@pytest.mark.parametrize(
    ("second", "why"),
    [({"batch": 8, "seed": 1}, "batch sizes"), ({"cell": "other"}, "2 configurations")],
)
def test_what_must_not_be_merged_is_marked(
    make: SimpleNamespace, second: dict[str, object], why: str
) -> None:
    rows = make.frame(
        *make.timing("linear", 256, 0.010), *make.timing("linear", 256, 0.030, **second)
    )
    (point,) = points(rows)
    assert point.time.value is None
    assert why in point.time.reason
    assert entry(efficiency_table([point], "step"), "sequences", "linear").text == "ambiguous"


def test_costs_of_different_settings_are_kept_apart(make: SimpleNamespace) -> None:
    rows = make.frame(
        *make.timing("linear", 256, 0.1),
        *make.timing("linear", 256, 0.2, causal=True),
        *make.timing("linear", 256, 0.3, device="H200", precision="bfloat16"),
    )
    found = by_setting(cost_rows(prepare(rows)))
    assert [s.suffix for s in found] == [
        "-bidirectional-H200-bfloat16", "-bidirectional-cpu-float32", "-causal-cpu-float32",
    ]  # fmt: skip
    assert [p.time.value for s in found for p in cost_points(s.rows)] == [0.3, 0.1, 0.2]


def test_missing_batch_size_leaves_no_cost_per_sequence(make: SimpleNamespace) -> None:
    rows = [r for r in make.timing("linear", 256, 0.1) if r["metric"] != "batch_size"]
    table = efficiency_table(points(make.frame(*rows)), "step")
    assert entry(table, "sequences", "linear").notes == (
        "the cost per sequence is unknown, because the rows lack batch_size",
    )


@pytest.mark.parametrize(
    ("value", "digits", "wanted"),
    [
        (1234.5, 3, "1,234"),
        (0.04567, 2, "0.046"),
        (9.996, 3, "10.00"),
        (19.6, 2, "20"),
        (0.0, 2, "0"),
    ],
)
def test_significant_digits(value: float, digits: int, wanted: str) -> None:
    assert significant(value, digits) == wanted


def test_a_table_has_one_reference_and_that_of_a_model_with_its_own_positions_beside_it(
    make: SimpleNamespace,
) -> None:
    """Positions that score every pair make the reference of these models another computation."""
    rows = make.frame(
        *make.timing("linear", 1024, 0.005, references={"sdpa": 0.010}, cell="a"),
        *make.timing("transformer_xl", 1024, 0.066, references={"sdpa": 0.060}, cell="b"),
        *make.timing("wide", 1024, 0.400, references={"sdpa": 0.400}, cell="c"),
    )
    backbones = {"a": {}, "b": {"positions": "transformer_xl"}, "c": {"width": 512}}
    cells = {key: {"identity": {"backbone": node}} for key, node in backbones.items()}
    found = points(with_backbones(rows, cells))
    assert references(found) == ["sdpa", f"sdpa{EQUAL}"]
    table = efficiency_table(found, "step")
    of_all = "speed relative to exact attention through SDPA"
    plain = entry(table, of_all, "transformer_xl")
    assert plain.value == pytest.approx(0.010 / 0.066)
    assert plain.notes == ("the time is compared with times of sdpa from runs of other models",)
    assert entry(table, f"speed relative to sdpa{EQUAL}", "transformer_xl").value == pytest.approx(
        0.060 / 0.066
    )
    assert entry(table, of_all, "linear").value == pytest.approx(2.0)
    assert entry(table, of_all, "wide").value == pytest.approx(1.0)
    raw = efficiency_table(points(rows), "step")
    assert entry(raw, of_all, "transformer_xl").value == pytest.approx(0.060 / 0.066)
