"""Time and memory per token while a language model writes, against the context length.

There are two modes. In mode `state` the model reads the context once (prefill) and then one new
token at a time, together with its state: the keys and values of exact attention, the sums of linear
attention, or the last tokens of a window. A model without a state gets a row with this reason. In
mode `recompute` the model reads all tokens so far for each new token; any causal model can do this.

A run has one context length. The context consists of random tokens. Then the model writes: each
token is drawn from its logits and read back. The time of the first token includes the prefill. Then
each of `timed_tokens` further tokens is timed. The state has room for exactly these tokens.
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
from lra.models.kernels.door import check_used, kernel_labels
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
"""Calls of each kind besides those for warm-up and timing, for example to count operations."""
TOKEN = "token"
PERCENTILE = 95
"""Percentile of the times of single tokens that is reported: one token in twenty is slower."""


class DecodeMode(StrEnum):
    """What the model remembers from one token to the next."""

    state = auto()
    """Its state, such as keys and values."""
    recompute = auto()
    """Nothing: it reads all earlier tokens again."""


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
    """Logits are divided by this number before a token is drawn; with 0, the most likely token is
    taken."""
    top_k: int | None = None
    """A token is drawn from this many most likely tokens; None: from all tokens."""
    long_call_s: float = 0.5
    """A call that takes more seconds than this is timed without warm-up."""
    repeat_limit_s: float = REPEAT_LIMIT_S
    """Seconds for repeating samples that other processes disturbed; 0: no sample is repeated."""
    token_limit_s: float | None = 30.0
    """If one token after the context takes more seconds than this, tokens are not timed, and a row
    says so."""

    def __post_init__(self) -> None:
        """Check the options; a ValueError says what to type instead."""
        if not self.lengths or min(self.lengths) < 1:
            raise ValueError(f"lengths: got {self.lengths}; wanted one or more positive numbers")
        if not self.modes:
            raise ValueError("modes: got an empty list; wanted state, recompute or both")
        for name, least, why in (
            ("batch_size", 1, "it counts the texts that are written at the same time"),
            ("timed_tokens", 20, "a 95th percentile needs at least 20 samples"),
            ("timed_prefills", 3, "a spread needs at least 3 samples"),
            ("warmup_tokens", 1, "the first token takes longer than later ones"),
        ):
            if getattr(self, name) < least:
                raise ValueError(
                    f"{name} must be at least {least}, because {why}: got {getattr(self, name)}"
                )
        check_positive(long_call_s=self.long_call_s, token_limit_s=self.token_limit_s)
        check_repeats(self.repeat_limit_s)
        _ = self.sampling  # its constructor checks temperature and top_k

    @property
    def sampling(self) -> TokenSampling:
        """Return how the next token is chosen from logits."""
        return TokenSampling(temperature=self.temperature, top_k=self.top_k)

    @property
    def facing(self) -> Direction:
        """Return that the model is causal: a language model over the task's vocabulary."""
        return Direction.causal

    def passes(self, work: Work) -> list[Passes]:
        """Return the passes that write single tokens, and those that read the context."""
        longest = self.longest(work.length)
        tokens = self.timed_tokens + self.warmup_tokens + OBSERVED
        contexts = self.timed_prefills + OBSERVED
        state = work.mode == DecodeMode.state
        # How many tokens a call reads, and how many such calls there are.
        calls = [(1, tokens), (work.length, contexts)] if state else [(longest, tokens + contexts)]
        return [
            Passes(times, self.batch_size, longest, False, measured=True, read=tokens_read)
            for tokens_read, times in calls
        ]

    def run(self, work: Work) -> Iterator[Measurement]:
        """Yield time and memory per token."""
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
        """Return the time per token and the size of the state."""
        numbers = values(rows)
        if "token_time" not in numbers:
            return ""
        state_bytes = numbers.get("state_bytes")
        state = "" if state_bytes is None else f", a state of {state_bytes / 2**20:.2f} MiB"
        milliseconds = numbers["token_time"] * 1e3
        return f"{milliseconds:.2f} ms per token{state}{noise_note(rows, 'token_time')}"

    def longest(self, length: int) -> int:
        """Return the number of tokens of context (`length`) and continuation together."""
        return length + self.timed_tokens


class TokenWriter:
    """Measures one model that writes after one context.

    Args:
        build: builds the model for inputs of a given number of tokens.
        length: tokens of the context.
        mode: whether the model has a state.
        config: how to measure.
        hardware: the device, and the number format of computations.
        seed: seed that draws the context and the tokens that are written.
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
        # Tokens for which the state has room; None: there is no state.
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
        """Yield the rows: memory, then times, then counts.

        Raises:
            Unsupported: the mode is `state`, but the model has no state.
        """
        phase("first token")
        config, points = self.config, list[Point]()
        first_s = time_call(lambda: points.append(self.first_token()), self.device)
        check_used()
        (after_first,) = points
        token = self.following(after_first)
        if self.memory is not None:
            time_call(token, self.device)  # the first call with a state is slower
        sample = try_call(token, self.watch)
        slow = over_limit(
            "token_time", "one token", sample, self.watch.threads,
            option="token_limit_s", limit_s=config.token_limit_s, labels=kernel_labels(),
        )  # fmt: skip
        if slow is not None:
            yield slow
        if self.hardware.compile:
            yield Measurement(metric="compile_time", value=first_s)
        if slow is None:
            if first_s <= config.long_call_s:
                warm_up(self.first_token, self.device, least=1, long_s=config.long_call_s)
            warm_up(token, self.device, least=config.warmup_tokens, long_s=config.long_call_s)

        phase("measuring memory")
        peak_bytes, kernels = observe(token, self.device)
        yield Measurement(metric="peak_tensor_bytes", value=float(peak_bytes))
        if self.memory is not None:
            peak_bytes, _ = observe(self.prefill, self.device)
            yield Measurement(metric="prefill_peak_tensor_bytes", value=float(peak_bytes))
            yield Measurement(metric="state_bytes", value=float(size_bytes(after_first.state)))
        yield Measurement(metric="process_peak_bytes", value=float(process_peak_bytes()))
        if slow is not None:
            yield from self.counted_rows(token)
            return

        with without_collection():
            openings = self.openings()
            tokens = self.time_tokens(after_first)
        prefills = openings.samples("prefill")
        pairs = zip(prefills, openings.samples("choose"), strict=True)
        firsts = tuple(prefill + choose for prefill, choose in pairs)
        for metric, seconds in (("first_token_time", firsts), ("prefill_time", prefills)):
            # Without a state there is no prefill that later tokens could use.
            if self.memory is not None or metric == "first_token_time":
                yield Measurement(
                    metric=metric,
                    value=median(seconds),
                    samples=seconds,
                    labels=mark_labels({}, openings, seconds),
                )
        samples = tokens.samples(TOKEN)
        mark = mark_labels({}, tokens, samples)
        labels = ({"kernel": kernels} if kernels else {}) | kernel_labels()
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
        """Yield the batch size, the parameters, and the operations of `token`, one token's call."""
        for metric, value in (
            ("batch_size", self.config.batch_size),
            ("flops", count_operations(token)),
            ("parameters", sum(p.numel() for p in self.model.parameters() if p.requires_grad)),
        ):
            yield Measurement(metric=metric, value=float(value))

    def begin(self) -> Point:
        """Return the point of the text before the context is read, with a new empty state."""
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
            # The second of the pair (token, point after it).
            return advance(self.model, point, self.config.sampling, self.generator)[1]

    def following(self, point: Point) -> Callable[[], object]:
        """Return a function that writes the token after `point`; it can be called repeatedly."""
        return lambda: self.advance(point)

    def openings(self) -> Rounds:
        """Time the prefill and the choice of the first token, `timed_prefills` times."""
        count, repeat_s = self.config.timed_prefills, self.config.repeat_limit_s

        def time_opening(number: int) -> Round:
            so_far("timing prefills", min(number, count), count, "sample", MEASURING_S)
            logits: list[Tensor] = []
            read_context = partial(time_call, lambda: logits.append(self.prefill()), self.device)
            prefill = self.watch.sample(read_context)
            choose = partial(self.config.sampling.draw, logits[0], self.generator)
            return {
                "prefill": prefill,
                "choose": self.watch.sample(partial(time_call, choose, self.device)),
            }

        return self.watch.rounds(time_opening, count, repeat_s=repeat_s)

    def time_tokens(self, point: Point) -> Rounds:
        """Time each token that is written after `point`.

        If the machine disturbed any of them, the same tokens are written and timed a second time,
        because the state has no room for more tokens. Then each disturbed time is replaced by the
        second time of the same token.
        """
        start = time.perf_counter()
        first_times = self.time_tokens_once(point)
        second_times: list[Round] = []
        spent_s = time.perf_counter() - start
        if any(map(cause, first_times)) and spent_s <= self.config.repeat_limit_s:
            second_times = self.time_tokens_once(point)
        pairs = zip(first_times, second_times or first_times, strict=True)
        chosen = [second if cause(first) else first for first, second in pairs]
        watched = self.watch.judged(chosen, self.config.timed_tokens)
        return replace(watched, every=[*first_times, *second_times])

    def time_tokens_once(self, point: Point) -> list[Round]:
        """Write `timed_tokens` tokens after `point`, and return the time of each one."""

        def write_token() -> None:
            nonlocal point
            point = self.advance(point)

        time_token = partial(time_call, write_token, self.device)
        total = self.config.timed_tokens
        times: list[Round] = []
        for number in range(total):
            so_far("timing tokens", number, total, "token", MEASURING_S)
            times.append({TOKEN: self.watch.sample(time_token)})
        return times
