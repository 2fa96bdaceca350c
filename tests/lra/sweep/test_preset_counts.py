"""The presets of published tables say their hours at once, from counts that are still true."""

import re
from pathlib import Path

import pytest

from lra.composition.hydra_entry import entries
from lra.runners.store import Store
from lra.sweep.cell_list import build
from lra.sweep.costs import Costs
from lra.sweep.estimate import announcement, forecasts
from lra.sweep.forecast import Forecaster
from lra.sweep.overview import overview
from lra.sweep.preset_counts import shipped_counts

AGAIN = "count again: LRA_DATA=/tmp/nodata python tests/benchmarks/preset_counts.py"


def sweep(*words: str):
    return build(entries(["-m", *words]), elsewhere=True)


@pytest.fixture(autouse=True)
def no_time(monkeypatch) -> None:
    for limit in ("COUNTING_S", "LISTED_S"):
        monkeypatch.setattr(f"lra.sweep.estimate.{limit}", 0.0)


@pytest.mark.parametrize("hardware", ["cpu", "h100"])
def test_hours_of_table_1_and_2_are_known_without_counting(hardware, tmp_path: Path) -> None:
    words = (f"hardware={hardware}", f"results={tmp_path}")
    table1 = ("+experiment=lra_table1", "seed=0", "runner=train", "model=sinkhorn")
    for preset in (table1, ("+experiment=lra_table2", "model=linear")):
        found = forecasts(sweep(*preset, *words).planned, Store(tmp_path), "any")
        assert all(each.seconds for _, each in found), AGAIN
        line = announcement(found)
        assert line.endswith("(counted)")
        assert ("GPU-hours" in line) is (hardware == "h100")


def test_what_is_shipped_is_what_is_counted() -> None:
    words = ("+experiment=lra_table1", "seed=0", "runner=train", "task=image", "hardware=h100")
    costs = Costs()
    for planned in sweep(*words, "model=linear").planned:
        Forecaster((), costs).of(planned)
    counted = costs.counted()
    assert len(counted) == 2
    for key, numbers in counted.items():
        assert shipped_counts()[key] == pytest.approx(numbers, rel=0.02), AGAIN


def test_a_dry_run_has_hours_and_memory_for_a_machine_that_is_not_here(tmp_path: Path) -> None:
    words = ("+experiment=lra_table1", "seed=0", "runner=train", "task=pathfinder")
    words = (*words, "model=softmax,linear", "hardware=h100", f"results={tmp_path}")
    lines = [*overview(sweep(*words, "hardware.memory_limit_bytes=8000000000"))]
    assert re.search(
        r"; \d h( \d+ min)?; the model needs 13.\d GiB of memory, but only 7.45 GiB are",
        lines[0],
    )
    assert "are available" not in lines[1]


@pytest.mark.parametrize(
    ("preset", "hours"), [("lra_table1", (600, 900)), ("lra_nystrom", (5, 15))]
)
def test_a_published_table_fits_one_gpu_and_says_its_hours(preset, hours, tmp_path: Path) -> None:
    words = (f"+experiment={preset}", "seed=0", "runner=train", "hardware=h100")
    found = forecasts(sweep(*words, f"results={tmp_path}").planned, Store(tmp_path), preset)
    assert [p.cell.columns for p, each in found if each.fits is not True] == [], AGAIN
    low, high = hours
    assert low < sum(each.seconds for _, each in found) / 3600 < high


def test_a_task_with_masks_has_a_time(tmp_path: Path, monkeypatch) -> None:
    for limit in ("COUNTING_S", "LISTED_S"):
        monkeypatch.setattr(f"lra.sweep.estimate.{limit}", 60.0)
    words = ("task=reversal", "model=sdpa", "hardware=h100", f"results={tmp_path}")
    (line, *_) = overview(sweep(*words))
    assert re.search(r"never run; [\d.]+ (s|min)", line), line


def test_a_refused_cell_is_shown_as_such(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("lra.sweep.estimate.COUNTING_S", 60.0)
    words = ("task=mqar,listops", "model=fnet", f"results={tmp_path}")
    lines = [*overview(sweep(*words))]
    assert sum("  refused  train" in line and "causal" in line for line in lines[:2]) == 1
