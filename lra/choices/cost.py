"""`lra show --cost`: count the parameters and multiply-adds of each part of a model."""

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
"""The version of the JSON that `--json` prints."""


class CountedModel(NamedTuple):
    """The cost of one model at one length."""

    model: str
    task: str
    length: int
    memory: int
    """Number of earlier tokens in the model's state; 0 if there is no state."""
    cost: ModelCost


def print_costs(words: list[str], flags: argparse.Namespace) -> int:
    """Print the costs of the model of a stored run, or of the models that arguments describe.

    Args:
        words: The key of a stored run, or arguments of `lra run`.
        flags: The flags `results`, `lengths` and `json`.

    Returns:
        The exit code, 0.
    """
    keys = [word for word in words if "=" not in word and not word.startswith(("-", "+", "~"))]
    if words and words == keys:
        runs = [*_read_stored(words, flags.results or Path("results"))]
    elif flags.results is not None:
        raise CommandError(
            f"--results {flags.results} is useful for a stored run only, but {' '.join(words)} "
            "describes a new model; remove one of the two"
        )
    else:
        runs = [*_compose_runs(words)]
    counted, refused = list[CountedModel](), list[dict[str, str]]()
    for run, length in runs:
        try:
            counted += _count_model(run, flags.lengths, length)
        except ValueError as error:
            if len(runs) == 1:
                raise
            names = {"model": run.model_name, "task": run.task_name}
            refused.append({**names, "reason": " ".join(str(error).split())})
    if flags.json:
        models = [*map(_cost_as_json, counted)]
        print(json.dumps({"schema": SCHEMA, "models": models, "refused": refused}, indent=1))
        return 0
    for number, model in enumerate(counted):
        print(("\n" if number else "") + "\n".join(_write_cost(model)))
    for refusal in refused:
        print(
            f"\nmodel={refusal['model']} cannot be counted on task={refusal['task']}: "
            f"{refusal['reason']}"
        )
    return 0


def _read_stored(words: list[str], results: Path) -> Iterator[tuple[Run, int | None]]:
    """Yield a stored run, and the length at which it ran (None: the longest of its task).

    Args:
        words: A list with the beginning of the run's key.
        results: The results folder.
    """
    if len(words) > 1:
        raise CommandError(f"--cost counts one stored run at a time, but got {' '.join(words)}")
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
            f"run {key} has options that this version of lra rejects ({error}). Describe its model "
            "instead, for example by lra show --cost model=performer task=listops"
        ) from error
    yield run, int(stored["columns"]["length"]) if run.runner.by_length else None


def _compose_runs(words: list[str]) -> Iterator[tuple[Run, None]]:
    """Yield each run that the arguments `words` describe; several values need no -m here."""
    if not words:
        raise CommandError(
            "--cost needs a stored run or arguments of lra run, as in lra show --cost "
            "model=performer task=listops"
        )
    tasks: dict[str, Any] = {}
    mode_given = {"-m", "--multirun", "--run"}.intersection(words)
    for entry in entries(words if mode_given else ["-m", *words]):
        yield typed(entry.config, tasks), None


def _count_model(
    run: Run, lengths: Sequence[int] | None, default: int | None
) -> Iterator[CountedModel]:
    """Yield the costs of a run's model at every length.

    Args:
        run: The run.
        lengths: The lengths, in tokens; None: only `default`.
        default: The length if the user gives none; None: the longest of the task.
    """
    if not run.runner.models:
        name = run.config["runner"]["name"]
        raise ConfigError(
            f"runner={name} runs no model, so there is nothing to count; remove this argument"
        )
    counted_lengths: Sequence[int | None] = lengths or [default]  # `build_model` takes None
    for length in counted_lengths:
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
                f"the operations of model={run.model_name} depend on the data, so they cannot be "
                f"counted: {reason}"
            ) from error
        yield CountedModel(run.model_name, run.task_name, tokens, memory, cost)


def _cost_as_json(model: CountedModel) -> dict[str, Any]:
    """Return the object that `lra show --cost --json` prints for one model and length."""
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


def _write_cost(model: CountedModel) -> Iterator[str]:
    """Yield a heading, the table of a model's parts, and explanations of its marks."""
    cost = model.cost
    after = f" after {model.memory:,} remembered tokens" if model.memory else ""
    yield f"{model.model} on {model.task}, for one example of {cost.tokens:,} tokens{after}"
    rows: list[tuple[str, ...]] = [
        ("part", "times", "parameters", "multiply-adds", "per token", "share")
    ]
    rows += [_make_row(part, cost) for part in cost.parts]
    rows.append(
        ("in all", "", f"{cost.parameters:,}", f"{cost.multiply_adds:,}",
         f"{cost.multiply_adds / cost.tokens:,.0f}", "")
    )  # fmt: skip
    yield table(flush_right(rows))
    if any(part.uses > 1 for part in cost.parts):
        yield "  A row counts the parameters and multiply-adds of one module, used `times` times."
    if any(part.modules != part.uses for part in cost.parts):
        yield "  (shared) marks one module that is used several times; its parameters count once."
    if not cost.complete:
        yield "  ? marks a number that depends on the token ids; the sum excludes it."


def _make_row(part: ModelPart, cost: ModelCost) -> tuple[str, ...]:
    """Return the row of one part in the table of the model's cost."""
    label = part.name
    if part.layers is not None:
        first, last = part.layers
        span = f"layer {first}" if first == last else f"layers {first} to {last}"
        shared = "" if part.modules == part.uses else " (shared)"
        label = f"{span}: {part.name}{f' {part.kind}' if part.kind else ''}{shared}"
    times, operations = f"{part.uses}", part.multiply_adds
    if operations is None:
        return label, times, f"{part.parameters:,}", "?", "?", "?"
    share = part.uses * operations / max(1, cost.multiply_adds)
    per_token = f"{operations / cost.tokens:,.0f}"
    return label, times, f"{part.parameters:,}", f"{operations:,}", per_token, f"{share:.1%}"
