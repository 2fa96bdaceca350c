"""Settings that must be made before PyTorch is imported."""

from lra.conf.processors import yield_processors
from lra.runners.isolation import isolate
from lra.terminal import progress
from lra.terminal.volume import Volume

PRELOAD = (
    "torch._dynamo",  # which PyTorch loads at the first custom gradient: a second in every cell
    "lra.sweep.cells",
    "lra.runners.measures.train",  # with what trains, which other runners need, too
)
"""What the fork server imports once, besides torch, so that a cell starts in milliseconds."""


def ready(volume: Volume) -> None:
    """Set how much is printed, and what the fork server imports. Call it before importing torch."""
    yield_processors()  # on a busy machine, idle threads of PyTorch will sleep
    progress.speaking = volume is not Volume.quiet
    isolate.prepare(*PRELOAD)
