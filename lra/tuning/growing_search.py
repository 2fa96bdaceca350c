"""A search as a sweep that grows: its cells so far follow from its record and its stored rows."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from lra.composition.compose import group_file
from lra.composition.hydra_entry import composed
from lra.composition.python_words import word
from lra.composition.run import Composed, Control
from lra.conf.short_values import number_of
from lra.errors import ConfigError
from lra.models.mixer import Unsupported
from lra.runners.metrics import METRICS
from lra.runners.records import Status
from lra.runners.runner import Uncounted
from lra.sweep.cell_list import build
from lra.sweep.costs import Costs
from lra.sweep.planned_cells import NO_DATA
from lra.sweep.sweep import PlannedCell, Sweep
from lra.sweep.work import CellWork
from lra.tuning.adaptive import propose
from lra.tuning.advance import (
    ArmChoice,
    Step,
    Trial,
    TrialOutcome,
    Words,
    advance,
    finished_count,
    foreseen,
    scored_outcome,
    table,
)
from lra.tuning.record import Record, read_record


@dataclass(slots=True)
class _Training:
    """What is known of a training."""

    entry: Composed
    planned: PlannedCell | None = None
    outcome: TrialOutcome | None = None
    """The stored result of a trial; None: it has not ended, or is no trial."""


@dataclass(slots=True)
class GrowingSearch:
    """A search whose cells are planned as far as the stored rows determine them."""

    record: Record
    root: Path
    """The results folder."""
    once: Words = ()
    """Arguments that hold only for the first round of this command, such as runner.retry."""
    elsewhere: bool = True
    """Whether its cells are planned for other machines."""
    kept: bool = False
    """Whether the record, and each proposal of a sampler, is stored: see `keep`."""
    step: Step = field(default_factory=Step)
    _known: dict[Words, _Training] = field(default_factory=dict)
    _costs: Costs = field(default_factory=Costs)
    _sweep: Sweep | None = None

    @classmethod
    def stored(cls, root: Path, name: str) -> "GrowingSearch | None":
        """Return the search whose record is stored under a name; None: there is none."""
        record = read_record(root, name)
        return None if record is None else cls(record, root)

    def keep(self) -> None:
        """Store the record, now and after every change. Call it when all checks have passed."""
        self.record.write(self.root)
        self.kept = True

    def sweep(self) -> Sweep:
        """Return the sweep of all cells that are known by now.

        Rows that were just read can make more cells known: the loop ends when no result is new.
        """
        while True:
            ended = {words: t.outcome for words, t in self._known.items() if t.outcome}
            before, self.step = self.step, advance(self.record, ended)
            if self.step.asked:
                self.record = propose(self.record, self.step)
                if self.kept:
                    self.record.write(self.root)
                continue
            if self._sweep is None or not _is_same(self.step, before):
                self._sweep = self._build()
            if not self._read(self._sweep):
                return self._sweep

    def next_round(self) -> Sweep:
        """Return what `sweep` returns, but without the arguments of the first round (`once`)."""
        if self.once:  # else runner.retry would repeat the same failures in every round
            self.once, self._sweep = (), None
            self._known.clear()
        return self.sweep()

    def said(self) -> Iterator[str]:
        """Yield lines to print: each choice with its warnings, and how many runs follow."""
        if not self.step.choices:
            yield from self.warned()
        for chosen in self.step.choices:
            study = f", study {chosen.study}" if self.record.options.studies > 1 else ""
            if chosen.trial is None:
                yield f"search {chosen.arm.title}{study}: every trial failed"
                continue
            metric = chosen.trial.outcomes[0].metric
            yield (
                f"search {chosen.arm.title}{study}: trial {chosen.trial.number} is the best "
                f"(validation {metric} {chosen.trial.score:.4g}): {shlex.join(chosen.words)}"
            )
            yield from (f"  {name.replace('_', ' ')}: {text}" for name, text in chosen.marks)
        counts = sorted({finished_count(chosen.trials) for chosen in self.step.choices})
        if len(counts) > 1:
            listed = ", ".join(map(str, counts))
            yield f"unequal budgets: arms have different numbers of finished trials ({listed})"
        if self.step.later:
            yield (
                f"{number_of(self.step.later, 'more run')} will start when the present runs have "
                "been compared on validation data"
            )

    def warned(self) -> list[str]:
        """Return the warnings about the search that are known before any training."""
        marks = dict(foreseen(self.record, study=0))
        return [f"search: {name.replace('_', ' ')}: {text}" for name, text in marks.items()]

    def _build(self) -> Sweep:
        """Build the sweep of all trainings and choices of the present step."""
        self._compose([words for words in self.step.trainings if words not in self._known])
        choices = [self._choice(chosen) for chosen in self.step.choices]
        sweep = build(
            [*(self._known[words].entry for words in self.step.trainings), *choices],
            elsewhere=self.elsewhere,
            several=True,
            judged=["test"] if self.record.options.final_seeds else [],
        )
        by_key = {planned.cell.key: planned for planned in sweep.planned}
        for words in self.step.trainings:
            self._known[words].planned = by_key[sweep.of_words[words]]
        return sweep

    def _compose(self, new: Sequence[Words]) -> None:
        """Compose trainings, given by their arguments, and remember them in `_known`."""
        root = (word("results", str(self.root)), word("sweep", self.record.name))
        of_all = (*self.record.steering, *root, *self.once)
        entries = composed([(*words, *of_all) for words in new], self.record.place)
        optims: dict[str, Any] = {}
        for words, entry in zip(new, entries, strict=True):
            optim = entry.config["optim"]  # what arms share is typed once, where it is one object
            config = {**entry.config, "optim": optims.setdefault(repr(optim), optim)}
            if (place := self.step.trials.get(words)) is not None:
                config = {**config, "about": {**config.get("about", {}), "trial": place}}
            self._known[words] = _Training(entry._replace(config=config, overrides=words))

    def chosen(self, chosen: ArmChoice) -> Composed:
        """Return the configuration of the options that were chosen."""
        name = (*chosen.words, f"seed={chosen.study}")  # one seed, of no trial, for each study
        if name not in self._known:
            self._compose([name])
        return self._known[name].entry

    def _choice(self, chosen: ArmChoice) -> Composed:
        """Return the configuration of the cell whose rows record a choice (runner=search)."""
        entry, first = self.chosen(chosen), scored_outcome(chosen.trials)
        steering = {f.name for f in fields(Control)}
        runner = {
            **group_file("runner", "search"),
            **{k: v for k, v in entry.config["runner"].items() if k in steering},
            "search": self.record.name,
            "sampler": self.record.sampler,
            "study": chosen.study,
            "metric": first.metric,
            "better": first.better,
            "trials": table(chosen),
            "costs": [self._cost(trial) for trial in chosen.trials],
            "chosen": None if chosen.trial is None else chosen.trial.number,
            "words": shlex.join(chosen.words),
            "remarks": [[*mark] for mark in chosen.marks],
        }
        return entry._replace(config={**entry.config, "runner": runner}, overrides=chosen.words)

    def _cost(self, trial: Trial) -> dict[str, float]:
        """Return steps, seconds and multiply-adds of a trial, the sum over its seeds."""
        planned, count = self._known[trial.trainings[0]].planned, len(trial.trainings)
        assert planned is not None
        run = planned.run
        cost = {"steps": float(count * (run.config["runner"]["until_step"] or run.optim.steps))}
        seconds = [outcome.seconds for outcome in trial.outcomes if outcome.seconds is not None]
        if len(seconds) == count:
            cost["time"] = sum(seconds)
        try:
            passes = run.runner.passes(CellWork.planned(run, planned.cell.columns))
            products = sum(
                part.times * self._costs.of(run, part).work.products for part in passes if part.step
            )
        except (Uncounted, Unsupported):
            return cost
        return {**cost, "multiply_adds": count * products / 2}  # each is two operations

    def _read(self, sweep: Sweep) -> bool:
        """Read the results of trials that have ended since the last call; return if any has."""
        store, wanted, any_ended = sweep.store, self.record.options.metric, False
        for words in self.step.trials:
            training = self._known[words]
            if training.outcome is not None or training.planned is None:
                continue
            cell = training.planned.cell
            if not store.complete(cell):
                continue
            rows = store.rows_of(cell)
            if any(NO_DATA.items() <= row["labels"].items() for row in rows):
                continue
            name, metric = f"{cell.key}-{cell.fingerprint}", training.planned.run.task.spec.metric
            training.outcome = _read_result(name, rows, wanted or metric, wanted=wanted is not None)
            any_ended = True
        return any_ended


def _is_same(step: Step, before: Step) -> bool:
    """Return whether two steps have the same cells."""
    return step.trainings == before.trainings and len(step.choices) == len(before.choices)


def _read_result(
    cell: str, rows: Sequence[Mapping[str, Any]], metric: str, *, wanted: bool
) -> TrialOutcome:
    """Return the result of one training of a trial, from its rows.

    Args:
        cell: Its key and fingerprint.
        rows: Its rows.
        metric: The metric to choose by. If the rows lack it, the loss is used (or the mse).
        wanted: Whether the user asked for this metric, so that the loss must not replace it.

    Raises:
        ConfigError: it has a score on test data, or lacks the metric that the user asked for.
    """
    final = [row for row in rows if row["step"] is None]
    if any(row["labels"].get("split") == "test" and row["value"] is not None for row in final):
        raise ConfigError(
            f"run {cell} is a trial with a test score, but a search must choose on validation data "
            "only; move its folder away and rerun the same command"
        )
    judged = {
        row["metric"]: row
        for row in final
        if row["labels"].get("split") == "validation" and row["value"] is not None
        and "part" not in row["labels"]
    }  # fmt: skip
    scores = {name: float(row["value"]) for name, row in judged.items()}
    took = [row["value"] for row in rows if row["metric"] == "train_time"]
    seconds = took[-1] if took else None
    if not scores:
        failed_row = next((row for row in final if row["status"] != Status.ok), None)
        status = str(Status.crashed) if failed_row is None else failed_row["status"]
        reason = "the training stored no score" if failed_row is None else failed_row["reason"]
        return TrialOutcome(cell, status, reason, seconds=seconds)
    loss = "mse" if "mse" in scores else "loss"
    name = metric if metric in scores or wanted else loss
    if name not in scores:
        raise ConfigError(f"search.metric={name}: trials have {', '.join(sorted(scores))}")
    return TrialOutcome(
        cell, score=scores[name], loss=scores[loss], metric=name,
        better="higher" if METRICS[name].higher_is_better else "lower", seconds=seconds,
    )  # fmt: skip
