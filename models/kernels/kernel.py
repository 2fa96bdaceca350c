"""What a public kernel is: the operation it computes, its package, its limits and its call."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module, metadata
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class PublicKernel:
    """A public kernel for one of our operations.

    `call` gets the function of the package and then the arguments of the operation, by name; it
    returns what the operation returns. A test puts another function in the package's place.
    """

    operation: str
    """Name of the operation, as in `lra.models.ops`."""
    package: str
    """Distribution on PyPI that has the kernel."""
    versions: tuple[str, ...]
    """Versions that are supported, by their first numbers: 0.6 stands for 0.6.0, 0.6.1, ..."""
    function: str
    """Where the function is: module:name."""
    takes: Callable[..., str]
    """Returns "" for arguments that the kernel can compute, otherwise the reason why not. It must
    not wait for the device: it may read shapes, dtypes and options, but no values of tensors."""
    call: Callable[..., Any]
    devices: tuple[str, ...] = ("cuda",)
    """Kinds of device that the kernel runs on."""

    @property
    def name(self) -> str:
        """Return the name of the package's function."""
        return self.function.rpartition(":")[2]

    @cached_property
    def version(self) -> str:
        """Return the installed version of the package; "" if it is not installed."""
        try:
            return metadata.version(self.package)
        except metadata.PackageNotFoundError:
            return ""

    @property
    def uninstalled(self) -> str:
        """Return why the installed package cannot be used; "" if it can be. Imports nothing."""
        if not self.version:
            return f"{self.package} is not installed: pip install 'lra[kernels]'"
        numbers = self.version.split("+")[0].split(".")
        wanted = (version.split(".") for version in self.versions)
        if not any(numbers[: len(each)] == each for each in wanted):
            return f"{self.package} {self.version} is untested; wanted {' or '.join(self.versions)}"
        return ""

    @cached_property
    def missing(self) -> str:
        """Return why the kernel cannot be used on this machine; "" if it can be."""
        if self.uninstalled:
            return self.uninstalled
        try:
            _ = self.loaded
        except Exception as error:  # noqa: BLE001 - whatever a foreign package raises on import
            return f"{self.package} {self.version} cannot be imported: {one_line(error)}"
        return ""

    @cached_property
    def loaded(self) -> Callable[..., Any]:
        """Return the package's function, imported when first asked for."""
        module, _, name = self.function.partition(":")
        function: Callable[..., Any] = getattr(import_module(module), name)
        return function

    def run(self, arguments: dict[str, Any]) -> Any:
        """Return what the operation returns for `arguments`, computed by the kernel."""
        return self.call(self.loaded, **arguments)

    def refusal(self, arguments: dict[str, Any]) -> str:
        """Return why the kernel cannot compute a call; "" if it can."""
        kinds = {x.device.type for x in arguments.values() if isinstance(x, Tensor)}
        if not kinds <= {*self.devices}:
            return f"it runs on {' or '.join(self.devices)} only"
        return self.missing or self.takes(**arguments)

    def __str__(self) -> str:
        return f"{self.package} {self.version} {self.name}"


def one_line(error: Exception) -> str:
    """Return the kind and the first line of an error."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0][:200]}" if text else type(error).__name__
