"""The baselines of a task: scores that need no long-range model, as ordinary rows."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from lra.conf.choices import by_name
from lra.models.mixer import Unsupported
from lra.runners.isolation.progress import phase
from lra.runners.measures.passes import padded_length, size
from lra.runners.records import Measurement, baseline_model, baseline_of
from lra.runners.runner import Runner, Uncounted, Work
from lra.tasks.baselines.certificate import Certifiable, certified_baselines
from lra.tasks.baselines.n_grams import BATCH, EPOCHS, FIT_EXAMPLES
from lra.tasks.task import SPLITS, TOKEN_KINDS, CertifiedTask, Task, remarks_of

LEAST_S = 5.0
"""Seconds that every run takes at least."""
TOKEN_S = 1e-6
"""Seconds that one core needs per token. Measured: from 0.6e-6 (images) to 3e-6 (Pathfinder, which
draws its pictures again)."""


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
        """Yield the rows of each baseline of the task."""
        return certify(work.task, split=self.split)

    def rough_seconds(self, work: Work) -> float:
        """Return about how many seconds it takes to fit n-grams and to evaluate them on a split."""
        task = work.task
        if task.spec.kind in TOKEN_KINDS:  # their baselines only count tokens, which is fast
            return LEAST_S
        fitted = EPOCHS * min(FIT_EXAMPLES, _estimate_size(task, "train"))
        length, _ = padded_length(task, "train", BATCH)
        return LEAST_S + TOKEN_S * (fitted + _estimate_size(task, self.split)) * length

    @classmethod
    def title(cls, row: Measurement) -> str:
        """Return the name of the baseline."""
        return baseline_of(row.model or "") or row.metric


def _estimate_size(task: Task, split: str) -> int:
    """Return the number of examples in a split; `FIT_EXAMPLES` if it is still unknown."""
    try:
        return size(task, split)
    except Uncounted:
        return FIT_EXAMPLES


def certify(task: Task, *, split: str) -> Iterator[Measurement]:
    """Yield the rows of each baseline on a split, with `baseline/<name>` as the model.

    Raises:
        Unsupported: the task computes no baselines.
    """
    if not isinstance(task, CertifiedTask):
        raise Unsupported(
            f"the task {task.spec.name} computes no baselines: it has no method baselines(split)"
        )
    phase("computing baselines")
    baselines = (
        certified_baselines(task, split) if isinstance(task, Certifiable) else task.baselines(split)
    )
    for baseline in baselines:
        labels = {"split": split, "sentence": baseline.sentence}
        if baseline.outcomes is not None:
            labels["examples"] = str(len(baseline.outcomes))
        if remark := remarks_of(task).get(split):
            labels["remark"] = remark
        accuracy = {} if baseline.accuracy is None else {"accuracy": baseline.accuracy}
        for metric, value in {**accuracy, **baseline.measures}.items():
            yield Measurement(
                metric=metric, value=value, model=baseline_model(baseline.name), labels=labels
            )
        for (group, part), (value, items) in baseline.groups.items():
            facts = {"split": split, "group": group, "part": part, "items": f"{items:.0f}"}
            yield Measurement(
                metric="accuracy_by_group", value=value, model=baseline_model(baseline.name),
                labels=facts,
            )  # fmt: skip
