"""Evaluate a model on one split, item by item."""

import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import NamedTuple

import numpy as np
import torch

from lra.models.backbone.choices import Padding
from lra.models.backbone.model import Backbone, Outcome
from lra.models.mixer import State
from lra.models.state import detach
from lra.runners.isolation.progress import so_far
from lra.runners.metrics import METRICS
from lra.runners.records import Measurement, Outcomes
from lra.runners.training.parallel.ranks import Ranks
from lra.runners.training.prefetch import first_of, masks_of, rows_of, to_device
from lra.runners.training.recurrent_state import initial_state, remembered_tokens
from lra.tasks.task import Batch, Derives, Kind, Tally, Task, remarks_of


class SplitScores(NamedTuple):
    """The scores of one split."""

    measured: dict[str, float]
    """Metrics over the whole split."""
    outcomes: Outcomes
    parts: dict[tuple[str, str], tuple[float, float]]
    """By (kind, part): mean loss in nats over the items of that part, and their number."""
    remark: str = ""
    """A remark that readers of the scores need."""


def evaluate(
    model: Backbone,
    task: Task,
    split: str,
    *,
    batch_size: int,
    device: torch.device,
    before_batch: Callable[[], None] = lambda: None,
    examples: int | None = None,
    learn: Callable[[Outcome, Batch], None] | None = None,
    ranks: Ranks | None = None,
) -> SplitScores:
    """Return accuracy, mean loss in nats and what follows from it, outcomes by index, and parts.

    Leaves the model in eval mode. Where batches say which rows start a new text (`reset`), a state
    is carried from batch to batch.

    Args:
        model: the model.
        task: prepared.
        split: train, validation or test.
        batch_size: rows in a batch. It changes the scores, beyond rounding, if rows of a batch
            change each other: if a mixer computes over its batch (`Traits.by_batch`), or if padding
            to the longest row is not masked. A remark then says so.
        device: where the model is.
        before_batch: called before every batch; may raise.
        examples: how many examples are judged, the first ones of the split; None = all. If a state
            is carried it must be None, because rows of streams belong together.
        learn: called after every batch was judged, with an outcome that has gradients; None = the
            model learns nothing.
        ranks: the processes that share the work, and all return the same scores. They judge batches
            in turn, or, of streams, each its rows of every batch. None = this one alone.

    Raises:
        ValueError: the split is empty, or only some rows of streams are asked for.
    """
    model.eval()
    ranks = ranks or Ranks()
    own_tallies: list[tuple[int, int, Tally]] = []
    state: State = None
    size = min(task.spec.sizes.get(split, 0), examples or sys.maxsize)
    judged, widths = 0, set[int]()
    with _without_gradients(ranks) if learn is None else torch.enable_grad():
        whole = task.batches(split, batch_size=batch_size, seed=0)
        batches = whole if examples is None else first_of(whole, examples)
        for turn, (batch, last) in enumerate(_with_last(batches)):
            if turn % ranks.size == 0 or batch.reset is not None:
                before_batch()
            so_far(f"evaluating {split}", judged, size if size > judged else 0, "example")
            judged += len(batch.tokens)
            widths.add(batch.tokens.shape[-1])
            part, counts = _rank_part(batch, turn, last, ranks)
            if part is None:
                continue
            moved = to_device(part, device)
            if batch.reset is not None and bool(batch.reset.any()):
                memory = remembered_tokens(model.config, task, training=False)
                state = initial_state(model, len(part.tokens), memory)
            layout = masks_of(moved)
            outcome = model(moved.tokens, moved.target, moved.keep, state, layout=layout)
            state = detach(outcome.state)
            assert outcome.hit is not None, "every head knows its hits outside training"
            nll = outcome.nll.detach()
            tally = task.tally(nll.float().cpu(), outcome.hit.cpu(), part)
            own_tallies.extend([(turn, ranks.rank, tally)] if counts else [])
            if learn is not None:
                learn(outcome, moved)
    tallies = _in_order(own_tallies, ranks)
    count = sum(tally.count for tally in tallies)
    if not count:
        raise ValueError(f"the {split} split of {task.spec.name} has no examples to evaluate")
    index = np.concatenate([tally.index.numpy() for tally in tallies]).astype(np.int64)
    order = np.argsort(index, kind="stable")
    outcomes = Outcomes(
        split=split,
        index=index[order],
        hit=np.concatenate([tally.hit.numpy() for tally in tallies])[order],
        nll=np.concatenate([tally.nll.numpy() for tally in tallies])[order].astype(np.float32),
    )
    loss = sum(tally.nll_sum for tally in tallies) / count
    accuracy = sum(tally.hits for tally in tallies) / count
    measured = {"accuracy": accuracy, "loss": loss}
    if task.spec.kind is Kind.sequence_to_sequence:
        measured["exact_match"] = float((outcomes.hit == 1).mean())
    if isinstance(task, Derives):
        measured |= task.derived_metrics(split, loss)
    by_batch = _by_batch(model, batch_size, widths)
    remarks = remarks_of(task).get(split, ""), by_batch, model.seed_remark
    return SplitScores(measured, outcomes, _parts(tallies), "; ".join(filter(None, remarks)))


def _by_batch(model: Backbone, rows: int, widths: Collection[int]) -> str:
    """Return a remark that names what makes rows of a batch change each other's outputs; or "".

    Args:
        model: In eval mode, in which batch norm uses stored statistics.
        rows: Rows of a batch.
        widths: Tokens of the rows of all batches, padding included.
    """
    option, padding = next(filter(None, (each.by_batch for each in model.traits)), ""), ""
    if len(widths) > 1 and model.config.padding != Padding.masked:
        padding = f"padding={model.config.padding}"
    by = " and ".join(filter(None, (option, padding)))
    return f"evaluated in batches of {rows}, whose rows can change each other by {by}" if by else ""


def _without_gradients(ranks: Ranks) -> AbstractContextManager[None]:
    # In inference mode, sharded weights that are gathered for a pass would become inference
    # tensors, which training cannot use.
    return torch.no_grad() if ranks.sharded else torch.inference_mode()


def _rank_part(batch: Batch, turn: int, last: bool, ranks: Ranks) -> tuple[Batch | None, bool]:
    """Return this rank's part of a batch (None: no part), and whether its scores count.

    With sharded weights, every rank must take part in every pass. A rank without a part then judges
    rows of another rank, and its scores do not count.

    Args:
        batch: The whole batch.
        turn: Its number.
        last: Whether it is the last one.
        ranks: All ranks.
    """
    if ranks.alone:
        return batch, True
    if batch.reset is not None:
        rows = ranks.rows(len(batch.target))
        counts = rows.stop > rows.start
        rows = rows if counts else slice(0, 1)
        return rows_of(batch, rows) if counts or ranks.sharded else None, counts
    counts = turn % ranks.size == ranks.rank
    # The last batch may leave the higher ranks without one in this round of passes.
    fills_in = ranks.sharded and last and ranks.rank > turn % ranks.size
    return batch if counts or fills_in else None, counts


def _with_last(batches: Iterable[Batch]) -> Iterator[tuple[Batch, bool]]:
    """Yield each batch, and whether it is the last one."""
    before: Batch | None = None
    for batch in batches:
        if before is not None:
            yield before, False
        before = batch
    if before is not None:
        yield before, True


def _in_order(own_tallies: list[tuple[int, int, Tally]], ranks: Ranks) -> list[Tally]:
    """Return the tallies of all ranks, in the order in which one process would make them.

    Args:
        own_tallies: The number of the batch, the rank, and its tally, of this rank.
        ranks: All ranks.
    """
    if not ranks.alone:
        every_rank = ranks.gathered(own_tallies)
        parts = {(turn, rank): tally for one in every_rank for turn, rank, tally in one}
        return [parts[place] for place in sorted(parts)]
    return [tally for _, _, tally in own_tallies]


def _parts(tallies: list[Tally]) -> dict[tuple[str, str], tuple[float, float]]:
    """Return `SplitScores.parts` from the tallies of all batches."""
    sums: dict[tuple[str, str], tuple[float, float]] = {}
    for tally in tallies:
        for part, (nll, count) in tally.parts.items():
            before = sums.get(part, (0.0, 0.0))
            sums[part] = before[0] + nll, before[1] + count
    return {part: (nll / count, count) for part, (nll, count) in sums.items() if count}


def score_rows(scores: SplitScores, labels: Mapping[str, str]) -> Iterator[Measurement]:
    """Yield the final rows of a split: its metrics, and the loss of each part.

    Args:
        scores: Scores of the split.
        labels: Labels of every row, in addition to the split and the number of examples.
    """
    # A hit that is a fraction is of a window with many items, for which reports compute no
    # interval over examples: so the label has another name.
    counted = "examples" if scores.outcomes.hit.dtype == bool else "windows"
    shared = {"split": scores.outcomes.split, counted: str(len(scores.outcomes.index)), **labels}
    if scores.remark:
        shared["remark"] = scores.remark
    for metric, value in scores.measured.items():
        yield Measurement(metric=metric, value=value, labels=shared)
    for (kind, part), (loss, count) in scores.parts.items():
        part_labels = {**shared, "part": part, "items": f"{count:.0f}"}
        yield Measurement(metric=f"loss_by_{kind}", value=loss, labels=part_labels)


def goodness(measured: Mapping[str, float], metric: str) -> float:
    """Return a number that is higher for better weights: by the task's metric, or by the loss.

    The loss decides where the task's own metric is computed elsewhere from stored outcomes.
    """
    name = metric if metric in measured else "loss"
    return measured[name] if METRICS[name].higher_is_better else -measured[name]
