"""The result of a search: one row for each trial of a family, and the trial that validation chose.

Before this run starts, its options were computed from the stored rows of the trainings. They belong
to the identity of the run, so other trials give another run.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from lra.conf.choices import by_name
from lra.runners.records import Measurement, Status, canonical
from lra.runners.runner import Runner, Work

COSTS = {"steps": "trial_steps", "time": "trial_time", "multiply_adds": "trial_multiply_adds"}
"""The metric of each kind of cost that a trial has."""


@by_name
@dataclass(frozen=True, kw_only=True)
class SearchResult(Runner):
    """One search of one family: its trials, and the one that was chosen."""

    outcome: ClassVar[str] = "chosen_trial"
    tabled: ClassVar[tuple[str, ...]] = ("chosen_trial", "trial_score")
    data: ClassVar[bool] = False
    incidental: ClassVar[frozenset[str]] = frozenset({"costs"})

    search: str = ""
    """Name of the search; trainings with the chosen options have it as a label, too."""
    sampler: str = ""
    study: int = 0
    metric: str = "accuracy"
    """Metric of the validation split by which trials are compared."""
    better: str = "higher"
    """Which values of the metric are better: higher or lower."""
    trials: list[dict[str, Any]] = field(default_factory=list)
    """A mapping for each trial and rung: trial, rung, options, score, status, reason, cells
    (keys of its trainings and the fingerprints of their code)."""
    costs: list[dict[str, float]] = field(default_factory=list)
    """The known costs of each trial; the keys are those of `COSTS`."""
    chosen: int | None = None
    """Number of the chosen trial; null: all trials have failed."""
    words: str = ""
    """Command-line arguments with the chosen options."""
    remarks: list[Any] = field(default_factory=list)
    """Remarks for readers, as pairs of a name and a sentence."""

    def run(self, work: Work) -> Iterator[Measurement]:
        """Yield a score row and cost rows for each trial and rung, then the chosen trial."""
        del work
        shared = {"search_name": self.search, "search": self.sampler, "study": str(self.study)}
        criterion = {"metric": self.metric, "better": self.better}
        for trial, costs in zip(self.trials, self.costs, strict=True):
            trial_labels = {**shared, "trial": str(trial["trial"]), "rung": trial["rung"]}
            options = canonical(trial["options"])
            yield Measurement(
                metric="trial_score",
                value=trial["score"],
                status=Status(trial["status"]),
                reason=trial["reason"],
                step=trial["trial"],  # its number, in place of a step of a training
                labels={**trial_labels, **criterion, "options": options},
            )
            for name, metric in COSTS.items():
                if name in costs:
                    yield Measurement(metric=metric, value=costs[name], labels=trial_labels)
        options_by_trial = {trial["trial"]: trial["options"] for trial in self.trials}
        # The arguments that repeat the chosen trial, and remarks on the search, for the report.
        marks = canonical(self.remarks)
        labels = {**shared, **criterion, "words": self.words, "marks": marks}
        if self.chosen is None:
            reasons = [trial["reason"] for trial in self.trials if trial["reason"]]
            yield Measurement(
                metric="chosen_trial",
                status=Status.skipped,
                reason=f"no trial has a score: {(reasons or ['there are no trials'])[0]}",
                labels=labels,
            )
            return
        yield Measurement(
            metric="chosen_trial",
            value=float(self.chosen),
            labels={**labels, "options": canonical(options_by_trial[self.chosen])},
        )

    @classmethod
    def headline(cls, rows: Sequence[Measurement]) -> str:
        """Return the number of the chosen trial and the arguments with its options."""
        chosen = [row for row in rows if row.metric == "chosen_trial" and row.value is not None]
        return "".join(f"trial {row.value:.0f}: {row.labels['words']}" for row in chosen)
