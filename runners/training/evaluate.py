"""Evaluate a model on one split, and make rows of its scores."""

import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from lra.models.backbone.choices import Padding
from lra.models.backbone.model import Backbone, Outcome
from lra.models.mixer import State, Unsupported
from lra.models.state import detach
from lra.runners.isolation.progress import so_far
from lra.runners.metrics import METRICS
from lra.runners.records import Measurement, Outcomes
from lra.runners.training.parallel.ranks import Ranks
from lra.runners.training.prefetch import asked_of, first_of, masks_of, rows_of, to_device
from lra.runners.training.recurrent_state import initial_state, remembered_tokens
from lra.tasks.data.tokens import correlation
from lra.tasks.task import (
    AcceptsSeveral,
    Batch,
    Derives,
    Kind,
    Tally,
    Task,
    TaskSpec,
    remarks_of,
)

K = TypeVar("K")


class SplitScores(NamedTuple):
    """The scores of one split."""

    measured: dict[str, float]
    """Metrics over the whole split."""
    outcomes: Outcomes
    parts: dict[tuple[str, str], tuple[float, float]]
    """Mean loss in nats over the items of each part, and their number, by (kind, part)."""
    groups: Mapping[tuple[str, str], tuple[float, float]] = {}  # never changed
    """Accuracy of the items of each part, and their number, by (group, part)."""
    remark: str = ""
    """A remark that readers of the scores need."""

    @property
    def loss(self) -> float:
        """Mean loss of an item: nats, or squared error."""
        return self.measured["mse" if "mse" in self.measured else "loss"]


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
    """Return the scores of a model on one split, and the result of each example.

    The model stays in evaluation mode. If batches say which rows start a new text (`Batch.reset`),
    a state is carried from batch to batch.

    Args:
        model: the model.
        task: the task, with prepared data.
        split: train, validation or test.
        batch_size: rows of a batch. It changes the scores if rows of a batch change each other,
            because a mixer computes over its batch (`Traits.by_batch`) or padding is not masked. A
            remark then says so.
        device: the device of the model.
        before_batch: function that is called before every batch; it may raise.
        examples: how many examples are evaluated, the first ones of the split; None: all. It must
            be None if a state is carried from batch to batch.
        learn: function that is called after every batch, with an outcome that has gradients; None:
            the model learns nothing.
        ranks: the processes that share the work and all return the same scores. They take batches
            in turn; if a state is carried, each takes its rows of every batch. None: this process
            alone.

    Raises:
        ValueError: the split is empty, or `examples` is set although a state is carried.
        Unsupported: weights are sharded, and the task accepts several answers.
    """
    model.eval()
    ranks = ranks or Ranks()
    _check_passes(task, ranks)
    own_tallies: list[tuple[int, int, Tally]] = []
    state: State = None
    size = min(task.spec.sizes.get(split, 0), examples or sys.maxsize)
    evaluated, widths = 0, set[int]()
    with _disable_gradients(ranks) if learn is None else torch.enable_grad():
        all_batches = task.batches(split, batch_size=batch_size, seed=0)
        batches = all_batches if examples is None else first_of(all_batches, examples)
        for turn, (batch, last) in enumerate(_mark_last(batches)):
            if turn % ranks.size == 0 or batch.reset is not None:  # each process has a batch again
                before_batch()
            # A split may have more examples than the task said; then the number is unknown (0).
            so_far(f"evaluating {split}", evaluated, size if size > evaluated else 0, "example")
            evaluated += len(batch.tokens)
            widths.add(batch.tokens.shape[2])
            part, counts = _take_rank_part(batch, turn, last, ranks)
            if part is None:
                continue
            moved = to_device(part, device)
            if batch.reset is not None and bool(batch.reset.any()):
                memory = remembered_tokens(model.config, task, training=False)
                state = initial_state(model, len(part.tokens), memory)
            layout = masks_of(moved)
            asked = asked_of(part, device)
            outcome = model(
                moved.tokens, moved.target, moved.keep, state, layout=layout, asked=asked
            )
            state = detach(outcome.state)
            tally = _tally(task, model, outcome, part, moved)
            own_tallies.extend([(turn, ranks.rank, tally)] if counts else [])
            if learn is not None:
                learn(outcome, moved)
    tallies = _gather_tallies(own_tallies, ranks)
    count = sum(tally.count for tally in tallies)
    if not count:
        raise ValueError(f"the {split} split of {task.spec.name} is empty, so it has no scores")
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
    measured = _basic_scores(task.spec, accuracy, loss)
    measured |= further_scores(
        task.spec, accuracy, outcomes.hit, _totals(t.classes for t in tallies)
    )
    measured |= {name: mean for name, (mean, _) in _averages(t.further for t in tallies).items()}
    if isinstance(task, Derives):
        measured |= task.derived_metrics(split, loss)
    batch_remark = _explain_batch_effects(model, batch_size, widths)
    of_mixers = dict.fromkeys(traits.remark for traits in model.traits)
    remarks = remarks_of(task).get(split, ""), batch_remark, model.seed_remark, *of_mixers
    parts = _averages(tally.parts for tally in tallies)
    groups = _averages(tally.groups for tally in tallies)
    return SplitScores(measured, outcomes, parts, groups, "; ".join(filter(None, remarks)))


def _check_passes(task: Task, ranks: Ranks) -> None:
    """Raise Unsupported if a task needs passes that sharded weights do not allow."""
    if isinstance(task, AcceptsSeveral) and ranks.sharded:
        raise Unsupported(
            f"{task.spec.name} accepts several answers, which needs further passes over a batch, "
            "but hardware.sharded=true gathers weights for one pass: set hardware.sharded=false"
        )


def _tally(task: Task, model: Backbone, outcome: Outcome, part: Batch, moved: Batch) -> Tally:
    """Return the tally of a batch.

    Args:
        task: The task.
        model: The model, which answers again if the task accepts several answers.
        outcome: Its outcome.
        part: The batch, on the CPU.
        moved: The batch, on the device of the model.
    """
    assert outcome.hit is not None, "outside training, a head must return which are correct"
    nll, hit = outcome.nll.detach().float().cpu(), outcome.hit.cpu()
    if not isinstance(task, AcceptsSeveral):
        scores = {name: (float(total), float(n)) for name, (total, n) in outcome.further.items()}
        return task.tally(nll, hit, part)._replace(further=scores)
    chosen = choose_tokens(model, moved, writes=task.writes)
    hit, further = task.accept(chosen.cpu(), part)
    return task.tally(nll, hit, part)._replace(further=further)


@torch.no_grad()
def choose_tokens(model: Backbone, batch: Batch, *, writes: bool) -> Int[Tensor, "b l"]:
    """Return the most likely token at each position of a batch, which is on the model's device.

    With `writes`, the model reads the answers that it chose before: greedy generation. Each pass
    adds one answer to every row, so this needs no state.
    """
    tokens, chosen = batch.tokens.clone(), torch.zeros_like(batch.target)
    asked = torch.ones_like(chosen) if batch.weight is None else (batch.weight > 0).long()
    turn = asked.cumsum(1) * asked if writes else asked
    for number in range(1, int(turn.max()) + 1):
        likely = model.predict(tokens, batch.keep, layout=masks_of(batch))[0].argmax(-1)
        chosen = torch.where(turn == number, likely, chosen)
        if writes:
            follows = turn[:, :-1] == number
            tokens[:, 0, 1:] = torch.where(follows, likely[:, :-1], tokens[:, 0, 1:])
    return chosen


def _basic_scores(spec: TaskSpec, accuracy: float, loss: float) -> dict[str, float]:
    """Return the scores of every task: a real number has an error, and is never just right."""
    if spec.kind is Kind.regression:
        return {"mse": loss}
    return {"accuracy": accuracy, "loss": loss}


def further_scores(
    spec: TaskSpec, accuracy: float, hit: np.ndarray, classes: Mapping[int, tuple[float, float]]
) -> dict[str, float]:
    """Return the scores of a split that `spec.scores` names.

    Args:
        spec: Facts about the task.
        accuracy: Fraction of correct items.
        hit: Whether each example is correct; for one of several items, the fraction that is.
        classes: Number of correct items and of items by class.
    """
    found = {}
    if "exact_match" in spec.scores:
        found["exact_match"] = float((hit == 1).mean())
    if "macro_accuracy" in spec.scores:
        found["macro_accuracy"] = float(np.mean([hits / n for hits, n in classes.values()]))
    if "scaled_accuracy" in spec.scores:
        found["scaled_accuracy"] = (accuracy - spec.chance) / (1 - spec.chance)
    if "mcc" in spec.scores:
        found["mcc"] = correlation(classes)
    return found


def _explain_batch_effects(model: Backbone, rows: int, widths: Collection[int]) -> str:
    """Return a remark with the options by which rows of a batch change each other; "" for none.

    Args:
        model: The model in evaluation mode, in which batch norm uses stored statistics.
        rows: Rows of a batch.
        widths: Lengths of the rows in all batches, padding included.
    """
    option, padding = next(filter(None, (each.by_batch for each in model.traits)), ""), ""
    if len(widths) > 1 and model.config.padding != Padding.masked:
        padding = f"padding={model.config.padding}"
    options = " and ".join(filter(None, (option, padding)))
    return (
        f"evaluated in batches of {rows} examples, which can change each other's scores because of "
        f"{options}"
        if options
        else ""
    )


def _disable_gradients(ranks: Ranks) -> AbstractContextManager[None]:
    # In inference mode, sharded weights that are gathered for a pass would become inference
    # tensors, which training cannot use.
    return torch.no_grad() if ranks.sharded else torch.inference_mode()


def _take_rank_part(batch: Batch, turn: int, last: bool, ranks: Ranks) -> tuple[Batch | None, bool]:
    """Return the part of a batch for this process (None: no part), and whether its scores count.

    With sharded weights, all processes must take part in every pass. A process without a part then
    evaluates rows of another one, and its scores do not count.

    Args:
        batch: The whole batch.
        turn: Number of the batch.
        last: Whether the batch is the last one.
        ranks: All processes.
    """
    if ranks.alone:
        return batch, True
    if batch.reset is not None:
        rows = ranks.rows(len(batch.target))
        counts = rows.stop > rows.start
        rows = rows if counts else slice(0, 1)
        return rows_of(batch, rows) if counts or ranks.sharded else None, counts
    counts = turn % ranks.size == ranks.rank
    # After the last batch, the processes with higher numbers have no batch in this round.
    fills_in = ranks.sharded and last and ranks.rank > turn % ranks.size
    return batch if counts or fills_in else None, counts


def _mark_last(batches: Iterable[Batch]) -> Iterator[tuple[Batch, bool]]:
    """Yield each batch, and whether it is the last one."""
    previous: Batch | None = None
    for batch in batches:
        if previous is not None:
            yield previous, False
        previous = batch
    if previous is not None:
        yield previous, True


def _gather_tallies(own_tallies: list[tuple[int, int, Tally]], ranks: Ranks) -> list[Tally]:
    """Return the tallies of all processes, ordered by batch and then by process.

    Args:
        own_tallies: For each part that this process evaluated: the number of the batch, the number
            of the process, and the tally.
        ranks: All processes.
    """
    if not ranks.alone:
        by_rank = ranks.gathered(own_tallies)
        tallies = {(turn, rank): tally for own in by_rank for turn, rank, tally in own}
        return [tallies[place] for place in sorted(tallies)]
    return [tally for _, _, tally in own_tallies]


def _totals(sums: Iterable[Mapping[K, tuple[float, float]]]) -> dict[K, tuple[float, float]]:
    """Return the sums of all batches from those of each batch, and their numbers of items."""
    totals: dict[K, tuple[float, float]] = {}
    for of_batch in sums:
        for part, (total, count) in of_batch.items():
            before, count_before = totals.get(part, (0.0, 0.0))
            totals[part] = before + total, count_before + count
    return totals


def _averages(sums: Iterable[Mapping[K, tuple[float, float]]]) -> dict[K, tuple[float, float]]:
    """Return the means of `_totals`, and their numbers of items."""
    totals = _totals(sums).items()
    return {part: (total / count, count) for part, (total, count) in totals if count}


def score_rows(scores: SplitScores, labels: Mapping[str, str]) -> Iterator[Measurement]:
    """Yield the final rows of a split: its metrics, and the loss of each part.

    Args:
        scores: Scores of the split.
        labels: Labels of every row, in addition to the split and the number of examples.
    """
    # A window has many items, so its hit is a fraction. Reports compute no interval over windows,
    # so the label has another name.
    count_label = "examples" if scores.outcomes.hit.dtype == bool else "windows"
    count = str(len(scores.outcomes.index))
    shared = {"split": scores.outcomes.split, count_label: count, **labels}
    if scores.remark:
        shared["remark"] = scores.remark
    for metric, value in scores.measured.items():
        yield Measurement(metric=metric, value=value, labels=shared)
    for (kind, part), (loss, items) in scores.parts.items():
        part_labels = {**shared, "part": part, "items": f"{items:.0f}"}
        yield Measurement(metric=f"loss_by_{kind}", value=loss, labels=part_labels)
    for (group, part), (accuracy, items) in scores.groups.items():
        group_labels = {**shared, "group": group, "part": part, "items": f"{items:.0f}"}
        yield Measurement(metric="accuracy_by_group", value=accuracy, labels=group_labels)


def goodness(measured: Mapping[str, float], metric: str) -> float:
    """Return a number that is higher for better weights, from the scores of a validation.

    It is the metric of the task, or the loss if that metric is computed elsewhere from outcomes.
    """
    name = metric if metric in measured else "loss"
    return measured[name] if METRICS[name].higher_is_better else -measured[name]
