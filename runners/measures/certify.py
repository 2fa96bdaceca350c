"""The baselines of a task: scores that need no long-range model, as ordinary rows."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from lra.conf.choices import by_name
from lra.models.mixer import Unsupported
from lra.runners.isolation.progress import phase
from lra.runners.records import Measurement, baseline_model, baseline_of
from lra.runners.runner import Runner, Work
from lra.tasks.baselines.certificate import Certifiable, certified
from lra.tasks.task import SPLITS, Certified, Task, remarks_of


@by_name
@dataclass(frozen=True, kw_only=True)
class Certify(Runner):
    """Which split the baselines are computed on."""

    models: ClassVar[bool] = False

    split: str = "test"

    def __post_init__(self) -> None:
        """Refuse an unknown split."""
        if self.split not in SPLITS:
            raise ValueError(f"split: got {self.split!r}; wanted one of {', '.join(SPLITS)}")

    def run(self, work: Work) -> Iterator[Measurement]:
        """Yield the rows of each baseline."""
        return certify(work.task, split=self.split)

    @classmethod
    def title(cls, row: Measurement) -> str:
        """Return the name of the baseline."""
        return baseline_of(row.model or "") or row.metric


def certify(task: Task, *, split: str) -> Iterator[Measurement]:
    """Yield the rows of each baseline; its model is `baseline/<name>`.

    Raises:
        Unsupported: the task computes no baselines.
    """
    if not isinstance(task, Certified):
        raise Unsupported(
            f"{task.spec.name} computes no baselines: it has no method baselines(split)"
        )
    phase("computing baselines")
    baselines = certified(task, split) if isinstance(task, Certifiable) else task.baselines(split)
    for baseline in baselines:
        labels = {"split": split, "sentence": baseline.sentence}
        if baseline.outcomes is not None:
            labels["examples"] = str(len(baseline.outcomes))
        if remark := remarks_of(task).get(split):
            labels["remark"] = remark
        for metric, value in {"accuracy": baseline.accuracy, **baseline.measures}.items():
            yield Measurement(
                metric=metric, value=value, model=baseline_model(baseline.name), labels=labels
            )
