"""A training step on two processes beside one: rows, what is sent, and keys."""

from statistics import median

import pytest

from lra.composition.hydra_entry import entries
from lra.sweep.cell_list import build
from lra.sweep.execution import execute
from lra.volume import Volume
from runners.parallel_scaling import ParallelScaling

SMALL = (
    "-m", "runner=parallel", "task=listops", "size=tiny", "model=linear", "runner.lengths=[32]",
    "runner.timed_steps=3", "hardware.token_budget=128", "model.backbone.depth=1",
)  # fmt: skip


def swept(*words: str):
    return build(entries([*SMALL, *words], lambda _: None))


def test_two_processes_are_timed_beside_one_and_send_each_gradient_once(tmp_path):
    sweep = swept("hardware.processes=2", f"results={tmp_path}")
    execute(sweep, Volume.quiet)
    for planned in sweep.planned:
        found = {row["metric"]: row for row in sweep.store.rows_of(planned.cell)}
        assert {row["labels"]["processes"] for row in found.values()} == {"2"}
        step, gain = found["train_step_time"], found["scaling_efficiency"]
        tokens = 32 * (8 if planned.cell.columns["mode"] == "weak" else 4)
        assert len(step["samples"]) == len(gain["samples"]) == 3
        assert gain["value"] == median(gain["samples"]) > 0
        assert found["tokens_per_second"]["value"] == pytest.approx(tokens / step["value"])
        each = found["tokens_per_second_per_device"]["value"]
        assert each == pytest.approx(found["tokens_per_second"]["value"] / 2)
        # Among two, a ring of all_reduce hands on each gradient once, 4 bytes for each weight; and
        # 4 bytes for each tensor say whether it had one.
        sent, weights = found["bytes_sent_per_step"]["value"], found["parameters"]["value"]
        assert 0 < sent - 4 * weights < 4 * 100
        assert found["bytes_sent_per_step_in_total"]["value"] == 2 * sent


def test_processes_are_part_of_the_key_where_they_are_what_is_measured():
    words = [
        (), ("hardware.processes=2",), ("hardware.processes=2", "hardware.sharded=true"),
        ("hardware.processes=2", "hardware.context=2"),
    ]  # fmt: skip
    keys = [planned.cell.key for each in words for planned in swept(*each).planned]
    assert len(keys) == len(set(keys)) == 2 * len(words)


def test_loads_that_make_no_sense_are_refused():
    with pytest.raises(ValueError, match="modes is empty: wanted weak, strong or both"):
        ParallelScaling(modes=[])
    with pytest.raises(ValueError, match=r"positive numbers: got \[0\]"):
        ParallelScaling(lengths=[0])
