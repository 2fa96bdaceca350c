"""Copy advantage: how much better a model predicts a segment that it has read before.

    with a copy          [ copy of A          ][ d tokens ][ A ]
    without, native      [ text before these  ][ d tokens ][ A ]
    without, foreign     [ unrelated segment  ][ d tokens ][ A ]

    advantage(d) = mean loss of A without the copy - mean loss of A with it       in nats a token

The d tokens and A are successive text of one split, so that native is a piece of text as it is.
The segments A are the same for every distance and every model. The copy is A itself, or A reversed,
or either of them with some tokens replaced. A model without a state reads each row as one window;
a model with a state reads it in evaluation windows, beginning with an empty state.
"""

import math
from collections.abc import Callable, Iterator
from enum import StrEnum, auto
from functools import cache, partial
from itertools import product
from typing import NamedTuple, cast

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Integer
from torch import Tensor

from lra.models.backbone.heads import asked_items
from lra.models.backbone.model import Backbone
from lra.models.mixer import Layout, State, Unsupported
from lra.runners.isolation.progress import so_far
from lra.runners.measurement.device import autocast
from lra.runners.measurement.hardware import HardwareProfile
from lra.runners.measures.context import ContextReading, rows_of_length
from lra.runners.records import Measurement, Status, digest
from lra.runners.training.recurrent_state import remembered_tokens
from lra.tasks.language.base import LanguageTask


class CopyControl(StrEnum):
    """What stands in the place of the copy in the rows without it."""

    native = auto()
    """The text that really precedes the following tokens."""
    foreign = auto()
    """A segment from another place of the split."""


class CopyForm(StrEnum):
    """How the copy differs from the segment."""

    exact = auto()
    reversed = auto()
    """In reverse order; for an alphabet with complements, the complement of each token."""


class CopyOptions(NamedTuple):
    """Which segments are repeated, and how."""

    split: str
    size: int
    """Tokens of a segment."""
    segments: int
    distances: list[int]
    """Tokens between the end of the copy and the segment, ascending."""
    forms: list[CopyForm]
    mutated: list[float]
    """Probabilities with which a token of a copy is replaced by another token of the split."""
    controls: list[CopyControl]


class Segments(NamedTuple):
    """Segments of a text, and what stands in the place of the copy; m segments of s tokens."""

    stream: np.ndarray
    """All tokens of the split."""
    starts: Int[np.ndarray, " m"]
    """Position of the first token of each segment in the stream."""
    copies: dict[str, Int[np.ndarray, "m s"]]
    """Copies by form and share of replaced tokens, as in `exact, 10 % replaced`."""
    foreign: Int[np.ndarray, "_ s"]
    """Unrelated segments that overlap no row of their segment; empty without this control."""
    drawn: str
    """Hash of stream and positions: models with the same hash predict the same segments."""


def draw_segments(task: LanguageTask, options: CopyOptions, seed: int) -> Segments:
    """Draw segments that do not overlap, their copies, and unrelated segments.

    Raises:
        Unsupported: The split has too few segments with enough text before them.
    """
    size, split = options.size, options.split
    stream, row = task.split(split).tokens, 2 * size + options.distances[-1]
    slots = np.concatenate(
        [np.arange(first + row - size, last - size + 1, size) for first, last in task.texts(split)]
    )
    generator = torch.Generator().manual_seed(seed)
    order = slots[torch.randperm(len(slots), generator=generator).numpy()]
    starts = np.sort(order[: options.segments])
    needed = starts if CopyControl.foreign in options.controls else starts[:0]
    apart = [slots[np.abs(slots - start) >= row] for start in needed]
    if len(starts) < 2 or not all(map(len, apart)):
        raise Unsupported(
            f"a row with a copy has {row:,} tokens (two segments of {size:,} and "
            f"{options.distances[-1]:,} tokens between them), but the {split} split of "
            f"{task.spec.name} has too few texts of this length: lower runner.segment or "
            "runner.distances"
        )
    words = torch.randint(2**62, (len(starts),), generator=generator).tolist()
    unrelated = [far[word % len(far)] for far, word in zip(apart, words, strict=False)]
    within = np.arange(size)
    segments = stream[starts[:, None] + within].astype(np.int64)
    copies = {}
    for form, share in product(options.forms, options.mutated):
        copied = f"{form}, {100 * share:g} % replaced" if share else str(form)
        copies[copied] = copy_of(segments, task, form)
        if share:
            occurring = np.unique(stream).astype(np.int64)
            copies[copied] = mutate(copies[copied], share, occurring, generator)
    return Segments(
        stream=stream,
        starts=starts,
        copies=copies,
        foreign=stream[np.array(unrelated, np.int64)[:, None] + within].astype(np.int64),
        drawn=digest([task.spec.data_hash, split, size, starts.tolist()], digits=8),
    )


def copy_of(
    segments: Int[np.ndarray, "m s"], task: LanguageTask, form: CopyForm
) -> Int[np.ndarray, "m s"]:
    """Return copies of segments in a form."""
    if form is CopyForm.exact:
        return segments
    backwards = segments[:, ::-1]
    return backwards if task.complements is None else task.complements[backwards]


def mutate(
    copies: Int[np.ndarray, "m s"],
    share: float,
    occurring: Int[np.ndarray, " u"],
    generator: torch.Generator,
) -> Int[np.ndarray, "m s"]:
    """Replace each token with probability `share` by another one of the ascending `occurring`."""
    replaced = torch.rand(copies.shape, generator=generator).numpy() < share
    steps = torch.randint(1, max(2, len(occurring)), copies.shape, generator=generator).numpy()
    others = occurring[(np.searchsorted(occurring, copies) + steps) % len(occurring)]
    return np.where(replaced, others, copies)


def copy_rows(
    build: Callable[[int], Backbone],
    task: LanguageTask,
    *,
    options: CopyOptions,
    batch_size: int,
    hardware: HardwareProfile,
    seed: int,
) -> Iterator[Measurement]:
    """Measure the copy advantage at every distance, the shortest first, and yield its rows.

    Args:
        build: Returns the trained model for inputs of a given number of tokens; raises
            `Unsupported` if the model cannot read so many.
        task: The task, with prepared data.
        options: Which segments are repeated, and how.
        batch_size: Rows of a batch of one evaluation window; longer rows are fewer.
        hardware: The device, and the number format of computations.
        seed: Seed that draws segments and copies.

    Raises:
        Unsupported: The split has too few segments with enough text before them.
    """
    segments = draw_segments(task, options, seed)
    window = task.window(options.split)
    built = cache(build)  # a model with a state is built once for all distances
    memory = remembered_tokens(built(window).config, task, training=False) if task.memory else None
    labels = {
        "split": options.split, "segment": str(options.size), "drawn": segments.drawn,
        "segments": str(len(segments.starts)),
    }  # fmt: skip
    for distance in options.distances:
        row_labels = labels | {"distance": str(distance)}
        length = 2 * options.size + distance - int(task.begin is None)
        rows = rows_of_length(length, window, batch_size)
        try:
            model = built(length if memory is None else window)
        except Unsupported as error:
            yield Measurement(
                metric="copy_advantage", status=Status.unsupported, reason=str(error),
                labels=row_labels,
            )  # fmt: skip
            continue
        follows = segments.starts[:, None] + np.arange(-distance, options.size)
        before = follows[:, :1] + np.arange(-options.size, 0)
        controls = {
            CopyControl.native: segments.stream[before],
            CopyControl.foreign: segments.foreign,
        }
        losses_after = partial(
            segment_losses, model, way=ContextReading(length, rows, window, memory),
            follows=segments.stream[follows], size=options.size, task=task, hardware=hardware,
        )  # fmt: skip
        without = {str(name): losses_after(controls[name]) for name in options.controls}
        for copied, copies in segments.copies.items():
            with_copy = losses_after(copies)
            told = row_labels | {"copied": copied}
            yield from _mean_rows("copied_loss", with_copy, told)
            for control, losses in without.items():
                compared = told | {"control": control}
                yield from _mean_rows("copy_advantage", losses - with_copy, compared)


def _mean_rows(
    metric: str, values: Float[Tensor, " m"], labels: dict[str, str]
) -> Iterator[Measurement]:
    """Yield the mean over segments, with the numbers of all segments as samples."""
    samples = tuple(float(f"{value:.6g}") for value in values.tolist())
    if all(map(math.isfinite, samples)):
        mean = math.fsum(samples) / len(samples)
        yield Measurement(metric=metric, value=mean, samples=samples, labels=labels)
    else:
        reason = "the loss of a segment is not finite at this distance"
        yield Measurement(metric=metric, status=Status.diverged, reason=reason, labels=labels)


def segment_losses(
    model: Backbone,
    first: Integer[np.ndarray, "m s"],
    *,
    follows: Integer[np.ndarray, "m t"],
    size: int,
    task: LanguageTask,
    way: ContextReading,
    hardware: HardwareProfile,
) -> Float[Tensor, " m"]:
    """Return the mean loss in nats of the last `size` tokens of each row.

    Args:
        model: The model.
        first: First part of each row: a copy, or a control.
        follows: The text after it, which ends with the segment.
        size: Tokens of a segment.
        task: The task, which says with which token a row begins and which tokens count.
        way: Whether to read a row at once, or in windows with a state.
        hardware: The device, and the number format of computations.
    """
    device = torch.device(str(hardware.device))
    model, means = model.to(device).eval(), list[Tensor]()
    begin = np.full((len(first), int(task.begin is not None)), task.begin or 0)
    rows = torch.from_numpy(np.concatenate((begin, first, follows), 1).astype(np.int64))
    with torch.inference_mode(), autocast(hardware):
        for tokens in torch.split(rows, way.rows):
            so_far("reading", sum(map(len, means)), len(rows), "segment")
            weight = torch.zeros_like(tokens[:, 1:], dtype=torch.float64)
            weight[:, -size:] = 1
            if task.unscored is not None:
                weight[tokens[:, 1:] == task.unscored] = 0
            nll = row_losses(model, tokens.to(device), weight, way, masked=bool(task.spec.masks))
            means.append((nll.double().cpu() * weight).sum(1) / weight.sum(1))
    return torch.cat(means)


def row_losses(
    model: Backbone,
    tokens: Int[Tensor, "r l_plus_1"],
    weight: Float[Tensor, "r l"],
    way: ContextReading,
    *,
    masked: bool,
) -> Float[Tensor, "r l"]:
    """Return the losses of `row_outcomes`."""
    return row_outcomes(model, tokens, weight, way, masked=masked)[0]


def row_outcomes(
    model: Backbone,
    tokens: Int[Tensor, "r l_plus_1"],
    weight: Float[Tensor, "r l"],
    way: ContextReading,
    *,
    masked: bool,
) -> tuple[Float[Tensor, "r l"], Bool[Tensor, "r l"]]:
    """Return the loss of each token except the first of its row, and whether it is the likeliest.

    Where the weight is 0, both are 0.

    Args:
        model: The model, in evaluation mode.
        tokens: The rows.
        weight: 1 at tokens that are scored, 0 elsewhere.
        way: Whether to read a row at once, or in windows with a state.
        masked: Whether the task says to which document each token belongs; a row is one document.
    """
    state: State = None
    window = weight.shape[1]
    if way.memory is not None:
        state, window = model.initial_state(len(tokens), way.memory), way.window
    losses, hits = [], []
    for start in range(0, weight.shape[1], window):
        read = tokens[:, start : start + window + 1]
        layout = Layout(document=torch.zeros_like(read[:, 1:]) if masked else None)
        asked = asked_items(weight[:, start : start + window])
        asked = None if asked is None else asked.to(tokens.device)
        outcome = model(
            read[:, None, :-1], read[:, 1:].contiguous(), None, state, layout=layout, asked=asked
        )
        state = outcome.state
        losses.append(outcome.nll)
        hits.append(cast(Tensor, outcome.hit))
    return torch.cat(losses, 1), torch.cat(hits, 1)
