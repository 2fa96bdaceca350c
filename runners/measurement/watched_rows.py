"""The rows that say what the machine did during a measurement, and the label of a disturbed one.

`disturbed` is a label of every row that such a measurement decided: reports mark the number, and
draw no exponent and no crossover from it.
"""

from collections.abc import Iterator, Mapping, Sequence

from lra.runners.measurement.disturbance import scattered
from lra.runners.measurement.watch import Sample, Watched
from lra.runners.records import DISTURBED, Measurement, Status

UNWATCHED = "unwatched"
REPORTED = (
    "processor_share", "waiting_share", "steal_share", "other_load", "clock_share",
    "discarded_samples",
)  # fmt: skip
"""Metrics of these rows."""


def marked(labels: Mapping[str, str], watched: Watched, samples: Sequence[float]) -> dict[str, str]:
    """Return labels, with the one that says that this number is not to be trusted where it is not.

    Args:
        labels: of the row.
        watched: the rounds that it comes from.
        samples: of the row, or those that it was computed from.
    """
    why = watched.disturbed or scattered(samples)
    return {**labels, DISTURBED: why} if why else dict(labels)


def over_limit(
    metric: str,
    what: str,
    sample: Sample,
    *,
    option: str,
    limit_s: float,
    labels: Mapping[str, str] | None = None,
) -> Measurement:
    """Return the row of what was left out because one call took too long.

    Args:
        metric: of the row.
        what: took how long.
        sample: the call; where the machine disturbed it, the row is marked and decides nothing
            about other cells.
        option: that sets the limit.
        limit_s: its value.
        labels: of the row.
    """
    every, disturbance = dict(labels or {}), ""
    if sample.reason:
        every[DISTURBED] = sample.reason
        disturbance = f" while the machine was disturbed ({sample.reason})"
    reason = f"{what}{disturbance}, the limit is {limit_s:g} s (runner.{option})"
    return Measurement(metric=metric, status=Status.skipped, reason=reason, labels=every)


def watch_rows(watched: Watched, labels: Mapping[str, str] | None = None) -> Iterator[Measurement]:
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
