"""Time and memory per token while a language model writes, against the context length.

Two modes. `state` reads the context once (prefill) and then each new token alone, from what the
model remembers: the keys and values of exact attention, the sums of linear attention, the last
tokens of a window. `recompute` remembers nothing and reads everything so far for each token, which
any causal model can do. A model without a state has a row that says so in mode `state`.

A cell is one context length. The context is random tokens. After it the model writes: each token is
chosen from its logits and fed back. The time of the first token includes reading the context. Then
each of `timed_tokens` more tokens is timed. The state has room for exactly these tokens.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum, auto
from functools import partial
from statistics import median
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from lra.conf.bounds import check_positive
from lra.conf.choices import by_name
from lra.models.backbone.generation import Point, TokenSampling, advance, begin, next_logits
from lra.models.backbone.model import Backbone
from lra.models.contract.counting import count_operations
from lra.models.state import size_bytes
from lra.runners.isolation.progress import MEASURING_S, phase, so_far
from lra.runners.measurement.device import autocast
from lra.runners.measurement.hardware import HardwareProfile
from lra.runners.measurement.measure import (
    observe,
    process_peak_bytes,
    stalls,
    time_call,
    try_call,
    warm_up,
    without_collection,
)
from lra.runners.measurement.timing import REPEAT_LIMIT_S, check_repeats
from lra.runners.measurement.watch import Round, Rounds, Watch, cause
from lra.runners.measurement.watched_rows import mark_labels, over_limit, watch_rows
from lra.runners.records import Measurement
from lra.runners.runner import Direction, Passes, Runner, Work, noise_note, values

OBSERVED = 4
"""Calls of each kind besides warm-up and timed ones: the first, for memory, for operations."""
TOKEN = "token"
PERCENTILE = 95
"""Percentile of the times of single tokens: a delay that readers meet now and then."""


class DecodeMode(StrEnum):
    """What is remembered from one token to the next."""

    state = auto()
    """The model's state along time."""
    recompute = auto()
    """The tokens alone, which are all read again."""


@by_name
@dataclass(frozen=True, kw_only=True)
class Decode(Runner):
    """How time and memory per token are measured."""

    outcome: ClassVar[str] = "token_time"
    data: ClassVar[bool] = False
    timed: ClassVar[bool] = True
    by_length: ClassVar[bool] = True
    incidental: ClassVar[frozenset[str]] = frozenset({"repeat_limit_s"})

    lengths: list[int] = field(default_factory=lambda: [256, 512, 1024, 2048, 4096, 8192])
    """Context lengths in tokens."""
    modes: list[DecodeMode] = field(
        default_factory=lambda: [DecodeMode.state, DecodeMode.recompute]
    )
    batch_size: int = 1
    """Texts that are written at the same time."""
    timed_tokens: int = 32
    timed_prefills: int = 5
    warmup_tokens: int = 3
    temperature: float = 1.0
    """Logits are divided by this before a token is drawn; 0 takes the most likely one."""
    top_k: int | None = None
    """Number of most likely tokens to draw from; None: all."""
    long_call_s: float = 0.5
    """A call that takes longer gets no warm-up."""
    repeat_limit_s: float = REPEAT_LIMIT_S
    """Seconds for repeating samples that the machine disturbed; 0: none are repeated."""
    token_limit_s: float | None = 30.0
    """If one token after the context takes longer, the run is skipped with a row."""

    def __post_init__(self) -> None:
        """Check the options; a ValueError says what to type instead."""
        if not self.lengths or min(self.lengths) < 1:
            raise ValueError(f"lengths: got {self.lengths}; wanted one or more positive numbers")
        if not self.modes:
            raise ValueError("modes: got an empty list; wanted state, recompute or both")
        for name, least, why in (
            ("batch_size", 1, "texts written at the same time"),
            ("timed_tokens", 20, "a 95th percentile needs as many"),
            ("timed_prefills", 3, "a spread needs as many"),
            ("warmup_tokens", 1, "the first token includes work that is done once"),
        ):
            if getattr(self, name) < least:
                raise ValueError(
                    f"{name} must be at least {least} ({why}): got {getattr(self, name)}"
                )
        check_positive(long_call_s=self.long_call_s, token_limit_s=self.token_limit_s)
        check_repeats(self.repeat_limit_s)
        _ = self.sampling

    @property
    def sampling(self) -> TokenSampling:
        """How a token is chosen."""
        return TokenSampling(temperature=self.temperature, top_k=self.top_k)

    @property
    def facing(self) -> Direction:
        """A language model over the task's vocabulary, for any task."""
        return Direction.causal

    def passes(self, work: Work) -> list[Passes]:
        """Return the passes of one token, then those that read the context."""
        longest = self.longest(work.length)
        tokens = self.timed_tokens + self.warmup_tokens + OBSERVED
        contexts = self.timed_prefills + OBSERVED
        state = work.mode == DecodeMode.state
        read = [(1, tokens), (work.length, contexts)] if state else [(longest, tokens + contexts)]
        return [
            Passes(times, self.batch_size, longest, False, measured=True, read=each)
            for each, times in read
        ]

    def run(self, work: Work) -> Iterator[Measurement]:
        """Yield the cost of a token."""
        writer = TokenWriter(
            lambda longest: work.build(max_length=longest),
            length=work.length,
            mode=DecodeMode[work.mode],
            config=self,
            hardware=work.hardware,
            seed=work.seed,
        )
        yield from writer.rows()

    @classmethod
    def headline(cls, rows: Sequence[Measurement]) -> str:
        """Return time and state of a token."""
        numbers = values(rows)
        if "token_time" not in numbers:
            return ""
        state_bytes = numbers.get("state_bytes")
        state = "" if state_bytes is None else f", state of {state_bytes / 2**20:.2f} MiB"
        milliseconds = numbers["token_time"] * 1e3
        return f"{milliseconds:.2f} ms a token{state}{noise_note(rows, 'token_time')}"

    def longest(self, length: int) -> int:
        """Return the number of tokens in context and continuation together."""
        return length + self.timed_tokens


class TokenWriter:
    """One model, one context, and the calls that are measured.

    Args:
        build: builds the model for inputs of a number of tokens.
        length: tokens of the context.
        mode: with a state or without.
        config: how to measure.
        hardware: device and precision.
        seed: draws the context and the tokens that are written.
    """

    def __init__(
        self,
        build: Callable[[int], Backbone],
        *,
        length: int,
        mode: DecodeMode,
        config: Decode,
        hardware: HardwareProfile,
        seed: int,
    ) -> None:
        phase("building")
        self.config, self.hardware = config, hardware
        self.device = torch.device(str(hardware.device))
        self.memory = config.longest(length) if mode is DecodeMode.state else None
        self.model = build(config.longest(length)).to(self.device).eval()
        if hardware.compile:
            for block in self.model.blocks:
                block.compile()
        drawn = torch.randint(
            self.model.facts.vocabulary,
            (config.batch_size, length),
            generator=torch.Generator().manual_seed(seed),
        )
        self.context = drawn.to(self.device)
        self.generator = torch.Generator(self.device).manual_seed(seed)
        self.watch = Watch(self.device)

    def rows(self) -> Iterator[Measurement]:
        """Yield the rows. Raises `Unsupported` if mode `state` asks for a state that is missing."""
        phase("first token")
        config, begun = self.config, list[Point]()
        first = time_call(lambda: begun.append(self.first_token()), self.device)
        token = self.following(begun[0])
        if self.memory is not None:
            time_call(token, self.device)
        sample = try_call(token, self.watch)
        slow = over_limit(
            "token_time", "one token", sample, self.watch.threads,
            option="token_limit_s", limit_s=config.token_limit_s,
        )  # fmt: skip
        if slow is not None:
            yield slow
        if self.hardware.compile:
            yield Measurement(metric="compile_time", value=first)
        if slow is None:
            if first <= config.long_call_s:
                warm_up(self.first_token, self.device, least=1, long_s=config.long_call_s)
            warm_up(token, self.device, least=config.warmup_tokens, long_s=config.long_call_s)

        phase("measuring memory")
        peak_bytes, kernels = observe(token, self.device)
        yield Measurement(metric="peak_tensor_bytes", value=float(peak_bytes))
        if self.memory is not None:
            peak_bytes, _ = observe(self.prefill, self.device)
            yield Measurement(metric="prefill_peak_tensor_bytes", value=float(peak_bytes))
            yield Measurement(metric="state_bytes", value=float(size_bytes(begun[0].state)))
        yield Measurement(metric="process_peak_bytes", value=float(process_peak_bytes()))
        if slow is not None:
            yield from self.counted_rows(token)
            return

        with without_collection():
            openings = self.openings()
            tokens = self.time_tokens(begun[0])
        prefills = openings.samples("prefill")
        pairs = zip(prefills, openings.samples("choose"), strict=True)
        firsts = tuple(prefill + choose for prefill, choose in pairs)
        for metric, opened in (("first_token_time", firsts), ("prefill_time", prefills)):
            if self.memory is not None or metric == "first_token_time":
                yield Measurement(
                    metric=metric,
                    value=median(opened),
                    samples=opened,
                    labels=mark_labels({}, openings, opened),
                )
        samples = tokens.samples(TOKEN)
        mark = mark_labels({}, tokens, samples)
        labels = {"kernel": kernels} if kernels else {}
        token_s = median(samples)
        yield Measurement(metric="token_time", value=token_s, samples=samples, labels=labels | mark)
        yield Measurement(
            metric="token_time_percentile",
            value=float(np.percentile(samples, PERCENTILE)),
            labels={"percentile": str(PERCENTILE)} | mark,
        )
        rate = config.batch_size / token_s
        yield Measurement(metric="tokens_per_second", value=rate, labels=mark)
        yield from watch_rows(tokens)
        yield Measurement(metric="timed_steps", value=float(len(samples)))
        yield Measurement(metric="stalls", value=float(stalls(samples)))
        yield from self.counted_rows(token)

    def counted_rows(self, token: Callable[[], object]) -> Iterator[Measurement]:
        """Yield the counts of one call for one token."""
        for metric, value in (
            ("batch_size", self.config.batch_size),
            ("flops", count_operations(token)),
            ("parameters", sum(p.numel() for p in self.model.parameters() if p.requires_grad)),
        ):
            yield Measurement(metric=metric, value=float(value))

    def begin(self) -> Point:
        """Return the point before the context is read, with a new empty state."""
        return begin(self.model, self.context, memory=self.memory)

    def prefill(self) -> Tensor:
        """Read the context and return the logits of the first token."""
        with torch.inference_mode(), autocast(self.hardware):
            logits, _ = next_logits(self.model, self.begin())
            return logits

    def first_token(self) -> Point:
        """Read the context, choose the first token, and return the point after it."""
        with torch.inference_mode():
            return self.advance(self.begin())

    def advance(self, point: Point) -> Point:
        """Choose the next token, and return the point after it."""
        with torch.inference_mode(), autocast(self.hardware):
            return advance(self.model, point, self.config.sampling, self.generator)[1]

    def following(self, point: Point) -> Callable[[], object]:
        """Return a call that writes the token after `point`; it can be repeated."""
        return lambda: self.advance(point)

    def openings(self) -> Rounds:
        """Time the prefill and the choice of the first token, as often as asked."""
        count, repeat_s = self.config.timed_prefills, self.config.repeat_limit_s

        def opening(number: int) -> Round:
            so_far("timing prefills", min(number, count), count, "sample", MEASURING_S)
            logits: list[Tensor] = []
            read_context = partial(time_call, lambda: logits.append(self.prefill()), self.device)
            prefill = self.watch.sample(read_context)
            choose = partial(self.config.sampling.draw, logits[0], self.generator)
            return {
                "prefill": prefill,
                "choose": self.watch.sample(partial(time_call, choose, self.device)),
            }

        return self.watch.rounds(opening, count, repeat_s=repeat_s)

    def time_tokens(self, point: Point) -> Rounds:
        """Time each token that is written after `point`.

        If any was disturbed, all tokens are written once more, because the state has no room for
        others. Then each disturbed time is replaced by the second one of the same token.
        """
        begun = time.perf_counter()
        first = self.time_tokens_once(point)
        again: list[Round] = []
        spent = time.perf_counter() - begun
        if any(map(cause, first)) and spent <= self.config.repeat_limit_s:
            again = self.time_tokens_once(point)
        pairs = zip(first, again or first, strict=True)
        chosen = [repeated if cause(once) else once for once, repeated in pairs]
        watched = self.watch.judged(chosen, self.config.timed_tokens)
        return replace(watched, every=[*first, *again])

    def time_tokens_once(self, point: Point) -> list[Round]:
        """Write `timed_tokens` tokens after `point`, and time each one."""

        def write() -> None:
            nonlocal point
            point = self.advance(point)

        one = partial(time_call, write, self.device)
        total = self.config.timed_tokens
        taken: list[Round] = []
        for number in range(total):
            so_far("timing tokens", number, total, "token", MEASURING_S)
            taken.append({TOKEN: self.watch.sample(one)})
        return taken
