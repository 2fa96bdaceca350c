"""The rows that say what the machine did during a measurement, and the label of a disturbed one.

Every row of a disturbed measurement has the label `disturbed`. Reports mark its number; if its
interval is wide, they use processor time instead.
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
"""Metrics of the rows about the machine."""


def mark_labels(
    labels: Mapping[str, str], watched: Rounds, samples: Sequence[float]
) -> dict[str, str]:
    """Return the labels of a row, with the label `disturbed` if its number is unreliable.

    Args:
        labels: the other labels of the row.
        watched: the timed rounds from which the number comes.
        samples: the samples of the row, or those from which its number was computed.
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
    """Return a row which says that a metric is skipped because a call took too long, or None.

    If the machine disturbed the call, its time without waits is compared with the limit. On a GPU
    this time is unknown, so the row is marked as disturbed, and longer lengths are still tried.

    Args:
        metric: the metric that is skipped.
        what: name of the call in the message.
        sample: the timed call.
        threads: number of threads that computed.
        option: name of the option that sets the limit.
        limit_s: the limit in seconds; None: there is no limit.
        labels: labels of the row.
    """
    seconds = sample.computed_s(threads)
    if limit_s is None or seconds <= limit_s:
        return None
    row_labels, detail = dict(labels or {}), ""
    if sample.reason and sample.on_gpu:
        row_labels[DISTURBED] = sample.reason
        detail = f" while the machine was disturbed ({sample.reason})"
    elif sample.reason:
        detail = " (the time it waited for other processes is not counted)"
    reason = f"{what} took {seconds:.1f} s{detail}; the limit is {limit_s:g} s (runner.{option})"
    return Measurement(metric=metric, status=Status.skipped, reason=reason, labels=row_labels)


def processor_rows(
    watched: Rounds, name: str, references: Mapping[str, str]
) -> Iterator[Measurement]:
    """Yield the processor time of one call, and its ratio to that of each reference.

    Nothing is yielded if the processor time is unknown, as on a GPU.

    Args:
        watched: the timed rounds.
        name: name of the call.
        references: names of references, by the names of their calls.
    """
    seconds = watched.processor_samples(name)
    if not seconds:
        return
    yield Measurement(metric="processor_time", value=median(seconds), samples=seconds)
    for call, reference in references.items():
        pairs = zip(seconds, watched.processor_samples(call), strict=True)
        ratios = tuple(ours / theirs for ours, theirs in pairs)
        yield Measurement(
            metric="processor_time_ratio",
            value=median(ratios),
            samples=ratios,
            labels={"reference": reference},
        )


def watch_rows(watched: Rounds, labels: Mapping[str, str] | None = None) -> Iterator[Measurement]:
    """Yield rows that say what the machine did during all rounds; unknown numbers have no row.

    `discarded_samples` always has a row; its label `unwatched` names what could not be observed.
    """
    row_labels, shares = dict(labels or {}), watched.shares
    for metric, value in (
        ("processor_share", shares.processor / watched.threads),
        ("waiting_share", shares.waiting),
        ("steal_share", shares.steal),
        ("other_load", shares.other_load),
        ("clock_share", watched.clock),
    ):
        if value is not None:
            yield Measurement(metric=metric, value=value, labels=row_labels)
    unwatched = {UNWATCHED: ", ".join(watched.unwatched)} if watched.unwatched else {}
    labels = {**row_labels, **unwatched}
    yield Measurement(metric="discarded_samples", value=float(watched.discarded), labels=labels)
