"""What somebody who watches a training sees of a step. Nothing here moves a number.

Read after the loss, which has waited for the device: the gradient's norm waits for nothing more.
"""

import resource
from pathlib import Path

import torch

from runners.isolation.progress import Progress, TrainingStep
from runners.training.pace import Pace
from runners.training.updates import WeightUpdates
from tasks.task import Batch

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
    """Return what a person, and a dashboard, want to see of the step just taken."""
    rows, *targets = batch.target.shape
    counted = rows * targets[0] if targets else rows
    step_s = pace.step_s or None
    norm = updates.gradient_norm
    return Progress(
        unit="step",
        done=step,
        total=steps,
        loss=loss,
        learning_rate=updates.rate(step - 1),
        speed=counted / step_s if step_s else None,
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
    """Return the resident memory of this process; None on systems that do not say."""
    try:
        return int(_STATM.read_text().split()[1]) * resource.getpagesize()
    except OSError:
        return None
