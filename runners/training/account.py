"""What a training cost: the rows behind its scores."""

from collections.abc import Iterator
from statistics import median
from typing import TYPE_CHECKING

from runners.measurement.measure import process_peak_bytes
from runners.parallel.crowding import crowded
from runners.records import DISTURBED, Measurement
from tasks.task import Windowed

if TYPE_CHECKING:
    from runners.training.loop import Trainer


def cost_rows(trainer: "Trainer") -> Iterator[Measurement]:
    """Yield what a training cost so far."""
    times = tuple(trainer.step_times)
    spent = trainer.spent_s + trainer.window_s
    count = sum(p.numel() for p in trainer.model.parameters() if p.requires_grad)
    together = trainer.together
    crowd = "" if together is None else crowded(trainer.ranks, trainer.device)
    trust = {DISTURBED: crowd} if crowd else {}
    if times:
        step = median(times)
        yield Measurement(metric="train_step_time", value=step, samples=times, labels=trust)
    yield Measurement(metric="train_time", value=spent, labels=trust)
    yield Measurement(metric="data_wait", value=trainer.waited_s / max(spent, 1e-9))
    yield Measurement(metric="examples_seen", value=float(trainer.examples))
    if trainer.config.stages and isinstance(trainer.task, Windowed):
        tokens = trainer.stages.tokens(trainer.step, trainer.task)
        yield Measurement(metric="tokens_seen", value=float(tokens))
    yield Measurement(metric="parameters", value=float(count))
    peak = trainer.ranks.largest(float(process_peak_bytes()))
    yield Measurement(metric="process_peak_bytes", value=peak)
    if together is not None and together.tokens:
        speed = together.tokens / max(spent - together.begun_s, 1e-9)
        yield Measurement(metric="tokens_per_second", value=speed, labels=trust)
        each = speed / trainer.ranks.size
        yield Measurement(metric="tokens_per_second_per_device", value=each, labels=trust)
        if together.bytes_sent is not None:
            yield Measurement(metric="bytes_sent_per_step", value=together.bytes_sent)
