"""Rows that say where the first weights of a training come from."""

from collections.abc import Iterator

from models.transfer.weights import TransferReport
from runners.records import Measurement


def initial_parameters(report: TransferReport) -> Iterator[Measurement]:
    """Yield how many parameters are taken over and how many drawn, and the parts they are in."""
    for origin, count in report.parameters.items():
        names = (name for name, source in report.origins.items() if source is origin)
        parts = dict.fromkeys(name.partition(".")[0] for name in names)
        labels = {"origin": origin.value, **({"parts": ", ".join(parts)} if parts else {})}
        yield Measurement(metric="initial_parameters", value=float(count), labels=labels)
