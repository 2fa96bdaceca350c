"""Which form computes each operation of a run: a public kernel where it can, or our own form.

Before a kernel computes calls of one kind (shapes of a head, dtypes, options), it is compared with
our own form on drawn inputs of these shapes (`lra.models.kernels.comparison`).
"""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch

from lra.models.kernels.comparison import difference, signature
from lra.models.kernels.door import Operation, set_session
from lra.models.kernels.kernel import PublicKernel
from lra.models.kernels.providers import all_kernels
from lra.models.mixer import Unsupported

OWN = "own"
PUBLIC, MIXED = "public", "mixed"
LONGEST = 1500
"""Most characters of a description; a row may have 2,000 in a label."""


@dataclass
class Session:
    """Chooses the form of each call, and remembers which forms ran and why."""

    required: bool
    """Whether a call that no kernel takes is refused."""
    kernels: Mapping[str, Sequence[PublicKernel]]
    """The kernels of each operation, first choice first."""
    forms: dict[str, dict[str, None]] = field(default_factory=dict)
    """Descriptions of the forms that ran, by operation, in the order of their first call."""
    _verdicts: dict[object, str] = field(default_factory=dict)
    """How a kernel differs from our own form for one kind of call; "" if it agrees."""

    @torch.compiler.disable
    def compute(self, own: Operation, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return what the operation `own` returns, computed by a kernel where one can.

        Raises:
            Unsupported: If kernels are required and none can compute the call.
        """
        name, kernels = own.__name__, self.kernels.get(own.__name__)
        if not kernels:
            return own(*args, **kwargs)
        arguments, reasons = _by_name(own, args, kwargs), []
        for kernel in kernels:
            reason = kernel.refusal(arguments) or self._disagreement(kernel, own, arguments)
            if not reason:
                self._note(name, str(kernel))
                return kernel.run(arguments)
            reasons.append(f"{kernel.name}: {reason}")
        why = "; ".join(reasons)
        if self.required:
            raise Unsupported(
                f"hardware.kernels=public: no public kernel computes {name} here ({why}); "
                "hardware.kernels=auto uses our PyTorch operation for it"
            )
        self._note(name, f"{OWN} ({why})")
        return own(*args, **kwargs)

    def _note(self, name: str, form: str) -> None:
        self.forms.setdefault(name, {})[form] = None

    def _disagreement(self, kernel: PublicKernel, own: Operation, arguments: dict[str, Any]) -> str:
        """Return how the kernel differs from `own` for calls of this kind; "" if it agrees."""
        kind = kernel.function, signature(kernel.operation, arguments)
        if kind not in self._verdicts:
            self._verdicts[kind] = difference(kernel, own, arguments)
        return self._verdicts[kind]

    def description(self) -> str:
        """Return which form computed each operation, for the label of a row."""
        text = "; ".join(f"{name}: {', '.join(forms)}" for name, forms in self.forms.items())
        text = "".join(letter if letter.isprintable() else " " for letter in text)
        return text if len(text) <= LONGEST else f"{text[:LONGEST]} …"

    def labels(self) -> dict[str, str]:
        """Return the description as the label `kernels`, and in one word as the label `forms`."""
        every = [form for forms in self.forms.values() for form in forms]
        own = [form for form in every if form.startswith(f"{OWN} (")]
        forms = OWN if len(own) == len(every) else MIXED if own else PUBLIC
        return ({"kernels": self.description()} if every else {}) | {"forms": forms}

    def check_used(self) -> None:
        """Raise Unsupported if kernels are required and the model has called none."""
        if self.required and not self.forms:
            raise Unsupported(
                "hardware.kernels=public: this model has no operation with a public kernel "
                "(lra list kernels shows them); choose kernels=auto or kernels=own"
            )


@lru_cache
def _signature_of(own: Operation) -> inspect.Signature:
    return inspect.signature(own)


def _by_name(own: Operation, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return all arguments of a call by name; parameters of the kind *args are one tuple."""
    bound = _signature_of(own).bind(*args, **kwargs)
    bound.apply_defaults()
    return dict(bound.arguments)


@contextmanager
def public_kernels(
    *, required: bool = False, kernels: Mapping[str, Sequence[PublicKernel]] | None = None
) -> Iterator[Session]:
    """Let public kernels compute operations in the `with` block, in all threads.

    Args:
        required: Whether a call that no kernel takes is refused.
        kernels: The kernels of each operation; None: all that lra knows.
    """
    session = Session(required, all_kernels() if kernels is None else kernels)
    before = set_session(session)
    try:
        yield session
    finally:
        set_session(before)
