"""Checks that a training can continue from a stored state, before it changes anything."""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict
from typing import Any, cast

import torch
from torch import Tensor

from lra.models.idle import defaults
from lra.models.mixer import State, Unsupported
from lra.runners.records import Measurement
from lra.runners.training.checkpoint import Checkpoints
from lra.runners.training.config import TrainConfig
from lra.runners.training.optim import OptimConfig
from lra.runners.training.optimisers.build import state_of
from lra.runners.training.updates import WeightUpdates

_EMPTY = ("optimiser", "plateau", "trigger", "streams", "gradients", "best", "rows", "step_times")
"""Parts of a state that are empty before the first step."""
_ROW = {"metric": str, "value": float, "step": int, "labels": dict}
"""The type of each entry of a stored row."""
_SCHEDULED = frozenset({"lr", "momentum", "betas"})
"""Options of the optimiser that a schedule sets before every update."""
RANKS = "ranks"
"""The part of a state that differs by process: see `lra.runners.training.parallel.state`."""
_FAR = 1e30
"""Larger than any count, time, rate or score."""


_FIRST_OPTIONS = frozenset({
    "peak_learning_rate", "betas", "epsilon", "weight_decay", "clip", "schedule", "warmup_steps",
    "final_fraction", "steps", "batch_size", "micro_batch_size",
    "evaluate_every_steps", "evaluate_first", "validation_examples", "evaluate_splits",
    "evaluation_batch_size", "keep", "source", "weights", "parts", "pretraining",
})  # fmt: skip
"""Options that are always part of a state's identity. Other options are part of it only if they
differ from their default, so a new option does not change the identity of stored states."""

log = logging.getLogger(__name__)


def must_agree(config: OptimConfig | TrainConfig, but: Collection[str] = ()) -> dict[str, Any]:
    """Return the options that must be equal if a training continues from a stored state.

    Args:
        config: A dataclass of options.
        but: Names of options that change no number, so they may differ.
    """
    default = defaults(cast(Any, type(config)))
    return {
        name: value
        for name, value in asdict(config).items()
        if name not in but and (name in _FIRST_OPTIONS or value != default[name])
    }


def resumable_state(
    checkpoints: Checkpoints,
    ours: Mapping[str, Any],
    updates: WeightUpdates,
    streams: Callable[[int], State],
) -> dict[str, Any] | None:
    """Return the newest stored state from which a training can continue, or None.

    States from which it cannot continue are logged and skipped.

    Args:
        checkpoints: The stored states.
        ours: The present state of the training, with which stored states are compared.
        updates: The optimiser of the training.
        streams: Function that returns the empty recurrent state of a batch after a number of steps.
    """
    for path, state in checkpoints.states():
        if state.get("identity") != ours["identity"]:
            log.warning("skipped %s, which belongs to another model or other options", path)
            continue
        shared = {key: value for key, value in state.items() if key != RANKS}
        problem = misfit(shared, ours, updates, streams) or _check_ranks(state.get(RANKS, []))
        if problem is None:
            log.info("resumed at step %d", state["step"])
            return state
        log.warning("skipped %s, from which training cannot resume: %s", path, problem)
    if checkpoints.present():
        log.warning("training starts from the beginning, because it can resume from no checkpoint")
    return None


def misfit(
    state: Mapping[str, Any],
    ours: Mapping[str, Any],
    updates: WeightUpdates,
    streams: Callable[[int], State],
) -> str | None:
    """Return why a training cannot continue from a state, or None if it can.

    Args:
        state: The state that was read; it may have any content.
        ours: The present state of the training.
        updates: The optimiser of the training.
        streams: As in `resumable_state`.
    """
    if state.keys() != ours.keys():
        return f"it has the parts {sorted(map(str, state))}; wanted {sorted(ours)}"
    plain = [key for key in ours if key not in _EMPTY]
    problems = (
        _find_difference(
            {key: state[key] for key in plain}, {key: ours[key] for key in plain}, "state"
        ),
        *map(_check_generator, (state["random"], state["generator"])),
        _check_optimiser(state["optimiser"], ours["optimiser"], updates),
        _check_plateau(state.get("plateau"), ours.get("plateau")),
        _check_trigger(state.get("trigger"), ours.get("trigger")),
        _check_recurrent_state(state["streams"], state["step"], streams),
        _check_gradients(state.get("gradients"), ours),
        _check_best(state["best"], ours["model"]),
        _check_rows(state["rows"]),
        _find_difference(state["step_times"], _zeros_for(state["step_times"]), "step_times"),
    )
    return _first_problem(problems)


def _check_ranks(states: Any) -> str | None:
    """Return why the parts of a state that differ by process cannot be read, or None."""
    if not isinstance(states, list) or not all(isinstance(state, dict) for state in states):
        return f"{RANKS} is {_describe_type(states)}; wanted a list of mappings"
    return _first_problem(_check_generator(state.get("random")) for state in states)


def _find_difference(value: Any, like: Any, at: str, *, overflows: bool = False) -> str | None:
    """Return a message if `value` differs from `like` in types, keys or shapes, or None.

    Numbers of `value` must be finite, too.

    Args:
        value: A part of the state that was read.
        like: A valid value, with the same types, keys and shapes.
        at: Name of the part in the message.
        overflows: Whether tensors may have infinite numbers.
    """
    if isinstance(like, Mapping):
        if not isinstance(value, Mapping) or value.keys() != like.keys():
            return f"{at} is {_describe_type(value)}; wanted a mapping of {list(like)[:5]}"
        parts = ((value[key], like[key], f"{at}.{key}") for key in like)
        return _first_problem(_find_difference(*part, overflows=overflows) for part in parts)
    if _describe_type(value) != _describe_type(like):
        return f"{at} is {_describe_type(value)}; wanted {_describe_type(like)}"
    if isinstance(like, (list, tuple)):
        return _first_problem(_find_difference(*pair, at) for pair in zip(value, like, strict=True))
    # Whole numbers are counts, except -1 for the step of a validation that did not happen yet.
    least = -_FAR if isinstance(like, float) else -1
    if isinstance(like, (int, float)) and not least <= value <= _FAR:
        return f"{at} is {value}; wanted a number from {least:g} to {_FAR:g}"
    infinite = isinstance(value, Tensor) and not overflows and not value.isfinite().all()
    return f"{at} contains numbers that are not finite" if infinite else None


def _check_recurrent_state(value: Any, step: Any, empty: Callable[[int], State]) -> str | None:
    """Return why a recurrent state does not fit the model, or None."""
    if value is None or not isinstance(step, int):
        return None
    try:
        return _compare_nesting(value, empty(step))
    except Unsupported as error:
        return f"it has a recurrent state between batches, but this model cannot have one: {error}"


def _compare_nesting(value: Any, like: State) -> str | None:
    """Return a message if nesting or shapes of a recurrent state differ from `like`, or None.

    Their number formats may differ.
    """
    if isinstance(like, tuple) and isinstance(value, tuple) and len(like) == len(value):
        return _first_problem(map(_compare_nesting, value, like))
    if isinstance(like, Tensor) and isinstance(value, Tensor) and like.shape == value.shape:
        return None
    return (
        None
        if like is value is None
        else f"the recurrent state has {_describe_type(value)}; wanted {_describe_type(like)}"
    )


def _check_gradients(value: Any, ours: Mapping[str, Any]) -> str | None:
    if "gradients" not in ours:
        return None
    weights = ours["model"]
    if not isinstance(value, dict) or not value.keys() <= weights.keys():
        return f"gradients is {_describe_type(value)}; wanted a mapping from names of weights"
    like = {name: weights[name] for name in value}
    return _find_difference(value, like, "gradients", overflows=True)  # scaled for float16


def _first_problem(problems: Iterable[str | None]) -> str | None:
    return next((problem for problem in problems if problem), None)


def _describe_type(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of shape {list(value.shape)} and type {value.dtype}"
    length = f" of length {len(value)}" if isinstance(value, (list, tuple)) else ""
    return f"a {type(value).__name__}{length}"


def _check_generator(state: Any) -> str | None:
    try:
        torch.Generator().set_state(state)
    except (RuntimeError, TypeError) as error:
        return f"the state of a random generator is invalid ({error})"
    return None


def _check_optimiser(value: Any, like: Mapping[str, Any], updates: WeightUpdates) -> str | None:
    """Return why the state of the optimiser does not fit its parameters, or None.

    Options of each group must be equal, except those that the schedule sets.
    """
    if not isinstance(value, dict) or value.keys() != like.keys():
        return f"optimiser is {_describe_type(value)}; wanted a mapping of {list(like)}"
    problem = _find_difference(value["param_groups"], like["param_groups"], "optimiser")
    if problem:
        return problem
    scheduled = _SCHEDULED if updates.config.momentum_range else {"lr"}
    for stored, ours in zip(value["param_groups"], like["param_groups"], strict=True):
        for key in ours:
            if key not in scheduled and stored[key] != ours[key]:
                return f"optimiser.{key} is {stored[key]}; wanted {ours[key]}"
    parameters = [p for group in updates.optimiser.param_groups for p in group["params"]]
    state = value["state"]
    if not isinstance(state, dict) or not state.keys() <= set(range(len(parameters))):
        return "optimiser.state belongs to other parameters than those of this model"
    return _first_problem(
        _find_difference(
            value, state_of(updates.config, parameters[index]), f"optimiser.state.{index}"
        )
        for index, value in state.items()
    )


def _check_plateau(value: Any, like: Mapping[str, Any] | None) -> str | None:
    if like is None:
        return None
    # The best score is None before the first validation.
    if isinstance(value, dict) and isinstance(value.get("best"), float):
        like = {**like, "best": 0.0}
    return _find_difference(value, like, "plateau")


def _check_trigger(value: Any, like: Mapping[str, Any] | None) -> str | None:
    if like is None:
        return None
    if "scores" in like and isinstance(value, dict):  # any number of scores is valid
        like = {**like, "scores": _zeros_for(value.get("scores"))}
    return _find_difference(value, like, "trigger")


def _check_best(value: Any, weights: Mapping[str, Any]) -> str | None:
    if isinstance(value, dict) and not value:  # no weights were stored as the best ones yet
        return None
    return _find_difference(value, {"score": 0.0, "step": 0, "weights": weights}, "best")


def _check_rows(rows: Any) -> str | None:
    if not isinstance(rows, list):
        return f"rows is {_describe_type(rows)}; wanted a list"
    for row in rows:
        if not isinstance(row, dict) or {k: type(v) for k, v in row.items()} != _ROW:
            return f"a row is {_describe_type(row)}; wanted a dict with {', '.join(_ROW)}"
        if not all(type(text) is str for pair in row["labels"].items() for text in pair):
            return f"a row has the labels {row['labels']}; wanted names and values that are texts"
        try:
            Measurement(**row)
        except ValueError as error:
            return f"a row is invalid: {error}"
    return None


def _zeros_for(values: Any) -> list[float]:
    """Return a list of zeros, as long as the list `values`; an empty one if it is no list."""
    return [0.0] * (len(values) if isinstance(values, list) else 0)
