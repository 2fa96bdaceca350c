"""Decide claims of papers by stored rows: our figure, its interval and a verdict."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np

from lra.reports.labels import all_names
from lra.reports.ledger.claims import (
    BadClaim,
    MarginCheck,
    PaperClaim,
    Relation,
    Setting,
    Where,
    text,
)
from lra.reports.statistics.intervals import (
    UPPER,
    Array,
    mean_interval,
    median_interval,
    resample,
    t_quantile,
)
from lra.reports.tables.scores import ACCURACY, score_interval
from lra.runners.metrics import METRICS

Row = Mapping[str, Any]
"""A stored row; `options` has the options of its run."""
Bounds = tuple[float, float]
ENOUGH = 6
"""The fewest samples for which an interval between two of them has a level of 95 %."""


class ClaimVerdict(StrEnum):
    """What rows say about a claim."""

    reproduced = "reproduced"
    direction = "direction holds at this size"
    noise = "within noise"
    opposite = "direction does not hold at this size"
    failed = "not reproduced"
    incomparable = "not comparable"
    missing = "not attempted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """What rows say about one check."""

    value: float
    bounds: Bounds | None
    """The 95 % interval of `value`; None for a single training, which has none."""
    left: float
    right: float | None
    of: str
    """What the interval is over: the number of seeds, samples or examples."""
    holds: bool | None
    """None if the interval neither satisfies nor violates the margin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The verdict on a claim, with its figures and cost."""

    claim: PaperClaim
    verdict: ClaimVerdict
    reason: str = ""
    """Why there is no figure, or what limits it."""
    figures: tuple[Figure, ...] = ()
    trainings: int = 0
    seconds: float = 0.0
    """The time of all trainings together."""
    deviations: tuple[str, ...] = ()
    """Names of settings in which the runs behind the figures differ from the source."""


@dataclass(frozen=True, slots=True)
class _Side:
    """The numbers of one side of a check."""

    rows: Sequence[Row]
    by_seed: Mapping[int, float]
    samples: Sequence[float] = ()
    """Repeated measurements of a single run, such as timed passes; empty if there are none."""
    ordered: bool = False
    """Whether the number is the median of enough samples for an interval between two of them."""

    @property
    def value(self) -> float:
        """The mean over seeds."""
        return float(np.mean([*self.by_seed.values()]))

    @property
    def examples(self) -> int:
        """The number of examples of which a single run has the share right; 0: of other numbers."""
        row = self.rows[0]
        single = len(self.rows) == 1 and row["metric"] == ACCURACY.metric
        return int(row["labels"].get("examples", 0)) if single else 0


def decide(claim: PaperClaim, read: Callable[[str], Sequence[Row] | None]) -> Decision:
    """Return the verdict on a claim.

    `read` returns the rows of a published file, by its name without `.jsonl`, or None.

    Raises:
        BadClaim: the rows have no number for a check, or several.
    """
    if claim.not_attempted:
        return Decision(claim=claim, verdict=ClaimVerdict.missing, reason=claim.not_attempted)
    if claim.not_comparable:
        return Decision(claim=claim, verdict=ClaimVerdict.incomparable, reason=claim.not_comparable)
    files = [read(name) for name in claim.rows]
    if any(rows is None for rows in files):
        reason = "The rows are not stored yet."
        return Decision(claim=claim, verdict=ClaimVerdict.missing, reason=reason)
    rows = [row for part in files for row in part or ()]
    figures, used = [], []
    for number, check in enumerate(claim.checks, 1):
        place = f"{claim.id}, check {number}"
        left = _side(place, check, check.left, rows)
        right = check.right
        sides = [left]
        if isinstance(right, Mapping):
            sides.append(_side(place, check, right, rows))
        figures.append(_figure(place, check, sides, exact=claim.setting is Setting.counted))
        used += [row for side in sides for row in side.rows]
    trained = trainings_of(rows, used)
    single = "" if all(figure.bounds for figure in figures) else "One training has no interval."
    return Decision(
        claim=claim,
        verdict=_verdict(claim.setting, [figure.holds for figure in figures]),
        reason=" ".join(filter(None, (single, claim.remark))),
        figures=tuple(figures),
        trainings=len(trained),
        seconds=sum(trained),
        deviations=(*all_names((row["labels"] for row in used), "deviations"),),
    )


def _verdict(setting: Setting, holds: Sequence[bool | None]) -> ClaimVerdict:
    """Return the verdict on a claim whose checks hold, fail or are undecided."""
    smaller = setting is Setting.smaller
    if any(each is False for each in holds):
        return ClaimVerdict.opposite if smaller else ClaimVerdict.failed
    if all(holds):
        return ClaimVerdict.direction if smaller else ClaimVerdict.reproduced
    return ClaimVerdict.noise


def entry(row: Row, name: str) -> str:
    """Return what a row has under a name: a column, a label or an option of its run, as text."""
    if name in row and name not in ("labels", "options"):
        return text(row[name])
    if name in row["labels"]:
        return text(row["labels"][name])
    found: Any = row.get("options") or {}
    of_task = (found.get("task") or {}).get("options") or {}
    for part in name.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return text(of_task.get(name) if found is None else found)


def _pick(rows: Iterable[Row], metric: str, where: Where, split: str = "test") -> list[Row]:
    """Return the final rows of a metric that `where` wants; rows without a split count as test."""
    return [
        row
        for row in rows
        if row["metric"] == metric
        and row["step"] is None
        and row["labels"].get("split", "test") == where.get("split", split)
        and all(entry(row, name) == wanted for name, wanted in where.items() if name != "split")
    ]


def _side(place: str, check: MarginCheck, where: Where, rows: Sequence[Row]) -> _Side:
    """Return the numbers of one side of a check, one for each seed."""
    for name in [name for name, how in check.over.items() if how == "best"]:
        where = {**where, name: _best(place, check, where, rows, name)}
    found = _pick(rows, check.metric, where)
    if failed := [row for row in found if row["status"] != "ok"]:
        raise BadClaim(f"{place}: {dict(where)} has a failed run: {failed[0]['reason']}")
    if not found:
        raise BadClaim(f"{place}: no row has {check.metric} and {dict(where)}; correct `where`")
    seeds: dict[int, list[float]] = {}
    for row in found:
        seeds.setdefault(row["seed"], []).append(row["value"])
    if len({len(numbers) for numbers in seeds.values()}) > 1 or (
        len(found) > len(seeds) and "mean" not in check.over.values()
    ):
        differing = [n for n in found[0]["labels"] if len({entry(row, n) for row in found}) > 1]
        raise BadClaim(
            f"{place}: {len(found)} rows of {len(seeds)} seeds have {dict(where)}; add to `where`, "
            f"for example one of the labels {differing}"
        )
    means = {seed: float(np.mean(numbers)) for seed, numbers in seeds.items()}
    samples, value = found[0]["samples"], found[0]["value"]
    if len(found) > 1 or len(samples) < 2:
        return _Side(found, means)
    median, mean = (bool(np.isclose(of(samples), value)) for of in (np.median, np.mean))
    # Samples with another median and mean are no repetitions, but for example a spectrum.
    return _Side(found, means, samples if median or mean else (), median and len(samples) >= ENOUGH)


def _best(place: str, check: MarginCheck, where: Where, rows: Sequence[Row], name: str) -> str:
    """Return the value of an option that is best on validation, by the mean over seeds."""
    groups: dict[str, list[float]] = {}
    for row in _pick(rows, check.metric, where, "validation"):
        groups.setdefault(entry(row, name), []).append(row["value"])
    if not groups:
        raise BadClaim(f"{place}: no validation row has {dict(where)}, so none is the best {name}")
    sign = 1 if METRICS[check.metric].higher_is_better else -1
    return max(groups, key=lambda value: sign * float(np.mean(groups[value])))


def _figure(place: str, check: MarginCheck, sides: Sequence[_Side], *, exact: bool) -> Figure:
    """Return the number of a check, with its interval and whether it holds."""
    left, right = sides[0], sides[1] if len(sides) > 1 else None
    other = right.value if right else check.right if isinstance(check.right, float | int) else None
    if check.ratio and min(left.value, other or 0.0) <= 0:
        raise BadClaim(f"{place}: a ratio needs numbers above 0: got {left.value} and {other}")

    def against(number: float) -> float:
        """Return the number of the check for a number of the left side."""
        if other is None:
            return number
        return number / other if check.ratio else number - other

    value = against(left.value)
    bounds: Bounds | None = (value, value)
    of = ""
    if not exact:
        bounds, of = _bounds(sides, ratio=check.ratio), _of(sides)
        if bounds is None and right is None and other is not None:
            found = score_interval(ACCURACY, [*left.by_seed.values()], left.examples)
            if found is not None:
                bounds, of = (found.low, found.high), f"{left.examples:,} examples"
        if bounds and right is None:
            bounds = against(bounds[0]), against(bounds[1])
    return Figure(
        value=value, bounds=bounds, left=left.value, right=other, of=of,
        holds=None if bounds is None else _holds(check, *bounds),
    )  # fmt: skip


def _sampled(sides: Sequence[_Side]) -> bool:
    """Return whether the interval is over samples of single runs, not over seeds."""
    return all(len(side.by_seed) == 1 and len(side.samples) > 1 for side in sides)


def _of(sides: Sequence[_Side]) -> str:
    """Return what an interval is over, for example `3 seeds`."""
    what = "sample" if _sampled(sides) else "seed"
    number = min(len(side.samples if what == "sample" else side.by_seed) for side in sides)
    return f"{number} {what}{'' if number == 1 else 's'}"


def _bounds(sides: Sequence[_Side], *, ratio: bool) -> Bounds | None:
    """Return the interval of one side, or of the comparison of two; None if there is none.

    It is the interval of a median of samples if the numbers are such medians. Otherwise it is a t
    interval, of pairs if both sides have the same seeds, else Welch's. Ratios of two sides are
    compared on a logarithmic scale.
    """
    sampled = _sampled(sides)
    if sampled and all(side.ordered for side in sides):
        if len(sides) == 1:
            found = median_interval(sides[0].samples)
        else:
            found = resample(
                [side.samples for side in sides],
                lambda m: m[:, 0] / m[:, 1] if ratio else m[:, 0] - m[:, 1],
            )
        return None if found is None else (found.low, found.high)
    paired = not sampled and len({frozenset(side.by_seed) for side in sides}) == 1
    logarithmic = ratio and len(sides) == 2
    columns = []
    for side in sides:
        listed = side.samples if sampled else [side.by_seed[key] for key in sorted(side.by_seed)]
        column = np.asarray(listed, dtype=np.float64)
        columns.append(np.log(column) if logarithmic else column)
    if len(sides) == 2 and not paired:
        bounds = _welch(*columns)
    else:
        numbers = columns[0] - columns[1] if len(sides) == 2 else columns[0]
        found = mean_interval(numbers.tolist())
        bounds = None if found is None else (found.low, found.high)
    return (math.exp(bounds[0]), math.exp(bounds[1])) if bounds and logarithmic else bounds


def _welch(first: Array, second: Array) -> Bounds | None:
    """Return Welch's interval of a difference of means; None for a single number."""
    if min(len(first), len(second)) < 2:
        return None
    a, b = (float(np.var(x, ddof=1)) / len(x) for x in (first, second))
    half = 0.0
    if a + b > 0:
        degrees = (a + b) ** 2 / (a**2 / (len(first) - 1) + b**2 / (len(second) - 1))
        half = t_quantile(UPPER, degrees) * math.sqrt(a + b)
    difference = float(np.mean(first) - np.mean(second))
    return difference - half, difference + half


def _holds(check: MarginCheck, low: float, high: float) -> bool | None:
    """Return whether the interval satisfies (True) or violates (False) the margin."""
    if check.relation is Relation.above:
        return True if low > check.margin else False if high <= check.margin else None
    if check.relation is Relation.below:
        return True if high < check.margin else False if low >= check.margin else None
    least, most = -check.margin, check.margin
    if check.ratio:
        least, most = 1 / (1 + check.margin), 1 + check.margin
    inside = least <= low and high <= most
    return True if inside else False if high < least or low > most else None


def trainings_of(rows: Sequence[Row], used: Sequence[Row]) -> list[float]:
    """Return the times of the trainings behind the rows that a claim uses, in seconds.

    A run that measures a trained model has no such time. Its trainings are those of the same
    model, task and seed.
    """
    times = [row for row in rows if row["metric"] == "train_time" and row["status"] == "ok"]
    names: tuple[str, ...] = ("cell",)
    if not {row["cell"] for row in used} & {row["cell"] for row in times}:
        names = ("model", "task", "seed")
    wanted = {tuple(map(row.get, names)) for row in used}
    return [row["value"] for row in times if tuple(map(row.get, names)) in wanted]
