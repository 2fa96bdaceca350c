"""Which public kernels there are, which operations families call, and do the kernels work here?"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from lra.choices.traits import small_model
from lra.composition.catalogue import choices
from lra.composition.compose import core_of
from lra.composition.yaml_text import load
from lra.models.backbone.choices import Head
from lra.models.backbone.model import Backbone
from lra.models.kernels.door import Operation, set_session
from lra.models.kernels.kernel import PublicKernel, one_line
from lra.models.kernels.providers import all_kernels
from lra.models.kernels.session import OWN, public_kernels
from lra.models.mixer import Unsupported
from lra.runners.measurement.inputs import random_inputs
from lra.terminal.console import print_table

TOKENS = 512
"""Length of the sequence that small models read; families may compute shorter ones otherwise."""
HEADS = (Head.classification, Head.language_modelling)


@dataclass
class CallRecorder:
    """A session in which our own forms compute everything, and that remembers their names."""

    called: dict[str, None] = field(default_factory=dict)

    def compute(self, own: Operation, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return what the operation `own` returns."""
        self.called[own.__name__] = None
        return own(*args, **kwargs)

    def labels(self) -> dict[str, str]:
        """Return no labels."""
        return {}

    def check_used(self) -> None:
        """Accept a model without kernels."""


def operations_of(node: Mapping[str, Any], where: str) -> list[str]:
    """Return the operations with a door that a family calls at its default options.

    A small model of each direction reads one batch on this CPU.

    Args:
        node: The content of the model's YAML file.
        where: The file, for messages.
    """
    recorder = CallRecorder()
    before = set_session(recorder)
    try:
        for model in _small_models(node, where):
            _compute_loss(model, "cpu")
    finally:
        set_session(before)
    return [*recorder.called]


def _small_models(node: Mapping[str, Any], where: str) -> Iterator[Backbone]:
    """Yield a bidirectional and a causal model, if the family has them."""
    mixers, stack, _ = core_of(node, (), where)
    for head in HEADS:
        try:
            yield small_model(node, mixers, stack, head)
        except Unsupported:
            continue


def _compute_loss(model: Backbone, device: str) -> Tensor:
    """Return a loss of random tokens; on a GPU, it is computed in bfloat16."""
    tokens, target = random_inputs(1, TOKENS, model.facts, seed=0)
    model = model.to(device)
    with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
        loss: Tensor = model(tokens.to(device), target.to(device)).nll.mean()
    return loss


def print_kernels(*, as_json: bool) -> None:
    """Print the public kernel of each operation, its package, and whether this is installed."""
    every = [kernel for kernels in all_kernels().values() for kernel in kernels]
    if as_json:
        listed = [
            {
                "operation": each.operation, "kernel": each.function, "package": each.package,
                "versions": each.versions, "devices": each.devices, "installed": each.version,
                "missing": each.uninstalled,
            }
            for each in every
        ]  # fmt: skip
        print(json.dumps(listed, indent=2))
        return
    rows = [
        (each.operation, each.name, f"{each.package} {' or '.join(each.versions)}",
         each.uninstalled or f"{each.version} is installed")
        for each in every
    ]  # fmt: skip
    print("kernels  (hardware.kernels=public | auto)")
    print_table(rows)


def packages() -> dict[str, list[PublicKernel]]:
    """Return the kernels of each package, by its name on PyPI."""
    table: dict[str, list[PublicKernel]] = {}
    for kernels in all_kernels().values():
        for kernel in kernels:
            table.setdefault(kernel.package, []).append(kernel)
    return table


def try_package(kernels: list[PublicKernel]) -> tuple[bool, str, str]:
    """Try the kernels of one package; return whether they work, what was seen, and a remedy.

    Small models call the operations, on a device that the kernels support, and each kernel is
    compared with our own form before it computes a call.
    """
    operations = [*dict.fromkeys(kernel.operation for kernel in kernels)]
    about = f"for {', '.join(operations)}"
    if why := kernels[0].uninstalled:
        reason, _, remedy = why.partition(": ")
        return False, f"{reason}; it has kernels {about}", remedy or "install a wanted version"
    here = {"cpu"} | ({"cuda"} if torch.cuda.is_available() else set())
    device = max(here.intersection(*(kernel.devices for kernel in kernels)), default="")
    version = f"{kernels[0].package} {kernels[0].version}"
    if not device:
        return (
            True,
            f"{version} has kernels {about}; it is untried, because this machine has no GPU",
            "",
        )
    table = {name: [each for each in kernels if each.operation == name] for name in operations}
    with public_kernels(kernels=table) as session:
        for file in choices("model"):
            if {*operations} == {*_computed(session.forms)}:
                break
            node = load(file)
            if {*operations_of(node, str(file))} & {*operations}:
                for model in _small_models(node, str(file)):
                    try:
                        torch.autograd.backward(_compute_loss(model, device))
                    except Exception as error:  # noqa: BLE001 - whatever a foreign kernel raises
                        return False, f"{version} failed in {file.stem}: {one_line(error)}", ""
    computed = [name for name in operations if name in _computed(session.forms)]
    refused = [f"{name}: {form}" for name, forms in session.forms.items() if name not in computed
               for form in forms]  # fmt: skip
    untried = [name for name in operations if name not in session.forms]
    detail = f"{version} computed {', '.join(computed) or 'nothing'} on {device}"
    detail += "".join(f"; {each}" for each in refused)
    detail += f"; no family called {', '.join(untried)}" if untried else ""
    return not refused, detail, "" if not refused else "set hardware.kernels=own"


def _computed(forms: Mapping[str, Mapping[str, None]]) -> list[str]:
    """Return the operations that a kernel computed at least once."""
    return [n for n, each in forms.items() if not all(form.startswith(f"{OWN} (") for form in each)]
