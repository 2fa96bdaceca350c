"""`lra show --cost`: parameters and multiply-adds of a model, part by part."""

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from lra.composition.class_path import NotNamed
from lra.composition.compose import build_model, typed
from lra.composition.hydra_entry import entries
from lra.composition.run import Run
from lra.errors import CommandError, ConfigError
from lra.runners.measurement.parts import ModelCost, ModelPart, cost_by_part
from lra.runners.store import Store
from lra.runners.training.recurrent_state import remembered_tokens
from lra.terminal.screen import flush_right, table

SCHEMA = 1
"""Of what `--json` prints."""


class CountedModel(NamedTuple):
    """One model at one length."""

    model: str
    task: str
    length: int
    memory: int
    """Tokens of the state before it; 0: none."""
    cost: ModelCost


def print_costs(words: list[str], flags: argparse.Namespace) -> int:
    """Print the costs of a cell's model, or of every model that words compose.

    Args:
        words: A cell, or those of `lra run`.
        flags: `results`, `lengths` and `json`.
    """
    bare = [word for word in words if "=" not in word and not word.startswith(("-", "+", "~"))]
    if words and words == bare:
        runs = [*_stored(words, flags.results or Path("results"))]
    elif flags.results is not None:
        raise CommandError(
            f"--results {flags.results} is for a stored run, and {' '.join(words)} describes a new "
            "model: remove one of them"
        )
    else:
        runs = [*_composed(words)]
    counted, refused = list[CountedModel](), list[dict[str, str]]()
    for run, length in runs:
        try:
            counted += _count(run, flags.lengths, length)
        except ValueError as error:
            if len(runs) == 1:
                raise
            names = {"model": run.model, "task": run.task_name}
            refused.append({**names, "reason": " ".join(str(error).split())})
    if flags.json:
        models = [*map(_as_json, counted)]
        print(json.dumps({"schema": SCHEMA, "models": models, "refused": refused}, indent=1))
        return 0
    for number, model in enumerate(counted):
        print(("\n" if number else "") + "\n".join(_cost_text(model)))
    for one in refused:
        print(f"\n{one['model']} on {one['task']}: refused: {one['reason']}")
    return 0


def _stored(words: list[str], results: Path) -> Iterator[tuple[Run, int | None]]:
    """Yield the run of a cell, and its length where that is not its task's."""
    if len(words) > 1:
        raise CommandError(f"--cost takes one run at a time: got {' '.join(words)}")
    if not results.is_dir():
        raise FileNotFoundError(
            f"there is no results folder {results.resolve()}; set its path by --results DIR"
        )
    store = Store(results)
    key = store.find(words[0])
    stored = store.describe(key)
    try:
        run = typed(stored["config"])
    except NotNamed:
        raise
    except ConfigError as error:
        raise ConfigError(
            f"run {key} has options that lra no longer accepts ({error}): describe its model, for "
            "example lra show --cost model=performer task=listops"
        ) from error
    yield run, int(stored["columns"]["length"]) if run.runner.by_length else None


def _composed(words: list[str]) -> Iterator[tuple[Run, None]]:

    if not words:
        raise CommandError(
            "--cost needs a stored run, or arguments of lra run: lra show --cost model=performer "
            "task=listops"
        )
    tasks: dict[str, Any] = {}
    alone = {"-m", "--multirun", "--run"}.intersection(words)
    for entry in entries(words if alone else ["-m", *words]):
        yield typed(entry.config, tasks), None


def _count(run: Run, lengths: Sequence[int] | None, usual: int | None) -> Iterator[CountedModel]:
    """Yield the costs of a run's model at every length."""
    if not run.runner.models:
        name = run.config["runner"]["name"]
        raise ConfigError(
            f"runner={name} has no model whose operations could be counted: remove this argument"
        )
    built: Sequence[int | None] = lengths or [usual]
    for length in built:
        with torch.device("meta"):
            model = build_model(run, max_length=length)
        memory = 0
        if model.facts.memory and model.causal:
            memory = remembered_tokens(run.backbone, run.task, training=True)
        tokens = length or run.task.spec.max_length
        try:
            cost = cost_by_part(model, tokens, memory=memory, kind=str(run.hardware.device))
        except (NotImplementedError, RuntimeError) as error:
            reason = " ".join(str(error).split())[:200]
            raise ConfigError(
                f"model={run.model} cannot be counted, as its work depends on the data: {reason}"
            ) from error
        yield CountedModel(run.model, run.task_name, tokens, memory, cost)


def _as_json(model: CountedModel) -> dict[str, Any]:
    cost = model.cost
    return {
        "model": model.model,
        "task": model.task,
        "length": model.length,
        "memory": model.memory,
        "tokens": cost.tokens,
        "parameters": cost.parameters,
        "multiply_adds": cost.multiply_adds,
        "complete": cost.complete,
        "parts": [
            {
                "part": part.name,
                "layers": None if part.layers is None else [*part.layers],
                "class": part.kind or None,
                "modules": part.modules,
                "uses": part.uses,
                "parameters_each": part.parameters,
                "multiply_adds_each": part.multiply_adds,
            }
            for part in cost.parts
        ],
    }


def _cost_text(model: CountedModel) -> Iterator[str]:
    """Yield a heading, the table, and what needs a word."""
    cost = model.cost
    behind = f" behind {model.memory:,} remembered" if model.memory else ""
    yield f"{model.model} on {model.task}: one example of {cost.tokens:,} tokens{behind}"
    rows: list[tuple[str, ...]] = [
        ("part", "times", "parameters", "multiply-adds", "per token", "share")
    ]
    rows += [_row(part, cost) for part in cost.parts]
    rows.append(
        ("in all", "", f"{cost.parameters:,}", f"{cost.multiply_adds:,}",
         f"{cost.multiply_adds / cost.tokens:,.0f}", "")
    )  # fmt: skip
    yield table(flush_right(rows))
    if any(part.uses > 1 for part in cost.parts):
        yield "  parameters and multiply-adds are those of one module; multiply them by `times`"
    if any(part.modules != part.uses for part in cost.parts):
        yield "  (shared): one module that is used several times; its parameters count once"
    if not cost.complete:
        yield "  ?: depends on the token ids, and is missing from the sum"


def _row(part: ModelPart, cost: ModelCost) -> tuple[str, ...]:
    label = part.name
    if part.layers is not None:
        first, last = part.layers
        span = f"layer {first}" if first == last else f"layers {first} to {last}"
        shared = "" if part.modules == part.uses else " (shared)"
        label = f"{span}: {part.name}{f' {part.kind}' if part.kind else ''}{shared}"
    times, work = f"{part.uses}", part.multiply_adds
    if work is None:
        return label, times, f"{part.parameters:,}", "?", "?", "?"
    share = part.uses * work / max(1, cost.multiply_adds)
    return (label, times, f"{part.parameters:,}", f"{work:,}", f"{work / cost.tokens:,.0f}",
            f"{share:.1%}")  # fmt: skip
