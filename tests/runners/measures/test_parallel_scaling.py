"""A training step on two processes beside one: rows, what is sent, and keys."""

import os
from statistics import median

import pytest

from lra.composition.hydra_entry import entries
from lra.execution.in_memory import execute
from lra.models.mixer import Unsupported
from lra.runners.measurement.hardware import HardwareProfile
from lra.runners.measures.parallel_scaling import ParallelScaling, ScalingLoad, batch_of
from lra.sweep.cell_list import build
from lra.terminal.volume import Volume

SMALL = (
    "-m", "runner=parallel", "task=listops", "size=tiny", "model=linear", "runner.lengths=[32]",
    "runner.timed_steps=3", "hardware.token_budget=128", "model.backbone.depth=1",
)  # fmt: skip


def swept(*words: str):
    return build(entries([*SMALL, *words]))


def test_two_processes_are_timed_beside_one_and_send_each_gradient_once(tmp_path):
    sweep = swept("hardware.processes=2", "runner.modes=[weak]", f"results={tmp_path}")
    execute(sweep, Volume.quiet)
    (planned,) = sweep.planned
    found = {row["metric"]: row for row in sweep.store.rows_of(planned.cell)}
    assert {row["labels"]["processes"] for row in found.values()} == {"2"}
    step, gain = found["train_step_time"], found["scaling_efficiency"]
    assert len(step["samples"]) == len(gain["samples"]) == 3
    assert gain["value"] == median(gain["samples"]) > 0
    assert found["tokens_per_second"]["value"] == pytest.approx(32 * 8 / step["value"])
    each = found["tokens_per_second_per_device"]["value"]
    assert each == pytest.approx(found["tokens_per_second"]["value"] / 2)
    # Among two, a ring of all_reduce hands on each gradient once, 4 bytes for each weight; and
    # 4 bytes for each tensor say whether it had one.
    sent, weights = found["bytes_sent_per_step"]["value"], found["parameters"]["value"]
    assert 0 < sent - 4 * weights < 4 * 100
    assert found["bytes_sent_per_step_in_total"]["value"] == 2 * sent


def test_processes_are_part_of_the_key_where_they_are_what_is_measured():
    words = [(), ("hardware.processes=2",), ("hardware.processes=2", "hardware.sharded=true")]
    keys = [planned.cell.key for each in words for planned in swept(*each).planned]
    assert len(keys) == len(set(keys)) == 2 * len(words)


def test_processes_without_a_core_each_have_no_efficiency(tmp_path):
    many = len(os.sched_getaffinity(0)) + 1
    words = ("runner.modes=[strong]", f"hardware.processes={many}", f"results={tmp_path}")
    sweep = swept(*words, f"hardware.token_budget={32 * many}")
    execute(sweep, Volume.quiet)
    (planned,) = sweep.planned
    found = {row["metric"]: row for row in sweep.store.rows_of(planned.cell)}
    gain, crowd = (
        found["scaling_efficiency"],
        f"{many} processes with {many} threads in total share",
    )
    assert (gain["status"], gain["value"]) == ("skipped", None)
    assert gain["reason"].startswith(crowd)
    assert found["tokens_per_second"]["labels"]["disturbed"].startswith(crowd)
    assert "disturbed" not in found["bytes_sent_per_step"]["labels"]  # which are as they are


@pytest.mark.parametrize(("load", "wanted"), [("weak", 16), ("strong", 4)])
def test_a_batch_is_as_large_as_its_load_says(load, wanted):
    hardware = HardwareProfile(name="x", processes=4, token_budget=128)
    assert batch_of(ScalingLoad[load], 32, hardware) == wanted


def test_a_batch_that_has_no_sequence_for_each_process_is_refused():
    hardware = HardwareProfile(name="x", processes=4, token_budget=128)
    with pytest.raises(Unsupported, match="has only 1 of 128 tokens"):
        batch_of(ScalingLoad.strong, 128, hardware)


def test_loads_that_make_no_sense_are_refused():
    with pytest.raises(ValueError, match="modes: got an empty list; wanted weak, strong or both"):
        ParallelScaling(modes=[])
    with pytest.raises(ValueError, match=r"got .0.*positive numbers"):
        ParallelScaling(lengths=[0])
