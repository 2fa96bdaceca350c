"""Ours beside other public implementations of the same function: error first, then time and memory.

Every peer of the family is put on the same inputs with equal weights. Outputs and, in a step,
gradients are compared at the length that is measured; where they differ in float32, float64 tells
rounding from another function, of which no ratio is taken. Ours and the peer are then called in
turns, so that each ratio pairs neighbours in time. `forward` is a pass without gradients, `step` a
forward and a backward pass with the gradients of inputs and weights. Attention alone is measured: a
core on queries, keys and values, or a layer with its projections where the peer has no core;
nothing else of a model.
"""

import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import ClassVar

import torch
from torch import Tensor

from lra.conf.choices import by_name
from lra.conf.system_errors import out_of_memory
from lra.models.mixer import Unsupported
from lra.runners.isolation.progress import phase, phase_prefix
from lra.runners.measurement.hardware import HardwareProfile
from lra.runners.measurement.measure import in_turns, peak_tensor_bytes, time_call, try_call
from lra.runners.measurement.timing import Timing, check_limit
from lra.runners.measurement.watch import Watch
from lra.runners.measurement.watched_rows import mark_labels, over_limit, watch_rows
from lra.runners.measures.bench import CostMode
from lra.runners.records import Measurement, Status
from lra.runners.runner import Direction, Passes, Runner, Work
from peers.catalogue import of_family
from peers.peer import Missing, Mix, Peer, PeerCase, PeerPair, cotangent, disagreement, gradients


@by_name
@dataclass(frozen=True, kw_only=True)
class Peers(Timing, Runner):
    """How implementations are compared."""

    outcome: ClassVar[str] = "peer_speedup"
    data: ClassVar[bool] = False
    timed: ClassVar[bool] = True
    by_length: ClassVar[bool] = True

    lengths: list[int] = field(default_factory=lambda: [1024, 2048, 4096, 8192, 16384])
    modes: list[CostMode] = field(default_factory=lambda: [CostMode.forward, CostMode.step])
    direction: Direction = Direction.bidirectional
    heads: int = 8
    head_width: int = 64
    batch_size: int = 1
    tolerance: float = 1e-3
    """Largest error, relative to the largest value, at which both compute one function."""
    step_limit_s: float | None = 15.0
    """A peer whose first call takes longer is left out, with a row that says so."""

    def __post_init__(self) -> None:
        """Refuse values that make no sense, each with the way out."""
        super().__post_init__()
        if not self.lengths or min(self.lengths) < 1:
            raise ValueError(f"lengths are one or more positive numbers: got {self.lengths}")
        if not self.modes:
            raise ValueError("modes is empty: wanted forward, step or both")
        check_limit(self.step_limit_s)
        if self.direction is Direction.task:
            raise ValueError("direction: got task; wanted bidirectional or causal")
        if not self.tolerance > 0:
            raise ValueError(
                f"tolerance must be positive: got {self.tolerance}; 1e-3 suits float32"
            )
        for name, least in (
            ("heads", 1),
            ("head_width", 1),
            ("batch_size", 1),
        ):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}: got {getattr(self, name)}")

    @property
    def facing(self) -> Direction:
        """As the options say."""
        return self.direction

    def lacking(self, model: str) -> str:
        """Return which peers are not installed, and how to install them."""
        found = dict.fromkeys(str(error) for peer in of_family(model) for error in _absent(peer))
        return "; ".join(found)

    def passes(self, work: Work) -> Sequence[Passes]:
        """Refuse a family without peers; of others it is not known.

        Raises:
            Unsupported: No peer is known.
            Uncounted: Always else.
        """
        check_family(work.model)
        return super().passes(work)

    def run(self, work: Work) -> Iterator[Measurement]:
        """Yield what is compared with every peer."""
        return compare(
            work.model,
            length=work.length,
            mode=CostMode[work.mode],
            config=self,
            hardware=work.hardware,
            seed=work.seed,
        )


def check_family(family: str) -> list[Peer]:
    """Return the peers of a family. Raises Unsupported where none is known."""
    if not (peers := of_family(family)):
        raise Unsupported(f"no other implementation of {family} is known that runs here")
    return peers


def _absent(peer: Peer) -> Iterator[Missing]:
    try:
        peer.version()
    except Missing as error:
        yield error


def compare(
    family: str,
    *,
    length: int,
    mode: CostMode,
    config: Peers,
    hardware: HardwareProfile,
    seed: int,
) -> Iterator[Measurement]:
    """Compare ours with every peer of a family at one length, and yield rows.

    Raises:
        Unsupported: no peer of the family is known.
    """
    peers = check_family(family)
    case = PeerCase(
        length,
        causal=config.direction is Direction.causal,
        heads=config.heads,
        head_width=config.head_width,
        batch=config.batch_size,
        device=torch.device(str(hardware.device)),
        seed=seed,
    )
    for number, peer in enumerate(peers, 1):
        with phase_prefix(f"{peer.name} ({number} of {len(peers)})"):
            yield from _with_memory(peer, case, mode, config)


def _with_memory(
    peer: Peer, case: PeerCase, mode: CostMode, config: Peers
) -> Iterator[Measurement]:
    """Compare with one peer; one that runs out of memory costs only its own row."""
    try:
        yield from _compared(peer, case, mode, config)
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        where = "".join(f"{note}: " for note in getattr(error, "__notes__", ()))
        reason = where + (" ".join(str(error).split())[:300] or "no memory left")
    else:
        return
    # Outside the handler, whose traceback would keep the tensors of the failed call alive.
    gc.collect()
    if case.device.type == "cuda":
        torch.cuda.empty_cache()
    yield _without(peer, Status.out_of_memory, reason)


def _without(peer: Peer, status: Status, reason: str) -> Measurement:
    labels = {"peer": peer.name, "setting": peer.setting}
    return Measurement(metric="peer_speedup", status=status, reason=reason, labels=labels)


def _compared(peer: Peer, case: PeerCase, mode: CostMode, config: Peers) -> Iterator[Measurement]:
    try:
        version = peer.version()
        pair = peer.pair(case)
    except Missing as error:
        yield _without(peer, Status.skipped, str(error))
        return
    except ValueError as error:
        yield _without(peer, Status.unsupported, str(error))
        return
    labels = {"peer": peer.name, "setting": peer.setting, "version": version}
    phase("first calls")
    watch = Watch(case.device)
    calls = {"ours": _call(pair, pair.ours, mode, 0), "peer": _call(pair, pair.theirs, mode, 1)}
    for side, call in calls.items():
        try:
            time_call(call, case.device)
        except (MemoryError, RuntimeError) as error:
            error.add_note(f"in the first {mode} of {'ours' if side == 'ours' else 'the peer'}")
            raise
    once = {side: try_call(call, watch) for side, call in calls.items()}
    whose, slower = max(once.items(), key=lambda item: item[1].computed_s(watch.threads))
    slow = over_limit(
        "peer_speedup", f"one {mode} of {'ours' if whose == 'ours' else 'the peer'}", slower,
        watch.threads, option="step_limit_s", limit_s=config.step_limit_s,
        labels={"peer": peer.name, "setting": peer.setting},
    )  # fmt: skip
    if slow is not None:
        yield slow
        return
    slowest = max(
        config.warm(calls[side], case.device)
        if sample.seconds <= config.long_step_s
        else sample.seconds
        for side, sample in once.items()
    )
    phase("comparing")
    apart = disagreement(pair, backward=mode is CostMode.step)
    yield Measurement(metric="peer_error", value=apart, labels={**labels, "compared_in": "float32"})
    if peer.same and apart > config.tolerance:
        exact = peer.pair(case._replace(dtype=torch.float64))
        apart = disagreement(exact, backward=mode is CostMode.step)
        del exact
        own = {**labels, "compared_in": "float64"}
        yield Measurement(metric="peer_error", value=apart, labels=own)
    watched = in_turns(calls, watch, config.rounds(slowest), repeat_s=config.repeat_limit_s)
    samples = {side: watched.samples(side) for side in calls}
    phase("measuring memory")
    peaks = {side: peak_tensor_bytes(call, case.device) for side, call in calls.items()}
    for side in ("ours", "peer"):
        own = {**labels, "side": side}
        yield Measurement(
            metric="peer_time",
            value=median(samples[side]),
            samples=samples[side],
            labels=mark_labels(own, watched, samples[side]),
        )
        yield Measurement(metric="peer_peak_tensor_bytes", value=float(peaks[side]), labels=own)
    yield from watch_rows(watched, {"peer": peer.name, "setting": peer.setting})
    if not peer.same or apart > config.tolerance:
        why = peer.note if not peer.same else f"the tolerance is {config.tolerance:g}"
        yield _without(
            peer, Status.unsupported, f"another function: largest relative error {apart:.1e}; {why}"
        )
        return
    ratios = tuple(b / a for a, b in zip(samples["ours"], samples["peer"], strict=True))
    yield Measurement(
        metric="peer_speedup",
        value=median(ratios),
        samples=ratios,
        labels=mark_labels(labels, watched, ratios),
    )
    yield Measurement(metric="peer_bytes_ratio", value=peaks["ours"] / peaks["peer"], labels=labels)


def _call(pair: PeerPair, mix: Mix, mode: CostMode, side: int) -> Callable[[], object]:
    if mode is CostMode.forward:

        def forward() -> Tensor:
            with torch.no_grad():
                out: Tensor = mix(*pair.inputs)
            return out

        return forward
    weights = [twins.theirs if side else twins.ours for twins in pair.weights]
    return partial(gradients, mix, pair.inputs, weights, cotangent(pair))
