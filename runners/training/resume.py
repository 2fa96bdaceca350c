"""Whether a training state that was read can be continued: asked in full before anything is set."""

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
"""Parts that are empty in a training that has not begun."""
_ROW = {"metric": str, "value": float, "step": int, "labels": dict}
_SCHEDULED = frozenset({"lr", "momentum", "betas"})
"""What a schedule sets before every update."""
RANKS = "ranks"
"""The part of a state that differs by rank: see `lra.runners.training.parallel.state`."""
_FAR = 1e30
"""More than any count, time, rate or score."""


_FIRST_OPTIONS = frozenset({
    "peak_learning_rate", "betas", "epsilon", "weight_decay", "clip", "schedule", "warmup_steps",
    "final_fraction", "steps", "batch_size", "micro_batch_size",
    "evaluate_every_steps", "evaluate_first", "validation_examples", "evaluate_splits",
    "evaluation_batch_size", "keep", "source", "weights", "parts", "pretraining",
})  # fmt: skip
"""Options that a state's identity holds whatever they are; it holds others if not at default, so
that a new option leaves stored states their identity."""

log = logging.getLogger(__name__)


def must_agree(config: OptimConfig | TrainConfig, but: Collection[str] = ()) -> dict[str, Any]:
    """Return the options that must be the same where a stored state is continued.

    Args:
        config: A dataclass of options.
        but: Names of those that change no number.
    """
    usual = defaults(cast(Any, type(config)))
    return {
        name: value
        for name, value in asdict(config).items()
        if name not in but and (name in _FIRST_OPTIONS or value != usual[name])
    }


def resumable_state(
    checkpoints: Checkpoints,
    ours: Mapping[str, Any],
    updates: WeightUpdates,
    streams: Callable[[int], State],
) -> dict[str, Any] | None:
    """Return the newest state that can be continued; one that cannot is logged and skipped.

    Args:
        checkpoints: Where states lie.
        ours: The state of the training that would continue it.
        updates: Those of this training.
        streams: Returns what the model remembers of a batch before its first token, from the
            number of steps taken, which tells how many rows a batch has.
    """
    for path, state in checkpoints.states():
        if state.get("identity") != ours["identity"]:
            log.warning("%s belongs to another model or other options: ignored", path)
            continue
        shared = {key: value for key, value in state.items() if key != RANKS}
        problem = misfit(shared, ours, updates, streams) or _ranks_fault(state.get(RANKS, []))
        if problem is None:
            log.info("resumed at step %d", state["step"])
            return state
        log.warning("%s cannot be resumed (%s): ignored", path, problem)
    if checkpoints.present():
        log.warning("no checkpoint fits: training starts from the beginning")
    return None


def misfit(
    state: Mapping[str, Any],
    ours: Mapping[str, Any],
    updates: WeightUpdates,
    streams: Callable[[int], State],
) -> str | None:
    """Return why a state cannot be continued, or None where it can.

    Args:
        state: What was read, of any content.
        ours: The state of the training that would continue it.
        updates: Those of that training.
        streams: As in `resumable_state`.
    """
    if state.keys() != ours.keys():
        return f"it holds {sorted(map(str, state))}; wanted {sorted(ours)}"
    plain = [key for key in ours if key not in _EMPTY]
    problems = (
        _differs({key: state[key] for key in plain}, {key: ours[key] for key in plain}, "state"),
        *map(_generator_fault, (state["random"], state["generator"])),
        _optimiser_fault(state["optimiser"], ours["optimiser"], updates),
        _plateau_fault(state.get("plateau"), ours.get("plateau")),
        _trigger_fault(state.get("trigger"), ours.get("trigger")),
        _streams_fault(state["streams"], state["step"], streams),
        _gradients_fault(state.get("gradients"), ours),
        _best_fault(state["best"], ours["model"]),
        _rows_fault(state["rows"]),
        _differs(state["step_times"], _floats(state["step_times"]), "step_times"),
    )
    return _first(problems)


def _ranks_fault(states: Any) -> str | None:
    """Return why the parts of a state that differ by rank cannot be read."""
    if not isinstance(states, list) or not all(isinstance(state, dict) for state in states):
        return f"{RANKS} is {_type_text(states)}; wanted a list of mappings"
    return _first(_generator_fault(state.get("random")) for state in states)


def _differs(value: Any, like: Any, at: str, *, overflows: bool = False) -> str | None:
    """Return where two values differ in types, keys or shapes; numbers must be finite.

    Args:
        value: What was read.
        like: A value of the same types, keys and shapes.
        at: Where it stands, for the message.
        overflows: Tensors may hold infinite numbers.
    """
    if isinstance(like, Mapping):
        if not isinstance(value, Mapping) or value.keys() != like.keys():
            return f"{at} is {_type_text(value)}; wanted a mapping of {list(like)[:5]}"
        parts = ((value[key], like[key], f"{at}.{key}") for key in like)
        return _first(_differs(*part, overflows=overflows) for part in parts)
    if _type_text(value) != _type_text(like):
        return f"{at} is {_type_text(value)}; wanted {_type_text(like)}"
    if isinstance(like, (list, tuple)):
        return _first(_differs(*pair, at) for pair in zip(value, like, strict=True))
    least = -_FAR if isinstance(like, float) else -1
    if isinstance(like, (int, float)) and not least <= value <= _FAR:
        return f"{at} is {value}; wanted a number that a training can have"
    odd = isinstance(value, Tensor) and not overflows and not value.isfinite().all()
    return f"{at} contains numbers that are not finite" if odd else None


def _streams_fault(value: Any, step: Any, empty: Callable[[int], State]) -> str | None:
    if value is None or not isinstance(step, int):
        return None
    try:
        return _state_differs(value, empty(step))
    except Unsupported as error:
        return (
            f"it has a state that continues from batch to batch, but this model has none: {error}"
        )


def _state_differs(value: Any, like: State) -> str | None:
    """Compare nesting and shapes; a state may be of another precision than an empty one."""
    if isinstance(like, tuple) and isinstance(value, tuple) and len(like) == len(value):
        return _first(map(_state_differs, value, like))
    if isinstance(like, Tensor) and isinstance(value, Tensor) and like.shape == value.shape:
        return None
    return (
        None
        if like is value is None
        else f"streams hold {_type_text(value)}; wanted {_type_text(like)}"
    )


def _gradients_fault(value: Any, ours: Mapping[str, Any]) -> str | None:
    if "gradients" not in ours:
        return None
    weights = ours["model"]
    if not isinstance(value, dict) or not value.keys() <= weights.keys():
        return f"gradients is {_type_text(value)}; wanted those of weights by name"
    shapes = {name: weights[name] for name in value}
    return _differs(value, shapes, "gradients", overflows=True)  # scaled ones of float16


def _first(problems: Iterable[str | None]) -> str | None:
    return next((problem for problem in problems if problem), None)


def _type_text(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor {list(value.shape)} of {value.dtype}"
    of = f" of {len(value)}" if isinstance(value, (list, tuple)) else ""
    return f"a {type(value).__name__}{of}"


def _generator_fault(state: Any) -> str | None:
    try:
        torch.Generator().set_state(state)
    except (RuntimeError, TypeError) as error:
        return f"no state of a random generator ({error})"
    return None


def _optimiser_fault(value: Any, like: Mapping[str, Any], updates: WeightUpdates) -> str | None:
    if not isinstance(value, dict) or value.keys() != like.keys():
        return f"optimiser is {_type_text(value)}; wanted a mapping of {list(like)}"
    problem = _differs(value["param_groups"], like["param_groups"], "optimiser")
    if problem:
        return problem
    moving = _SCHEDULED if updates.config.momentum_range else {"lr"}
    for there, here in zip(value["param_groups"], like["param_groups"], strict=True):
        changed = [key for key in here if key not in moving and there[key] != here[key]]
        if changed:
            return f"optimiser.{changed[0]} is {there[changed[0]]}; wanted {here[changed[0]]}"
    moved = [p for group in updates.optimiser.param_groups for p in group["params"]]
    state = value["state"]
    if not isinstance(state, dict) or not state.keys() <= set(range(len(moved))):
        return "optimiser.state belongs to other parameters"
    return _first(
        _differs(state[index], state_of(updates.config, moved[index]), f"optimiser.state.{index}")
        for index in state
    )


def _plateau_fault(value: Any, like: Mapping[str, Any] | None) -> str | None:
    if like is None:
        return None
    if isinstance(value, dict) and isinstance(value.get("best"), float):
        like = {**like, "best": 0.0}
    return _differs(value, like, "plateau")


def _trigger_fault(value: Any, like: Mapping[str, Any] | None) -> str | None:
    if like is None:
        return None
    if "scores" in like and isinstance(value, dict):
        like = {**like, "scores": _floats(value.get("scores"))}
    return _differs(value, like, "trigger")


def _best_fault(value: Any, weights: Mapping[str, Any]) -> str | None:
    if isinstance(value, dict) and not value:
        return None
    return _differs(value, {"score": 0.0, "step": 0, "weights": weights}, "best")


def _rows_fault(rows: Any) -> str | None:
    if not isinstance(rows, list):
        return f"rows is {_type_text(rows)}; wanted a list"
    for row in rows:
        if not isinstance(row, dict) or {k: type(v) for k, v in row.items()} != _ROW:
            return f"a row is {_type_text(row)}; wanted a row that training writes"
        if not all(type(text) is str for pair in row["labels"].items() for text in pair):
            return f"a row has labels {row['labels']}; wanted texts"
        try:
            Measurement(**row)
        except ValueError as error:
            return f"a row is invalid: {error}"
    return None


def _floats(values: Any) -> list[float]:
    """Return a list of as many numbers."""
    return [0.0] * (len(values) if isinstance(values, list) else 0)
