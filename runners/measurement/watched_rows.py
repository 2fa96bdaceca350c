"""The rows that say what the machine did during a measurement, and the label of a disturbed one.

`disturbed` is a label of every row that such a measurement decided. Reports mark the number; where
its interval is wide, they read the processors' clock instead.
"""

from collections.abc import Iterator, Mapping, Sequence
from statistics import median

from lra.runners.measurement.disturbance import scatter_reason
from lra.runners.measurement.watch import Rounds, Sample
from lra.runners.records import DISTURBED, Measurement, Status

UNWATCHED = "unwatched"
REPORTED = (
    "processor_share", "waiting_share", "steal_share", "other_load", "clock_share",
    "discarded_samples",
)  # fmt: skip
"""Metrics of these rows."""


def mark_labels(
    labels: Mapping[str, str], watched: Rounds, samples: Sequence[float]
) -> dict[str, str]:
    """Return labels, with the one that says that this number is not to be trusted where it is not.

    Args:
        labels: of the row.
        watched: the rounds that it comes from.
        samples: of the row, or those that it was computed from.
    """
    why = watched.disturbed or scatter_reason(samples)
    return {**labels, DISTURBED: why} if why else dict(labels)


def over_limit(
    metric: str,
    what: str,
    sample: Sample,
    threads: int,
    *,
    option: str,
    limit_s: float | None,
    labels: Mapping[str, str] | None = None,
) -> Measurement | None:
    """Return the row of what is left out because one call took too long; None where it did not.

    Of a disturbed call the seconds without its waits decide. On a GPU these are not known: the row
    is marked as disturbed, and decides nothing about other cells.

    Args:
        metric: of the row.
        what: took how long.
        sample: the call.
        threads: that computed.
        option: that sets the limit.
        limit_s: its value; None: no limit.
        labels: of the row.
    """
    seconds = sample.computed_s(threads)
    if limit_s is None or seconds <= limit_s:
        return None
    every, waits = dict(labels or {}), ""
    if sample.reason and sample.on_gpu:
        every[DISTURBED] = sample.reason
        waits = f" while the machine was disturbed ({sample.reason})"
    elif sample.reason:
        waits = " (without the time spent waiting for other processes)"
    reason = f"{what} took {seconds:.1f} s{waits}, the limit is {limit_s:g} s (runner.{option})"
    return Measurement(metric=metric, status=Status.skipped, reason=reason, labels=every)


def processor_rows(
    watched: Rounds, name: str, references: Mapping[str, str]
) -> Iterator[Measurement]:
    """Yield what the processors' clock gave one call, and its ratios to those of references.

    Args:
        watched: the rounds.
        name: of the call.
        references: names of references, by their calls.
    """
    mine = watched.processor_samples(name)
    if not mine:
        return
    yield Measurement(metric="processor_time", value=median(mine), samples=mine)
    for call, reference in references.items():
        pairs = zip(mine, watched.processor_samples(call), strict=True)
        ratios = tuple(own / other for own, other in pairs)
        yield Measurement(
            metric="processor_time_ratio",
            value=median(ratios),
            samples=ratios,
            labels={"reference": reference},
        )


def watch_rows(watched: Rounds, labels: Mapping[str, str] | None = None) -> Iterator[Measurement]:
    """Yield what the machine did over all rounds; a share that nobody could see has no row.

    The row `discarded_samples` is always there, and its label `unwatched` names what was not seen.
    """
    every, shares = dict(labels or {}), watched.shares
    for metric, value in (
        ("processor_share", shares.processor / watched.threads),
        ("waiting_share", shares.waiting),
        ("steal_share", shares.steal),
        ("other_load", shares.other_load),
        ("clock_share", watched.clock),
    ):
        if value is not None:
            yield Measurement(metric=metric, value=value, labels=every)
    unwatched = {UNWATCHED: ", ".join(watched.unwatched)} if watched.unwatched else {}
    yield Measurement(
        metric="discarded_samples", value=float(watched.discarded), labels={**every, **unwatched}
    )
