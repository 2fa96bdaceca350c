"""The attention functions of a family by themselves, outside a model, for chosen options."""

from dataclasses import fields
from functools import partial
from typing import Any, cast, get_args, get_origin

import torch
from torch import nn

from lra.composition.binding import schema
from lra.composition.compose import facts, group_file, locate, mixer_factory
from lra.composition.run import Run
from models.backbone.choices import CAUSAL_HEADS
from models.backbone.seeding import derive, drawing
from models.idle import idle_in
from models.mixer import SCORED, Site, Unsupported
from models.multi_head import Core
from runners.measures.approximation import Approximation
from runners.measures.attention.cores import core_of

LENGTH = "length"
"""Stands for the number of tokens among the options of a target."""


class FamilyCores:
    """Makes the cores of the run's family at one length: `runners.measures.approximation.Cores`."""

    def __init__(self, run: Run, length: int) -> None:
        node = run.config["model"]
        if "mixer" not in node or node.get("layers"):
            raise Unsupported(
                f"{run.model} is no single family: wanted a model with a mixer of its own, and "
                "model.layers empty"
            )
        if run.backbone.positions in SCORED:
            raise Unsupported(
                f"model.backbone.positions={run.backbone.positions} adds to the scores, which the "
                "families here approximate without: choose learned, sinusoidal, rotary or none"
            )
        self.config = cast(Approximation, run.runner)
        self.run, self.length, self.node = run, length, dict(node["mixer"])
        self.option = self.config.budget_option(run.model)
        self.causal = facts(run, length).head in CAUSAL_HEADS

    def approximation(self, budget: int, *, draw: int, layer: int) -> Core:
        """Return the run's family with this budget and this draw."""
        return self._core({**self.node, **self._listed({self.option: budget})}, layer, draw)

    def exact(self, *, layer: int) -> Core:
        """Return what the family approximates: itself with other options, or softmax attention."""
        target = self.config.target
        if not target:
            return self._core(group_file("model", "softmax")["mixer"], layer)
        options = {k: self.length if v == LENGTH else v for k, v in target.items()}
        return self._core({**self.node, **self._listed(options)}, layer)

    def reference(self) -> Core:
        """Return exact attention through SDPA."""
        return self._core(group_file("model", "sdpa")["mixer"], 0)

    def labels(self) -> dict[str, str]:
        """Return the options that name the rows, where this family has them."""
        options = self.run.mixer_options
        return {
            f"mixer.{name}": str(options[name]).lower()
            for name in self.config.named
            if name in options
        }

    def _listed(self, options: dict[str, Any]) -> dict[str, Any]:
        """Wrap what a per-layer option takes as a list."""
        family = locate(str(self.node["class_path"]), list(self.run.config["plugins"]))
        types = {entry.name: entry.type for entry in fields(schema(family))}
        return {
            key: [value] if _is_list(types.get(key)) and not isinstance(value, list) else value
            for key, value in options.items()
        }

    def _core(self, node: dict[str, Any], layer: int, draw: int = 0) -> Core:
        """Build the mixer around a core, and return the core.

        What the options of a target, or a budget, leave without effect stays at its default. The
        draws of a layer come from the run's seed, its place and their number alone, so that
        budgets are compared on nested draws where a family draws one after the other.
        """
        plugins = list(self.run.config["plugins"])
        factory, _ = mixer_factory(node, plugins)
        backbone = self.run.backbone
        generator = torch.Generator("cpu").manual_seed(
            derive(self.run.seed, f"core {layer}, draw {draw}")
        )
        site = Site(
            width=backbone.width,
            heads=backbone.heads,
            own_head_width=backbone.head_width,
            max_length=self.length,
            causal=self.causal,
            layer=layer,
            depth=backbone.depth,
            generator=generator,
        )
        family = locate(str(node["class_path"]), plugins)
        if unread := idle_in(family, site, cast(partial[Any], factory).keywords):
            factory, _ = mixer_factory({k: v for k, v in node.items() if k not in unread}, plugins)
        with drawing():
            return core_of(cast(nn.Module, factory(site)))


def _is_list(kind: Any) -> bool:
    return list in (get_origin(kind), *map(get_origin, get_args(kind)))
