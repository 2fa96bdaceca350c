"""What models of every family would cost at one length, counted without contents; nothing runs."""

from argparse import ArgumentTypeError
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from lra.composition.arguments import whole
from lra.composition.catalogue import words as spellings
from lra.composition.compose import build_model, facts, typed
from lra.composition.hydra_entry import entries
from lra.composition.run import Run
from lra.errors import ConfigError, UnknownName, near, unknown
from lra.models.backbone.choices import CAUSAL_HEADS, Head
from lra.models.backbone.stack import Stack
from lra.models.canon import TAPS
from lra.models.mixer import Unsupported
from lra.models.state import size_bytes
from lra.runners.records import Memo, text_of
from lra.runners.runner import Passes
from lra.sweep.costs import Costs
from lra.sweep.forecast import LONGEST_REASON, Forecaster
from lra.sweep.kept_counts import KeptCounts
from lra.terminal.progress import with_progress

LONGEST = 10_000_000
FLOOR = "identity"
"""A family that mixes no tokens: its speed is a bound, and it is no choice for a user."""
CAUSAL = "causal"
GIB = 2**30
MANY = 16
"""If at least so many families are counted, the progress line proposes to name a few."""
COUNTED = (
    "parameters", "multiply_adds", "memory_bytes", "room_bytes", "step_s", "prefill_s", "token_s",
    "state_bytes", "reach",
)  # fmt: skip
SIZES = ("size=", "width=", "heads=", "depth=", "model.backbone.", "+experiment=", "+protocol=")
"""Beginnings of arguments that choose the size of the model."""
NUMBERS = {
    "length": "runner.lengths=[{}]", "batch": "runner.batch_size={}",
    "width": "model.backbone.width={}", "heads": "model.backbone.heads={}",
    "depth": "model.backbone.depth={}", "gib": "hardware.memory_limit_bytes={}",
}  # fmt: skip
"""Short arguments of `lra choose`, and the options of `lra run` that they stand for."""
READ = {
    "runner": ("direction", "batch_size"),
    "optim": ("", "optimiser", "ema_decay", "average_after"),
    "hardware": ("", "device", "precision", "threads", "memory_limit_bytes", "typical"),
    **dict.fromkeys(
        ("hydra", "logger", "report", "results", "search", "seed", "sweep"), tuple[str, ...]()
    ),
}
"""By group or key: its options that decide time and memory; "" is the choice of a file."""
INSTEAD = {
    "optim.batch_size": "batch=8 sets how many sequences a step has",
    "results": "--results sets the results folder that is read",
}


def runs_of(words: Sequence[str]) -> list[Run]:
    """Return one run for each model that `words` name; for all families if they name no model.

    Args:
        words: Arguments as of `lra run`, and the short ones in `NUMBERS` and `causal`. A width also
            makes the feed-forward layers four times as wide.

    Raises:
        ConfigError: An argument is wrong, the length is missing, or a model occurs twice.
    """
    keys = {word.partition("=")[0] for word in words}
    in_full = [part for word in words for part in _expand_argument(word)]
    if "length" not in keys:
        raise ConfigError("set how long the sequences are: length=16384")
    all_families = "model" not in keys
    defaults = ["-m", "runner=scaling", "runner.references=[]", "runner.batch=fixed"]
    defaults += [word for key, word in (("model", "model=all"), ("batch", "runner.batch_size=1"))
              if key not in keys]  # fmt: skip
    tasks: dict[str, Any] = {}
    memo = Memo()
    composed = entries([*defaults, *in_full])
    runs = [typed(entry.config, tasks, memo) for entry in composed]
    names = [run.model for run in runs]
    if repeated := next((name for name in names if names.count(name) > 1), None):
        raise ConfigError(
            f"the arguments ask for {names.count(repeated)} versions of {repeated}. Give each key "
            "one value, because all families are compared in one setting"
        )
    return [run for run in runs if not all_families or run.model != FLOOR]


def _expand_argument(word: str) -> Iterator[str]:
    """Yield the arguments of `lra run` that an argument of `lra choose` stands for."""
    key, separator, value = word.partition("=")
    if word == CAUSAL:
        yield "runner.direction=causal"
    elif key == CAUSAL:
        raise ConfigError(
            f"got {word!r}; wanted the single argument {CAUSAL}, or none for bidirectional models"
        )
    elif key in NUMBERS and separator:
        try:
            number = whole(1, LONGEST)(value)
        except ArgumentTypeError as error:
            raise ConfigError(f"{key}: {error}, as in {key}=64") from error
        yield NUMBERS[key].format(number * GIB if key == "gib" else number)
        if key == "width":
            yield f"model.backbone.feed_forward_width={4 * number}"
    elif word.startswith("--") and key != "--config-dir":
        raise ConfigError(
            f"{key}: type this argument without dashes: {key.lstrip('-')}={value or 'VALUE'}"
        )
    elif key not in spellings() and near(key, [*NUMBERS, CAUSAL]):
        raise UnknownName(unknown("word", key, [*NUMBERS, CAUSAL, *spellings().values()]))
    else:
        _refuse_unread(key.lstrip("+"))
        yield word


def _refuse_unread(key: str) -> None:
    """Raise ConfigError for an option that changes neither time nor memory of a family."""
    group, _, option = key.partition(".")
    if group in READ and option.partition(".")[0] not in READ[group]:
        way_out = INSTEAD.get(key, "omit it")
        raise ConfigError(
            f"{key}: this option does not change the time and memory of a family: {way_out}"
        )


def family_costs(runs: Sequence[Run]) -> Iterator[dict[str, Any]]:
    """Yield time, memory and more of each run's model, as the columns that `lra.choose` explains.

    `serves` is False for a family that refuses the setting; `reason` says why a number is missing.
    """
    costs = Costs(quick=True, kept=KeptCounts())
    forecaster = Forecaster(costs=costs, trials=False)
    fewer = " (to count only two, set model=linear,s4)" if len(runs) >= MANY else ""
    for run in with_progress(runs, f"counting families{fewer}:"):
        cost: dict[str, Any] = {"model": run.model, "serves": True, "fits": None, "reason": ""}
        cost |= dict.fromkeys(COUNTED)
        try:
            for part in _count_family(run, forecaster):
                cost |= part
        except Unsupported as error:
            cost |= {"serves": False, "reason": " ".join(str(error).split())}
        except Exception as error:  # noqa: BLE001 - what looks at contents fails in its own way
            cost["reason"] = " ".join(text_of(error).split())[:LONGEST_REASON]
        costs.keep()  # an interrupted command continues here when it is repeated
        yield cost


def _count_family(run: Run, forecaster: Forecaster) -> Iterator[dict[str, Any]]:
    """Yield the costs of a model; then, if it is causal, those of generating one token.

    The reach of a model is the sum over its layers; a layer without a limit reaches all tokens.
    """
    (_, length), *_ = run.runner.cells(run.model, 0)  # all cells have the length that was set
    step = forecaster.counted(run, {"length": length, "mode": "step"})
    forward = forecaster.costs.of(run, Passes(1, 1, length, step=False, measured=True))
    machine = forecaster.machine(run)
    assert machine is not None, "a step was counted"
    with torch.device("meta"):
        model = build_model(run, max_length=length).eval()
    traits = model.traits
    visits = model.stack.visits if isinstance(model.stack, Stack) else range(len(traits))
    reaches = [traits[layer].reach for layer in visits]
    taps = len(reaches) * (TAPS - 1) * len(run.backbone.canon.replace("B", ""))  # B is in `reach`
    yield {
        "fits": step.fits,
        "parameters": step.parameters,
        "multiply_adds": forward.work.products / 2 / length,  # two operations each
        "memory_bytes": step.need_bytes,
        "room_bytes": step.room_bytes,
        "step_s": step.step_s,
        "prefill_s": machine.seconds(forward.work),
        "reach": min(length, taps + sum(length if reach is None else reach for reach in reaches)),
        "reason": _remark_on_heads(run),
    }
    if model.causal:
        try:
            yield {"state_bytes": size_bytes(model.initial_state(1, length))}
            token = Passes(1, 1, length, step=False, measured=True, read=1)
            yield {"token_s": machine.seconds(forecaster.costs.of(run, token).work)}
        except Unsupported as error:
            yield {"token_s": machine.seconds(forward.work), "reason": f"no state: {error}"}


def _remark_on_heads(run: Run) -> str:
    """Return a remark if the option `key_value_heads` equals the heads of the queries; else ""."""
    heads = run.backbone.heads
    if heads == 1 or run.mixer_options.get("key_value_heads") != heads:
        return ""
    return (
        f"model.mixer.key_value_heads={heads} with {heads} heads gives each head separate keys, "
        "so that the model equals sdpa"
    )


def setting_of(runs: Sequence[Run], room_bytes: float, words: Sequence[str]) -> str:
    """Return the setting in which `runs` are compared, in words: that of sdpa if it is there.

    `room_bytes` is the available memory (0: not known), `words` are the arguments of the command.
    """
    run = next((run for run in runs if run.model == "sdpa"), runs[0])
    (_, length), *_ = run.runner.cells(run.model, 0)
    backbone, hardware = run.backbone, run.hardware
    way = "causal" if facts(run, length).head in CAUSAL_HEADS else "bidirectional"
    room = f", {room_bytes / 2**30:.1f} GiB" if room_bytes > 0 else ""
    sized = any(word.startswith(SIZES) for word in words)
    size = "" if sized else " (this is size=tiny, the default; another size may change the order)"
    return (
        f"{length:,} tokens, {way}, batch {run.config['runner']['batch_size']}; {backbone.depth} "
        f"layers of width {backbone.width}, {backbone.heads} heads, networks of "
        f"{backbone.feed_forward_width}{size}; "
        f"{'task=' if names_task(words) else 'vocabulary of '}{run.task_name}, "
        f"hardware={hardware.name} ({hardware.precision}{room})"
    )


def names_task(words: Sequence[str]) -> bool:
    """Return whether arguments name a task."""
    return any(word.startswith(("task=", "+experiment=")) for word in words)


def why_no_scores(runs: Sequence[Run], words: Sequence[str]) -> str:
    """Return why `runs` are listed without scores of a task; "" if scores may exist."""
    first = runs[0]
    (_, length), *_ = first.runner.cells(first.model, 0)  # all cells have the length that was set
    if not names_task(words):
        return "scores are missing because you named no task; add for example task=text"
    bidirectional_task = Head[first.task.spec.kind.name] not in CAUSAL_HEADS
    if bidirectional_task and facts(first, length).head in CAUSAL_HEADS:
        return (
            f"scores are missing because only bidirectional models have scores on "
            f"{first.task_name}: remove the argument {CAUSAL}, or name a language-modelling task"
        )
    return ""
