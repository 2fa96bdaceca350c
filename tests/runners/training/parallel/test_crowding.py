"""Times of ranks that have no core for each thread are marked as such."""

from types import SimpleNamespace

import pytest
import torch

from lra.conf.processors import processors
from lra.runners.measurement.witnesses import Counters
from lra.runners.training.loop import cost_rows
from lra.runners.training.parallel.crowding import crowding_reason


@pytest.mark.parametrize("many", [False, True])
def test_times_of_a_training_whose_ranks_share_cores_are_marked(many: bool) -> None:
    cores = processors()
    size = cores * 2 if many else 1  # each with one thread or more
    ranks = SimpleNamespace(size=size, gathered=lambda value: [value] * size, largest=float)
    threads, device = torch.get_num_threads(), torch.device("cpu")
    counters = Counters()
    trainer = SimpleNamespace(
        begun=counters.process_times(), counters=counters,
        step_times=[0.1], spent_s=2.0, window_s=0.0, waited_s=0.0, examples=4, ranks=ranks,
        model=torch.nn.Linear(2, 2), config=SimpleNamespace(stages=[]), task=None, device=device,
        together=SimpleNamespace(tokens=80, begun_s=0.0, bytes_sent=None),
    )  # fmt: skip
    found = {row.metric: row.labels.get("disturbed", "") for row in cost_rows(trainer)}
    why = (
        f"{size} processes with {size * threads} threads in total share {cores} core"
        if many
        else ""
    )
    times = ("train_step_time", "train_time", "tokens_per_second", "tokens_per_second_per_device")
    for metric in times:
        assert found[metric].startswith(why)
        assert bool(found[metric]) == many
    assert not found["parameters"]
    assert crowding_reason(ranks, torch.device("cuda")) == ""
