"""The result of a search: one row for each trial of a family, and the trial that validation chose.

What it says was reckoned from stored rows when the cell was planned; its identity holds it, so that
other trials are another choice.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from lra.conf.choices import by_name
from lra.runners.records import Measurement, Status, canonical
from lra.runners.runner import Runner, Work

COSTS = {"steps": "trial_steps", "time": "trial_time", "multiply_adds": "trial_multiply_adds"}
"""Cost of a trial, and its metric."""


@by_name
@dataclass(frozen=True, kw_only=True)
class SearchResult(Runner):
    """One search of one family: its trials, and the one that was chosen."""

    outcome: ClassVar[str] = "chosen_trial"
    tabled: ClassVar[tuple[str, ...]] = ("chosen_trial", "trial_score")
    data: ClassVar[bool] = False
    incidental: ClassVar[frozenset[str]] = frozenset({"costs"})

    search: str = ""
    """Name of the search; trainings with the chosen options carry it, too."""
    sampler: str = ""
    study: int = 0
    metric: str = "accuracy"
    """Metric on validation."""
    better: str = "higher"
    """higher or lower."""
    trials: list[dict[str, Any]] = field(default_factory=list)
    """A mapping for each trial and rung: trial, rung, options, score, status, reason, cells
    (keys of its trainings and the fingerprints of their code)."""
    costs: list[dict[str, float]] = field(default_factory=list)
    """Cost of each trial as far as it is known: see `COSTS`."""
    chosen: int | None = None
    """Number of the trial; null: all have failed."""
    words: str = ""
    """Command-line arguments with the chosen options."""
    remarks: list[Any] = field(default_factory=list)
    """Remarks for readers, as pairs of a name and a sentence."""

    def run(self, work: Work) -> Iterator[Measurement]:
        """Yield a row of each trial and rung with its costs, and the choice."""
        del work
        shared = {"search_name": self.search, "search": self.sampler, "study": str(self.study)}
        how = {"metric": self.metric, "better": self.better}
        for trial, cost in zip(self.trials, self.costs, strict=True):
            place = {**shared, "trial": str(trial["trial"]), "rung": trial["rung"]}
            options = canonical(trial["options"])
            yield Measurement(
                metric="trial_score",
                value=trial["score"],
                status=Status(trial["status"]),
                reason=trial["reason"],
                step=trial["trial"],
                labels={**place, **how, "options": options},
            )
            for name, metric in COSTS.items():
                if name in cost:
                    yield Measurement(metric=metric, value=cost[name], labels=place)
        chosen = {trial["trial"]: trial["options"] for trial in self.trials}
        marks = canonical(self.remarks)
        labels = {**shared, **how, "words": self.words, "marks": marks}
        if self.chosen is None:
            reasons = [trial["reason"] for trial in self.trials if trial["reason"]]
            yield Measurement(
                metric="chosen_trial",
                status=Status.skipped,
                reason=f"no trial has a score: {(reasons or ['none was made'])[0]}",
                labels=labels,
            )
            return
        yield Measurement(
            metric="chosen_trial",
            value=float(self.chosen),
            labels={**labels, "options": canonical(chosen[self.chosen])},
        )

    @classmethod
    def headline(cls, rows: Sequence[Measurement]) -> str:
        """Return which trial was chosen."""
        chosen = [row for row in rows if row.metric == "chosen_trial" and row.value is not None]
        return "".join(f"trial {row.value:.0f}: {row.labels['words']}" for row in chosen)
