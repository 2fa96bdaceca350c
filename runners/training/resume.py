"""Whether a training state that was read can be continued: asked in full before anything is set."""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict
from typing import Any, cast

import torch
from torch import Tensor

from models.idle import defaults
from models.mixer import State, Unsupported
from runners.records import Measurement
from runners.training.checkpoint import Checkpoints
from runners.training.config import TrainConfig
from runners.training.optim import OptimConfig
from runners.training.optimisers.build import state_of
from runners.training.updates import WeightUpdates

_APART = ("optimiser", "plateau", "trigger", "streams", "gradients", "best", "rows", "step_times")
"""Parts that are empty in a training that has not begun."""
_ROW = {"metric": str, "value": float, "step": int, "labels": dict}
_MOVED = frozenset({"lr", "momentum", "betas"})
"""What a schedule sets before every update."""
RANKS = "ranks"
"""What each of several processes has for itself: see `runners.training.parallel.state`."""
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


def fitting(
    checkpoints: Checkpoints,
    own: Mapping[str, Any],
    updates: WeightUpdates,
    streams: Callable[[int], State],
) -> dict[str, Any] | None:
    """Return the newest state that can be continued; one that cannot is said and left.

    Args:
        checkpoints: Where states lie.
        own: The state of the training that would continue it.
        updates: Those of this training.
        streams: Returns what the model remembers of a batch before its first token, from the
            number of steps taken, which tells how many rows a batch has.
    """
    for path, state in checkpoints.states():
        if state.get("identity") != own["identity"]:
            log.warning("%s is of another model or other options: left", path)
            continue
        apart = {key: value for key, value in state.items() if key != RANKS}
        problem = misfit(apart, own, updates, streams) or _ranks_fault(state.get(RANKS, []))
        if problem is None:
            log.info("resumed at step %d", state["step"])
            return state
        log.warning("%s cannot be continued (%s): left", path, problem)
    if checkpoints.present():
        log.warning("no checkpoint fits: training begins anew")
    return None


def misfit(
    found: Mapping[str, Any],
    own: Mapping[str, Any],
    updates: WeightUpdates,
    streams: Callable[[int], State],
) -> str | None:
    """Return why a state cannot be continued, or None where it can.

    Args:
        found: What was read, of any content.
        own: The state of the training that would continue it.
        updates: Those of that training.
        streams: As in `fitting`.
    """
    if found.keys() != own.keys():
        return f"it holds {sorted(map(str, found))}; wanted {sorted(own)}"
    plain = [key for key in own if key not in _APART]
    problems = (
        _unlike({key: found[key] for key in plain}, {key: own[key] for key in plain}, "state"),
        *map(_generator_fault, (found["random"], found["generator"])),
        _optimiser_fault(found["optimiser"], own["optimiser"], updates),
        _plateau_fault(found.get("plateau"), own.get("plateau")),
        _trigger_fault(found.get("trigger"), own.get("trigger")),
        _streams_fault(found["streams"], found["step"], streams),
        _gradients_fault(found.get("gradients"), own),
        _best_fault(found["best"], own["model"]),
        _rows_fault(found["rows"]),
        _unlike(found["step_times"], _floats(found["step_times"]), "step_times"),
    )
    return _first(problems)


def _ranks_fault(found: Any) -> str | None:
    """Return why what several processes have written, each of itself, cannot be read."""
    if not isinstance(found, list) or not all(isinstance(own, dict) for own in found):
        return f"{RANKS} is {_kind(found)}; wanted a list of mappings"
    return _first(_generator_fault(own.get("random")) for own in found)


def _unlike(found: Any, own: Any, at: str, *, overflows: bool = False) -> str | None:
    """Return where two values differ in kind: types, keys, shapes; numbers must be finite.

    Args:
        found: What was read.
        own: What is like what is wanted.
        at: Where it stands, for the message.
        overflows: Tensors may hold infinite numbers.
    """
    if isinstance(own, Mapping):
        if not isinstance(found, Mapping) or found.keys() != own.keys():
            return f"{at} is {_kind(found)}; wanted a mapping of {list(own)[:5]}"
        parts = ((found[key], own[key], f"{at}.{key}") for key in own)
        return _first(_unlike(*part, overflows=overflows) for part in parts)
    if _kind(found) != _kind(own):
        return f"{at} is {_kind(found)}; wanted {_kind(own)}"
    if isinstance(own, (list, tuple)):
        return _first(_unlike(*pair, at) for pair in zip(found, own, strict=True))
    least = -_FAR if isinstance(own, float) else -1
    if isinstance(own, (int, float)) and not least <= found <= _FAR:
        return f"{at} is {found}; wanted a number that a training can have"
    odd = isinstance(found, Tensor) and not overflows and not found.isfinite().all()
    return f"{at} holds numbers that are not finite" if odd else None


def _streams_fault(found: Any, step: Any, empty: Callable[[int], State]) -> str | None:
    if found is None or not isinstance(step, int):
        return None
    try:
        return _unlike_state(found, empty(step))
    except Unsupported as error:
        return f"it has streams, and this model none: {error}"


def _unlike_state(found: Any, own: State) -> str | None:
    """Compare nesting and shapes; a state may be of another precision than an empty one."""
    if isinstance(own, tuple) and isinstance(found, tuple) and len(own) == len(found):
        return _first(map(_unlike_state, found, own))
    if isinstance(own, Tensor) and isinstance(found, Tensor) and own.shape == found.shape:
        return None
    return None if own is found is None else f"streams hold {_kind(found)}; wanted {_kind(own)}"


def _gradients_fault(found: Any, own: Mapping[str, Any]) -> str | None:
    if "gradients" not in own:
        return None
    weights = own["model"]
    if not isinstance(found, dict) or not found.keys() <= weights.keys():
        return f"gradients is {_kind(found)}; wanted those of weights by name"
    like = {name: weights[name] for name in found}
    return _unlike(found, like, "gradients", overflows=True)  # scaled ones of float16


def _first(problems: Iterable[str | None]) -> str | None:
    return next((problem for problem in problems if problem), None)


def _kind(value: Any) -> str:
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


def _optimiser_fault(found: Any, own: Mapping[str, Any], updates: WeightUpdates) -> str | None:
    if not isinstance(found, dict) or found.keys() != own.keys():
        return f"optimiser is {_kind(found)}; wanted a mapping of {list(own)}"
    problem = _unlike(found["param_groups"], own["param_groups"], "optimiser")
    if problem:
        return problem
    moving = _MOVED if updates.config.momentum_range else {"lr"}
    for there, here in zip(found["param_groups"], own["param_groups"], strict=True):
        changed = [key for key in here if key not in moving and there[key] != here[key]]
        if changed:
            return f"optimiser.{changed[0]} is {there[changed[0]]}; wanted {here[changed[0]]}"
    moved = [p for group in updates.optimiser.param_groups for p in group["params"]]
    state = found["state"]
    if not isinstance(state, dict) or not state.keys() <= set(range(len(moved))):
        return "optimiser.state is not of these parameters"
    return _first(
        _unlike(state[index], state_of(updates.config, moved[index]), f"optimiser.state.{index}")
        for index in state
    )


def _plateau_fault(found: Any, own: Mapping[str, Any] | None) -> str | None:
    if own is None:
        return None
    if isinstance(found, dict) and isinstance(found.get("best"), float):
        own = {**own, "best": 0.0}
    return _unlike(found, own, "plateau")


def _trigger_fault(found: Any, own: Mapping[str, Any] | None) -> str | None:
    if own is None:
        return None
    if "scores" in own and isinstance(found, dict):
        own = {**own, "scores": _floats(found.get("scores"))}
    return _unlike(found, own, "trigger")


def _best_fault(found: Any, weights: Mapping[str, Any]) -> str | None:
    if isinstance(found, dict) and not found:
        return None
    return _unlike(found, {"score": 0.0, "step": 0, "weights": weights}, "best")


def _rows_fault(rows: Any) -> str | None:
    if not isinstance(rows, list):
        return f"rows is {_kind(rows)}; wanted a list"
    for row in rows:
        if not isinstance(row, dict) or {k: type(v) for k, v in row.items()} != _ROW:
            return f"a row is {_kind(row)} that no training makes"
        if not all(type(text) is str for pair in row["labels"].items() for text in pair):
            return f"a row has labels {row['labels']}; wanted texts"
        try:
            Measurement(**row)
        except ValueError as error:
            return f"a row is none: {error}"
    return None


def _floats(found: Any) -> list[float]:
    """Return what a list of so many numbers looks like."""
    return [0.0] * (len(found) if isinstance(found, list) else 0)
