"""Which hardware profiles the machine at hand can use."""

from collections.abc import Sequence

from lra.errors import near

GPU = frozenset({"gpu", "gpus", "cuda", "nvidia", "rtx", "geforce"})
ANY_GPU = "laptop_gpu"
"""The profile that fits a GPU without one of its own."""


def unknown_hardware(name: str, known: Sequence[str]) -> str:
    """Return the answer to a word for hardware that is no profile.

    Args:
        name: The word.
        known: The profiles.
    """
    gpus = [each for each in known if each != "cpu"]
    matches = near(name, known)
    if name.lower() in GPU:
        hint = f": a GPU is one of {', '.join(gpus)}."
    elif matches:
        hint = f": did you mean {' or '.join(map(repr, matches))}?"
    else:
        hint = "."
    return f"unknown hardware {name!r}{hint} Known hardware: {', '.join(known)}. {_here(known)}"


def _here(known: Sequence[str]) -> str:
    """Return which profile works on this machine."""
    import torch

    if not torch.cuda.is_available():
        return "PyTorch finds no GPU on this machine: hardware=cpu runs here."
    device = torch.cuda.get_device_name()
    own = next((each for each in known if each in device.lower()), ANY_GPU)
    return f"PyTorch finds {device} on this machine: hardware={own}."
