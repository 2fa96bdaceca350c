"""Loss against context length: the same tokens, each predicted from exactly c tokens before it.

    l(c, t) = -log P(x_t | x_{t-c}, ..., x_{t-1})

The tokens x_t are drawn from the second half of a split, so they are the same for every model and
every c up to half of the split. A model without a state reads the c tokens as one window. A model
with a state (`task.regime=memory`) reads them in evaluation windows, beginning with an empty state.

The losses of single tokens are stored as the samples of each mean, because a report compares them
token by token: relative effective context length (RECL, Dai et al. 2019, arXiv:1901.02860,
appendix C; `lra.reports.statistics.recl`).
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import ClassVar, NamedTuple, cast

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lra.conf.bounds import check_least, check_several
from lra.conf.choices import by_name
from lra.models.backbone.heads import TokenHead
from lra.models.backbone.model import Backbone
from lra.models.mixer import State, Unsupported
from lra.runners.isolation.progress import phase_prefix, so_far
from lra.runners.measurement.device import autocast
from lra.runners.measurement.hardware import HardwareProfile
from lra.runners.measures.extrapolate import longer_builds
from lra.runners.measures.trained_runner import TrainedRunner
from lra.runners.records import Measurement, Status, digest
from lra.runners.runner import Passes, Work
from lra.runners.training.recurrent_state import remembered_tokens
from lra.tasks.language.base import LanguageTask
from lra.tasks.task import SPLITS, Derives, Kind, Task


@by_name
@dataclass(frozen=True, kw_only=True)
class LossByContext(TrainedRunner):
    """Which tokens are predicted, and from which context lengths."""

    outcome: ClassVar[str] = "loss"

    contexts: list[int] | None = None
    """Context lengths in tokens; None: powers of two up to `longest`, and `longest`."""
    longest: int | None = None
    """Longest context in tokens; None: one evaluation window plus the memory, if there is one."""
    step: int | None = None
    """If given, all multiples of it up to the longest context are contexts, too; relative effective
    context length (RECL) compares them."""
    split: str = "test"
    targets: int = 1000
    """Number of predicted tokens, drawn from the second half of the split."""
    batch_size: int = 64
    """Rows of a batch for contexts up to one evaluation window. Batches of longer contexts have
    fewer rows, so that all have about as many tokens."""

    def __post_init__(self) -> None:
        """Check the options; a ValueError says what to type instead."""
        fixed = self.contexts
        check_several("tokens", contexts=fixed)
        if fixed is not None and self.longest is not None:
            raise ValueError(
                f"longest limits the contexts that lra chooses, but contexts are given: got "
                f"contexts={fixed} and longest={self.longest}; set one of them to null"
            )
        for name in ("longest", "step"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise ValueError(f"{name} must be at least 1 token, or null: got {value}")
        check_least(1, targets=self.targets, batch_size=self.batch_size)
        if self.split not in SPLITS:
            raise ValueError(f"split: got {self.split!r}; wanted one of {', '.join(SPLITS)}")

    def lengths(self, window: int, memory: int) -> list[int]:
        """Return the context lengths in tokens, ascending.

        Args:
            window: Tokens of an evaluation window.
            memory: How many tokens before the window a state remembers; 0: there is no state.
        """
        longest = self.longest or window + memory
        if self.contexts is not None:
            longest = max(self.contexts)
        # All powers of two up to `longest`, which itself may lie between two of them.
        powers = {2**power for power in range(longest.bit_length())} | {longest}
        contexts = powers if self.contexts is None else set(self.contexts)
        if self.step is not None:
            contexts |= set(range(self.step, longest + 1, self.step))
        return sorted(contexts)

    def rows(self, context: int, window: int) -> int:
        """Return how many rows of `context` tokens a batch has."""
        return rows_of_length(context, window, self.batch_size)

    def passes(self, work: Work) -> list[Passes]:
        """Return the passes over every context, which is read at once or in several windows."""
        task, passes = streams_of(work.task), []
        window = task.window(self.split)
        memory = remembered_tokens(work.backbone, task, training=False) if task.memory else 0
        for context in self.lengths(window, memory):
            rows = min(self.rows(context, window), self.targets)
            batches = -(-self.targets // rows)
            if not memory or context < window:
                passes.append(Passes(batches, rows, context, False))
            else:
                passes.append(Passes(batches * context / window, rows, window, False))
        return passes

    def unfit(self, task: Task, families: Sequence[object]) -> str:
        """Return why a task has no long text; "" if it has."""
        del families
        return lack_of_text(task)

    def run(self, work: Work) -> Iterator[Measurement]:
        """Yield the losses at every context.

        Raises:
            Unsupported: The task has no long text.
        """
        streams_of(work.task)
        model, origins = self.model_of(work)
        yield from origins
        build = longer_builds(work, model)
        yield from loss_by_context(
            build, work.task, config=self, hardware=work.hardware, seed=work.seed
        )

    @classmethod
    def title(cls, row: Measurement) -> str:
        """Return metric and context."""
        return f"{row.metric} from {row.labels['context']} tokens"


def rows_of_length(length: int, window: int, most: int) -> int:
    """Return how many rows of `length` tokens a batch has: `most`, or fewer beyond a window."""
    return max(1, min(most, most * window // length))


def lack_of_text(task: Task) -> str:
    """Return why a task has no long text whose next token is predicted; "" if it has."""
    if isinstance(task, LanguageTask) and task.spec.kind is Kind.language_modelling:
        return ""
    return (
        f"this runner needs a long text, but task={task.spec.name} has none; choose enwik8, "
        "text8, wikitext103, wikitext2, pg19, corpus or proteins"
    )


def streams_of(task: Task) -> LanguageTask:
    """Return the task itself if it reads long texts. Raises Unsupported for another task."""
    if reason := lack_of_text(task):
        raise Unsupported(reason)
    return cast(LanguageTask, task)


class Targets(NamedTuple):
    """The tokens that are predicted."""

    stream: np.ndarray
    """All tokens of the split."""
    positions: Int[np.ndarray, " t"]
    """Positions in the stream, ascending."""
    drawn: str
    """Hash of stream and positions: models with the same hash predict the same tokens."""


def draw_targets(task: LanguageTask, split: str, number: int, seed: int) -> Targets:
    """Draw `number` tokens from the second half of a split, or all if there are fewer."""
    stream = task.split(split).tokens
    half = len(stream) // 2
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randperm(len(stream) - half, generator=generator)[:number].sort().values
    positions = chosen.numpy() + half
    drawn = digest([task.spec.data_hash, split, positions.tolist()], digits=8)
    return Targets(stream, positions, drawn)


def loss_by_context(
    build: Callable[[int], Backbone],
    task: Task,
    *,
    config: LossByContext,
    hardware: HardwareProfile,
    seed: int,
) -> Iterator[Measurement]:
    """Predict the same tokens from contexts of every length, the shortest first, and yield rows.

    Args:
        build: Returns the trained model for inputs of a given number of tokens; raises
            `Unsupported` if the model cannot read so many.
        task: The task, with prepared data.
        config: Which tokens and contexts.
        hardware: The device, and the number format of computations.
        seed: Seed that draws the predicted tokens.

    Raises:
        Unsupported: The task has no long text.
    """
    task = streams_of(task)
    window = task.window(config.split)
    targets = draw_targets(task, config.split, config.targets, seed)
    step = {} if config.step is None else {"context_step": str(config.step)}
    labels = {
        "split": config.split, "targets": str(len(targets.positions)), "drawn": targets.drawn,
        **step,
    }  # fmt: skip
    built = cache(build)  # a model with a state is built once for all contexts
    memory = remembered_tokens(built(window).config, task, training=False) if task.memory else None
    contexts = config.lengths(window, memory or 0)
    for number, context in enumerate(contexts, 1):
        row_labels = {**labels, "context": str(context)}
        if context > targets.positions[0]:
            reason = (
                f"the first predicted token of the {config.split} split has only "
                f"{targets.positions[0]:,} tokens before it: choose shorter runner.contexts"
            )
            yield Measurement(
                metric="loss", status=Status.skipped, reason=reason, labels=row_labels
            )
            continue
        with phase_prefix(f"context of {context:,} tokens ({number} of {len(contexts)})"):
            try:
                model = built(context if memory is None else window)
            except Unsupported as error:
                reason = str(error)
                yield Measurement(
                    metric="loss", status=Status.unsupported, reason=reason, labels=row_labels
                )
                continue
            reading = ContextReading(context, config.rows(context, window), window, memory)
            nll, hit = target_losses(model, targets, reading, hardware)
        yield from _score_rows(task, nll, hit, row_labels)


class ContextReading(NamedTuple):
    """How a model reads the tokens before a predicted token."""

    context: int
    """How many tokens before the predicted token are read."""
    rows: int
    """Rows of a batch."""
    window: int
    """A model with a state reads the context in parts of so many tokens."""
    memory: int | None
    """Tokens that a state remembers; None: there is no state, and the context is read at once."""


def target_losses(
    model: Backbone, targets: Targets, way: ContextReading, hardware: HardwareProfile
) -> tuple[Float[Tensor, " t"], Bool[Tensor, " t"]]:
    """Return, for each of the t targets, the loss in nats and whether the top token is correct."""
    device = torch.device(str(hardware.device))
    model = model.to(device).eval()
    results = []
    with torch.inference_mode(), autocast(hardware):
        for first in range(0, len(targets.positions), way.rows):
            so_far("predicting", first, len(targets.positions), "token")
            positions = targets.positions[first : first + way.rows]
            # [r, c]: the c tokens before each of r positions.
            before = targets.stream[positions[:, None] + np.arange(-way.context, 0)]
            tokens = torch.from_numpy(before.astype(np.int64)).to(device)
            target = torch.from_numpy(targets.stream[positions].astype(np.int64)).to(device)
            results.append(judge_last(model, tokens, target, way))
    nll, hit = (torch.cat(parts).cpu() for parts in zip(*results, strict=True))
    return nll.double(), hit


def judge_last(
    model: Backbone, tokens: Int[Tensor, "r c"], target: Int[Tensor, " r"], way: ContextReading
) -> tuple[Float[Tensor, " r"], Bool[Tensor, " r"]]:
    """Return the loss of the token after each row, and whether it is the most likely one.

    Args:
        model: The model, in evaluation mode.
        tokens: The c tokens before each target.
        target: The token to predict, one for each row.
        way: Whether to read the tokens at once, or in windows with a state.
    """
    state: State = None
    parts = [tokens]
    if way.memory is not None:
        state = model.initial_state(len(tokens), way.memory)
        parts = list(torch.split(tokens, way.window, dim=1))
    for part in parts:
        flow = model.run(part[:, None], None, state)
        state = flow.state
    nll, hit = cast(TokenHead, model.head).judge(flow.x[:, -1:], target[:, None])
    assert hit is not None, "outside training, a head must return which tokens it predicts"
    return nll[:, 0], hit[:, 0]


def _score_rows(
    task: Task, nll: Float[Tensor, " t"], hit: Bool[Tensor, " t"], labels: dict[str, str]
) -> Iterator[Measurement]:
    """Yield the scores at one context; the row of the mean loss has all losses as samples."""
    loss = float(nll.mean())
    reason = f"the mean loss is {loss} at this context length"
    try:
        derived_scores = (
            task.derived_metrics(labels["split"], loss) if isinstance(task, Derives) else {}
        )
    except OverflowError:
        loss, reason = math.inf, "the loss is so large that its perplexity is not finite"
    if not math.isfinite(loss):
        yield Measurement(metric="loss", status=Status.diverged, reason=reason, labels=labels)
        return
    samples = tuple(float(f"{value:.6g}") for value in nll.tolist())
    yield Measurement(metric="loss", value=loss, samples=samples, labels=labels)
    for name, value in {"accuracy": float(hit.double().mean()), **derived_scores}.items():
        yield Measurement(metric=name, value=value, labels=labels)
