"""Which hardware profiles the machine at hand can use."""

from collections.abc import Sequence

CPU = frozenset({"cpu", "processor", "local", "none", "any", "auto", "default", "mac", "mps"})
GPU = frozenset({"gpu", "cuda", "nvidia", "rtx", "geforce"})
ANY_GPU = "laptop_gpu"
"""The profile that fits a GPU without one of its own."""


def of_this_machine(name: str, known: Sequence[str]) -> str:
    """Return a sentence on what `name` may mean, and on what works here.

    Args:
        name: A word for hardware that is no profile.
        known: The profiles.
    """
    import torch

    if not torch.cuda.is_available():
        here = "PyTorch finds no GPU on this machine: hardware=cpu runs here."
    else:
        device = torch.cuda.get_device_name()
        own = next((each for each in known if each in device.lower()), ANY_GPU)
        here = f"PyTorch finds {device} on this machine: hardware={own}."
    gpus = [each for each in known if each != "cpu"]
    meaning = f"GPUs are {', '.join(gpus)}. " if name.lower() in GPU else ""
    return meaning + here
