"""The floors of a task: scores that need no long-range model, as ordinary rows."""

from collections.abc import Iterator
from dataclasses import dataclass

from conf.choices import by_name
from models.mixer import Unsupported
from runners.isolation.progress import phase
from runners.records import Measurement, baseline_model
from tasks.baselines.certificate import Certifiable, certified
from tasks.task import SPLITS, Certified, Task


@by_name
@dataclass(frozen=True, kw_only=True)
class CertifyConfig:
    """Which split the floors are computed on."""

    split: str = "test"

    def __post_init__(self) -> None:
        """Refuse an unknown split."""
        if self.split not in SPLITS:
            raise ValueError(f"split: got {self.split!r}; wanted one of {', '.join(SPLITS)}")


def certify(task: Task, *, split: str) -> Iterator[Measurement]:
    """Yield the rows of each floor; its model is `floor/<name>`.

    Raises:
        Unsupported: the task computes no floors.
    """
    if not isinstance(task, Certified):
        raise Unsupported(f"{task.spec.name} computes no floors: it has no method floors(split)")
    phase("computing floors")
    floors = certified(task, split) if isinstance(task, Certifiable) else task.floors(split)
    for floor in floors:
        labels = {"split": split, "sentence": floor.sentence}
        if floor.outcomes is not None:
            labels["examples"] = str(len(floor.outcomes))
        for metric, value in {"accuracy": floor.accuracy, **floor.measures}.items():
            yield Measurement(
                metric=metric, value=value, model=baseline_model(floor.name), labels=labels
            )
