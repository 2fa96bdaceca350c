"""What is settled before PyTorch is imported: what cells find, and how much is printed."""

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
    """Settle how much is printed, and what cells find: before PyTorch is imported."""
    yield_processors()
    progress.speaking = volume is not Volume.quiet
    isolate.prepare(*PRELOAD)
