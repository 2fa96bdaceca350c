"""Counts the time and memory of a cell's passes, on models without contents (device `meta`).

A pass is counted with few rows and, if all layers are alike, with one layer and with two. The
numbers of the whole batch and depth lie on the straight line through these. A quick count also
draws such a line through two short lengths, if the work grows token by token.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple, cast

import torch

from lra.composition.compose import build_model, facts
from lra.composition.run import Run
from lra.models.backbone.config import TOKEN_HEADS, Head, Residual
from lra.models.backbone.generation import begin, next_logits
from lra.models.backbone.model import Backbone, TaskFacts
from lra.models.contract.trace import Operator, Trace, Tracer
from lra.models.mixer import Layout, Unsupported
from lra.models.state import size_bytes
from lra.runners.measurement.device import DTYPES
from lra.runners.measurement.effort import LARGE_BYTES, Effort, effort, extrapolate_calls
from lra.runners.measurement.hardware import Device, Precision
from lra.runners.records import text_of
from lra.runners.runner import OWN, Passes, Uncounted
from lra.runners.training.objective import whole_batch
from lra.runners.training.optim import OptimConfig
from lra.runners.training.optimisers.build import state_of
from lra.sweep.kept_counts import KeptCounts
from lra.sweep.preset_counts import key_of

PROBE_TOKENS = {Device.cpu: 2**13, Device.cuda: 2**15}
"""Tokens of the smaller of two counted batches: enough that work is cut as in any larger one."""
EVALUATION_SHARE = 4
"""An evaluation, which takes little of a training's time, is counted on fewer tokens yet."""
NO_TIME = "counting this run would take too long here; `lra plan` counts every run"
SHORT = (256, 512)
"""Lengths of the two passes that a quick count takes in place of a long one."""
LEAST_CALLS, MOST_WORK = 1.8, 2.1
"""Bounds of the ratio between the lengths in `SHORT` if work grows token by token: of calls at
least the first, of bytes and products at most the second."""
WEIGHT_BYTES = 4
"""Parameters and moments are float32 on every device."""


def moments(config: OptimConfig) -> int:
    """Return how many numbers a training stores per weight: moments, and perhaps an average.

    The state of one large matrix is counted. Numbers for its rows and columns, or for the whole
    matrix, are few, and the division drops them.
    """
    matrix = torch.empty(1024, 1024, device="meta")
    stored = sum(state.numel() for state in state_of(config, matrix).values()) // matrix.numel()
    return stored + (config.ema_decay is not None or config.average_after is not None)


class PassCost(NamedTuple):
    """The time and memory of one pass of a model."""

    work: Effort
    peak_bytes: int
    """Peak of the tensors that the pass makes: activations, gradients, workspaces."""
    resident_bytes: int
    """Of tensors that always exist: parameters and, in training, the optimiser's moments."""

    @property
    def need_bytes(self) -> int:
        """Return the bytes of all tensors at the peak."""
        return self.peak_bytes + self.resident_bytes

    def parameters(self, optimiser: OptimConfig | None) -> int:
        """Return the number of weights; `optimiser` is that of a training step, None for others.

        A training step also stores `moments` numbers for each weight, as large as the weight.
        """
        copies = 0 if optimiser is None else moments(optimiser)
        return self.resident_bytes // (WEIGHT_BYTES * (1 + copies))


class _Counted(NamedTuple):
    """What was counted of a pass of one size."""

    calls: Mapping[Operator, float]
    views: float
    peak: float
    parameters: float
    tensors: float
    """Number of parameter tensors."""

    def doubled(self, far: "_Counted") -> bool:
        """Return whether work grows token by token from this pass to `far`, of twice the tokens.

        It does if `far` has about twice the calls, and at most about twice the products and bytes.
        """
        work, far_work = effort(self.calls, self.views), effort(far.calls, far.views)
        return (
            far_work.operators >= LEAST_CALLS * work.operators
            and far_work.products <= MOST_WORK * work.products
            and far_work.streamed + far_work.cached <= MOST_WORK * (work.streamed + work.cached)
        )

    def towards(self, far: "_Counted", share: float) -> "_Counted":
        """Extrapolate on a straight line: `share` 0 is this pass, 1 is `far`, 2 is twice as far."""
        calls = extrapolate_calls(self.calls, far.calls, share)
        pairs = zip(self[1:], far[1:], strict=True)  # the fields after `calls`
        return _Counted(calls, *(start + share * (end - start) for start, end in pairs))


class Costs:
    """Counts the passes of runs. Each kind is counted once, for all seeds and for equal shapes.

    Args:
        until: the time (of `time.monotonic()`) after which nothing more is counted.
        ready: counts that ship with lra and replace counting: see `lra.sweep.preset_counts`.
        kept: the cache with the counts of earlier commands, which gains new ones; None: no cache.
        quick: whether a measured pass whose work grows token by token is counted at the lengths
            `SHORT` instead. Its time is exact, its memory within 14 %. Work that is cut into blocks
            by the memory of a device, or into chunks by the length, is counted at full length.
    """

    def __init__(
        self,
        *,
        until: float = float("inf"),
        ready: Mapping[str, Sequence[float]] = MappingProxyType({}),
        kept: KeptCounts | None = None,
        quick: bool = False,
    ) -> None:
        self.until, self.ready, self.kept, self.quick = until, ready, kept, quick
        self._tracers: dict[str, Tracer] = {}
        self._models: dict[str, Backbone] = {}
        self._passes: dict[str, PassCost | Uncounted] = {}

    def of(self, run: Run, passes: Passes) -> PassCost:
        """Return the cost of one pass of a run; `passes` says of which model, rows and length.

        Raises:
            Unsupported: the model refuses its task.
            Uncounted: the pass cannot be counted without contents, or the time is over.
        """
        task_facts = facts(run, passes.length if passes.measured else None)
        key = key_of(run, passes, task_facts)
        if key not in self._passes and (known := self._find_known(run, passes, key)) is not None:
            self._passes[key] = cost_of(known)
        if key not in self._passes:
            try:
                if time.monotonic() > self.until:
                    raise TimeoutError
                counted = self._count(run, passes, task_facts)
                self._passes[key] = counted
                if self.kept is not None:
                    place = self._place(self.kept, run, passes, key)
                    self.kept.add(place, [*counted.work, *counted[1:]])  # `cost_of` reads this
            except Unsupported:
                raise
            except TimeoutError as error:
                raise Uncounted(NO_TIME) from error
            except Exception as error:  # noqa: BLE001 - what needs contents fails in its own way
                reason = f"its operations cannot be counted without data: {text_of(error)}"
                self._passes[key] = Uncounted(" ".join(reason.split())[:300])
        cost = self._passes[key]
        if isinstance(cost, Uncounted):
            raise cost
        return cost

    def keep(self) -> None:
        """Write new counts into the cache."""
        if self.kept is not None:
            self.kept.write()

    def _find_known(self, run: Run, passes: Passes, key: str) -> Sequence[float] | None:
        """Return the numbers of a pass from the cache, or those shipped with lra; None: neither."""
        cached = self.kept and self.kept.get(self._place(self.kept, run, passes, key))
        return cached or self.ready.get(key)

    def _place(self, kept: KeptCounts, run: Run, passes: Passes, key: str) -> str | None:
        """Return the key of a pass in the cache, another for a quick count; None: it has none."""
        return kept.place(run, passes.name, f"quick {key}" if self.quick else key)

    def counted(self) -> dict[str, list[float]]:
        """Return the counted costs by key, in the form of `ready`, rounded to four digits."""
        return {
            key: [float(f"{number:.4g}") for number in (*cost.work, *cost[1:])]
            for key, cost in self._passes.items()
            if isinstance(cost, PassCost)
        }

    def _count(self, run: Run, passes: Passes, task_facts: TaskFacts) -> PassCost:
        """Return the cost of a pass, extrapolated from counts of few rows and few layers.

        A training step is counted on one micro-batch (`passes.micro_rows` sequences, if set).
        """
        rows = min(passes.rows, passes.micro_rows or passes.rows)
        probe = PROBE_TOKENS[run.hardware.device] // (1 if passes.step else EVALUATION_SHARE)
        few = max(2, math.ceil(probe / passes.length))
        depth = run.backbone.depth

        def count_layers(layers: int) -> _Counted:
            """Count one pass of `rows` sequences through a model of `layers` layers."""
            count = partial(self._count_one, run, passes, task_facts, layers)
            # Only a measured pass that is longer than `SHORT` can be counted at short lengths.
            whole = not passes.measured or passes.read is not None or passes.length <= SHORT[1]
            if self.quick and not whole:
                first, second = (
                    self._count_one(run, passes._replace(length=n), facts(run, n), layers, rows)
                    for n in SHORT
                )
                if first.doubled(second):
                    return first.towards(second, (passes.length - SHORT[0]) / (SHORT[1] - SHORT[0]))
            if rows <= 2 * few:  # no more than the larger of two batches would have
                return count(rows)
            return count(few).towards(count(2 * few), (rows - few) / few)

        if depth > 2 and _has_equal_layers(run, passes.name):
            count_of_pass = count_layers(1).towards(count_layers(2), depth - 1)
        else:
            count_of_pass = count_layers(depth)
        work = effort(count_of_pass.calls, count_of_pass.views)
        weights = int(count_of_pass.parameters) * WEIGHT_BYTES
        if not passes.step:
            return PassCost(work, int(count_of_pass.peak), weights)
        micro_batches = math.ceil(passes.rows / rows)
        work = Effort(*(micro_batches * amount for amount in work))
        # Clipping reads gradients twice and writes them once. The optimiser reads gradients, and
        # reads and writes the weights and what it stores for them.
        copies = moments(run.optim)
        moved = (6.0 + 2 * copies) * weights
        kind = "streamed" if moved > LARGE_BYTES else "cached"  # a field of `Effort`
        work = work._replace(
            operators=work.operators + count_of_pass.tensors, **{kind: getattr(work, kind) + moved}
        )
        return PassCost(work, int(count_of_pass.peak), (1 + copies) * weights)

    def _count_one(
        self,
        run: Run,
        passes: Passes,
        task_facts: TaskFacts,
        layers: int,
        rows: int,
    ) -> _Counted:
        """Count one pass of a model of `layers` layers over `rows` sequences."""
        model = self._build_model(run, passes, task_facts, layers).train(passes.step)
        precision, memory = run.hardware.precision, run.task.spec.memory
        if passes.read is None:
            resident = 0
            call = call_of(model, task_facts, precision, passes, rows=rows, memory=memory)
        else:
            resident, call = reading_of(model, passes, rows)
        kind = str(run.hardware.device)
        tracer = self._tracers.setdefault(kind, Tracer(kind))
        try:
            with torch.set_grad_enabled(passes.step):
                trace: Trace = tracer.trace(call, until=self.until)
        finally:
            model.zero_grad(set_to_none=True)
        tensors = [p.numel() for p in model.parameters() if p.requires_grad]
        return _Counted(
            trace.calls, trace.views, resident + trace.peak_bytes, sum(tensors), len(tensors)
        )

    def _build_model(
        self, run: Run, passes: Passes, task_facts: TaskFacts, layers: int
    ) -> Backbone:
        """Return the model of a pass, or the reference that it names, with `layers` layers."""
        main = passes.name == OWN
        key = repr(
            (run.model if main else passes.name, run.mixer_options if main else None, run.backbone,
             task_facts, layers, str(run.hardware.precision))
        )  # fmt: skip
        if key not in self._models:
            self._models.clear()  # one is enough: cells that share a model follow one another
            backbone = run.backbone if main else run.backbone.at_full_length()
            sized = replace(run, backbone=replace(backbone, depth=layers))
            with torch.device("meta"):
                model = build_model(
                    sized,
                    max_length=passes.length if passes.measured else None,
                    name=passes.name,
                )
            self._models[key] = model.to(DTYPES[run.hardware.precision])
        return self._models[key]


def cost_of(numbers: Sequence[float]) -> PassCost:
    """Return the cost that `Costs.counted` wrote as numbers."""
    kinds = len(Effort._fields)
    peak, resident = numbers[kinds:]
    return PassCost(Effort(*numbers[:kinds]), int(peak), int(resident))


def _has_equal_layers(run: Run, name: str) -> bool:
    """Return whether all layers of a model, or of the reference `name`, do the same work."""
    backbone = run.backbone
    if backbone.residual == Residual.attention or backbone.loop_first is not None:
        return False
    if backbone.layer_groups is not None:
        return False
    if name != OWN:
        return True
    if run.backbone.pool_blocks > 1 or run.backbone.decoder_depth:
        return False
    listed = (v for v in run.mixer_options.values() if isinstance(v, list))
    return run.stack is None and len(run.mixers) == 1 and all(len(v) < 2 for v in listed)


def reading_of(model: Backbone, passes: Passes, rows: int) -> tuple[int, Callable[[], object]]:
    """Return the bytes of the state of generation, and a function that predicts the next token.

    Raises:
        Unsupported: The model cannot generate, or has no state although `passes` asks for one.
    """
    tokens = torch.empty(rows, passes.read or 0, dtype=torch.long, device="meta")
    # A state is needed if tokens follow those that are read; without one, all are read again.
    memory = passes.length if passes.length > tokens.shape[1] else None
    point = begin(model, tokens, memory=memory)
    return size_bytes(point.state), partial(next_logits, model, point)


def call_of(
    model: Backbone,
    facts: TaskFacts,
    precision: Precision,
    passes: Passes,
    *,
    rows: int,
    memory: int,
) -> Callable[[], object]:
    """Return a function that runs one pass of a model on a batch without contents.

    Args:
        model: A model on the device `meta`.
        facts: What the model knows of its task.
        precision: The number format of inputs that are no tokens.
        passes: The kind of pass: its length, and whether it is a training step.
        rows: The number of sequences.
        memory: The tokens that a state stores from one segment to the next; 0: no state.
    """
    meta = partial(torch.empty, device="meta")
    shape = (rows, 2 if facts.head is Head.pair else 1, passes.length)  # a pair: two sequences
    channels = (facts.channels,)[: int(facts.channels > 1)]
    tokens = meta(shape + channels, dtype=DTYPES[precision] if facts.scalars else torch.long)
    answer = torch.float32 if facts.head is Head.regression else torch.long
    target = meta((rows, passes.length) if facts.head in TOKEN_HEADS else (rows,), dtype=answer)
    keep = meta(shape, dtype=torch.bool) if facts.padded and not passes.measured else None
    masked = {
        name: meta((rows,) if name == "prefix" else (rows, passes.length), dtype=torch.long)
        for name in facts.masks
    }
    if facts.conditions:
        masked["condition"] = meta((rows,), dtype=torch.long)
    asked = None
    if passes.asked is not None and facts.head in TOKEN_HEADS:
        asked = meta(max(1, round(rows * passes.asked)), dtype=torch.long)
    uniform = meta((rows, passes.length)) if facts.head is Head.replaced_detection else None
    state = None
    if memory and not passes.measured and model.causal:
        state = model.initial_state(rows, memory)

    def call() -> None:
        layout = Layout(**cast(Any, masked), uniform=uniform)
        outcome = model(tokens, target, keep, state, layout=layout, asked=asked)
        if passes.step:
            torch.autograd.backward(whole_batch(outcome))

    return call
