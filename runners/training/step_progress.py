"""The progress of a training after a step, for the terminal and dashboards."""

import resource
from pathlib import Path

import torch

from lra.runners.isolation.progress import Progress, TrainingStep
from lra.runners.training.pace import Pace
from lra.runners.training.updates import WeightUpdates
from lra.tasks.task import Batch

_STATM = Path("/proc/self/statm")


def step_progress(
    batch: Batch,
    *,
    step: int,
    steps: int,
    loss: float,
    pace: Pace,
    left_s: float | None,
    updates: WeightUpdates,
    wait_share: float,
    device: torch.device,
) -> Progress:
    """Return the progress after the last step, for the terminal and dashboards.

    Args:
        batch: The whole batch of the step.
        step: Number of steps so far.
        steps: Number of all steps.
        loss: Loss of the step.
        pace: Measures seconds per step.
        left_s: Estimated seconds to the end; None: unknown.
        updates: Knows the learning rate and the norm of the gradient.
        wait_share: Fraction of the training time that was spent waiting for data.
        device: The device of the model.
    """
    rows, *targets = batch.target.shape  # one target for each row, or for each of its tokens
    items = rows * targets[0] if targets else rows
    step_s = pace.step_s or None
    norm = updates.gradient_norm
    return Progress(
        unit="step",
        done=step,
        total=steps,
        loss=loss,
        learning_rate=updates.rate(step - 1),
        speed=items / step_s if step_s else None,
        speed_unit="tokens" if targets else "examples",
        left_s=left_s,
        step=TrainingStep(
            gradient_norm=None if norm is None else float(norm),
            examples_per_s=rows / step_s if step_s else None,
            tokens_per_s=batch.tokens.numel() / step_s if step_s else None,
            step_time_s=step_s,
            data_wait_share=wait_share,
            process_bytes=_resident_bytes(),
            gpu_bytes=torch.cuda.memory_allocated(device) if device.type == "cuda" else None,
        ),
    )


def _resident_bytes() -> int | None:
    """Return the resident memory of this process; None if the system does not report it."""
    try:
        return int(_STATM.read_text().split()[1]) * resource.getpagesize()
    except OSError:
        return None
