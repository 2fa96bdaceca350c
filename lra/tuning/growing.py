"""A search as the sweep that it is by now: the cells that follow of its record and its rows."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from lra.composition.compose import group_file
from lra.composition.hydra_entry import composed
from lra.composition.python_words import word
from lra.composition.run import Composed, Control
from lra.errors import ConfigError
from lra.models.mixer import Unsupported
from lra.runners.metrics import METRICS
from lra.runners.records import Status
from lra.runners.runner import Uncounted
from lra.sweep.cell_list import build
from lra.sweep.costs import Costs
from lra.sweep.planned import NO_DATA
from lra.sweep.sweep import Planned, Sweep
from lra.sweep.work import CellWork
from lra.tuning.adaptive import proposals
from lra.tuning.advance import ArmChoice, Step, TrialOutcome, Words, advance, judged, pasted, table
from lra.tuning.declaration import ONCE, declared
from lra.tuning.record import Record, read_record


class Growing:
    """A search whose cells are planned as far as rows say which they are.

    Args:
        record: The search.
        root: The results folder.
        once: Words for the first round of this command alone.
        elsewhere: Whether its cells are meant for other machines.
        kept: Whether proposals are stored.
    """

    def __init__(
        self,
        record: Record,
        root: Path,
        *,
        once: Sequence[str] = (),
        elsewhere: bool = False,
        kept: bool = True,
    ) -> None:
        self.record, self.root, self.elsewhere, self.kept = record, root, elsewhere, kept
        self.once = tuple(once)
        self.step = Step()
        self._composed: dict[Words, Composed] = {}
        self._ended: dict[Words, TrialOutcome] = {}
        self._seconds: dict[Words, float] = {}
        self._planned: dict[Words, Planned] = {}
        self._costs = Costs()
        self._sweep: Sweep | None = None

    @classmethod
    def of(
        cls, entries: Sequence[Composed], *, elsewhere: bool = False, kept: bool = True
    ) -> "Growing":
        """Return the search that a command asks for; kept: its record is written."""
        once = [word for word in entries[0].overrides if word.startswith(ONCE)]
        root, record = Path(entries[0].config["results"]), declared(entries)
        if kept:
            record.write(root)
        return cls(record, root, once=once, elsewhere=elsewhere, kept=kept)

    @classmethod
    def stored(cls, root: Path, name: str) -> "Growing | None":
        """Return the search whose record is stored under a name; None: there is none."""
        record = read_record(root, name)
        return None if record is None else cls(record, root, elsewhere=True)

    def sweep(self) -> Sweep:
        """Return all of its cells that are known by now."""
        while True:
            step = advance(self.record, self._ended)
            known = self._sweep is not None and _same(step, self.step)
            self.step = step
            if step.asked:
                self._ask()
                continue
            if not known:
                self._sweep = self._built()
            assert self._sweep is not None
            if not self._read(self._sweep):
                return self._sweep

    def next_round(self) -> Sweep:
        """Return what `sweep` does, without what held for the first round of a command alone."""
        if self.once:  # such as another attempt at what failed
            self.once, self._sweep = (), None
            self._composed.clear()
        return self.sweep()

    def said(self) -> Iterator[str]:
        """Yield a line for each choice, and what is to be known of it."""
        for chosen in self.step.choices:
            study = f", study {chosen.study}" if self.record.options.studies > 1 else ""
            if chosen.trial is None:
                yield f"search {chosen.arm.title}{study}: every trial failed"
                continue
            metric = chosen.trial.outcomes[0].metric
            yield (
                f"search {chosen.arm.title}{study}: trial {chosen.trial.number} "
                f"(validation {metric} {chosen.trial.score:.4g}): {pasted(chosen.words)}"
            )
            yield from (f"  {name.replace('_', ' ')}: {text}" for name, text in chosen.marks)
        if self.step.later:
            yield f"{self.step.later:,} more cells follow once validation has compared these"

    def _built(self) -> Sweep:
        new = [words for words in self.step.trainings if words not in self._composed]
        self._compose([(words, words) for words in new])
        choices = [self._choice(chosen) for chosen in self.step.choices]
        sweep = build(
            [*(self._composed[words] for words in self.step.trainings), *choices],
            elsewhere=self.elsewhere,
        )
        by_key = {planned.cell.key: planned for planned in sweep.planned}
        self._planned = {words: by_key[key] for words, key in sweep.of_words.items()}
        return sweep

    def _compose(self, named: Sequence[tuple[Words, Words]]) -> None:
        """Compose runs, by the names under which they are kept."""
        root = (word("results", str(self.root)), word("sweep", self.record.name))
        of_all = (*self.record.steering, *root, *self.once)
        whole = composed([(*words, *of_all) for _, words in named], self.record.place)
        for (name, words), entry in zip(named, whole, strict=True):
            self._composed[name] = entry._replace(overrides=words)

    def _choice(self, chosen: ArmChoice) -> Composed:
        """Return the configuration of the cell that says what was chosen."""
        name = (*chosen.words, f"seed={chosen.study}")
        if name not in self._composed:
            self._compose([(name, name)])
        entry = self._composed[name]
        steering = {f.name for f in fields(Control)}
        control = {k: v for k, v in entry.config["runner"].items() if k in steering}
        first = judged(chosen.trials)
        runner = {
            **group_file("runner", "search"),
            **control,
            "sampler": self.record.sampler,
            "study": chosen.study,
            "metric": first.metric,
            "better": first.better,
            "trials": table(chosen),
            "costs": [self._cost(trial.trainings) for trial in chosen.trials],
            "chosen": None if chosen.trial is None else chosen.trial.number,
            "words": pasted(chosen.words),
            "remarks": [[*mark] for mark in chosen.marks],
        }
        return entry._replace(config={**entry.config, "runner": runner}, overrides=chosen.words)

    def _cost(self, trainings: Sequence[Words]) -> dict[str, float]:
        """Return what a trial took, all of its seeds together."""
        cost: dict[str, float] = {}
        planned = self._planned[trainings[0]]
        steps = planned.run.config["runner"].get("until_step") or planned.run.optim.steps
        cost["steps"] = float(steps * len(trainings))
        if all(words in self._seconds for words in trainings):
            cost["time"] = sum(self._seconds[words] for words in trainings)
        try:
            passes = planned.run.runner.passes(CellWork.planned(planned.run, planned.cell.columns))
            products = sum(
                part.times * self._costs.of(planned.run, part).work.products
                for part in passes
                if part.step
            )
        except (Uncounted, Unsupported):
            return cost
        return {**cost, "multiply_adds": len(trainings) * products / 2}

    def _read(self, sweep: Sweep) -> bool:
        """Read what has ended since; return whether anything has."""
        store, before = sweep.store, len(self._ended)
        for words in self.step.trainings:
            final = any(part.startswith("runner.tuned=") for part in words)
            if final or words in self._ended or words not in self._planned:
                continue
            cell = self._planned[words].cell
            if not store.complete(cell):
                continue
            rows = store.rows_of(cell)
            if any(NO_DATA.items() <= row["labels"].items() for row in rows):
                continue
            wanted = self.record.options.metric
            metric = wanted or self._planned[words].run.task.spec.metric
            name = f"{cell.key}-{cell.fingerprint}"
            self._ended[words] = _outcome(name, rows, metric, wanted=wanted is not None)
            took = [row["value"] for row in rows if row["metric"] == "train_time"]
            self._seconds |= {words: took[-1]} if took and took[-1] is not None else {}
        return len(self._ended) > before

    def _ask(self) -> None:
        """Have the adaptive sampler propose the next round of each arm that waits for one."""
        more, options = {}, self.record.options
        for arm, study, trials in self.step.asked:
            drawn = [trial for trial in trials if trial.number]
            name = self.record.column(arm, study)
            number = min(options.parallel, options.trials - len(drawn))
            before = [*zip(self.record.points[name], drawn, strict=True)]
            seeds = (options.draw, study, len(drawn))
            space = self.record.spaces[arm.model]
            more[name] = proposals(self.record.sampler, space, before, number=number, seeds=seeds)
        self.record = self.record.with_points(more)
        if self.kept:
            self.record.write(self.root)


def _same(step: Step, before: Step) -> bool:
    return step.trainings == before.trainings and len(step.choices) == len(before.choices)


def _outcome(
    cell: str, rows: Sequence[Mapping[str, Any]], metric: str, *, wanted: bool
) -> TrialOutcome:
    """Return what is stored of a training of a trial.

    Args:
        cell: Its key and fingerprint.
        rows: Its rows.
        metric: By which to choose; the loss where a trial has none.
        wanted: Whether somebody asked for this very metric.

    Raises:
        ConfigError: it has a score on test, or none by which to choose.
    """
    final = [row for row in rows if row["step"] is None]
    if any(row["labels"].get("split") == "test" and row["value"] is not None for row in final):
        raise ConfigError(
            f"cell {cell} is a trial with a score on test: a search chooses on validation alone; "
            "move it away, and the same command trains it again"
        )
    scores = {
        row["metric"]: float(row["value"])
        for row in final
        if row["labels"].get("split") == "validation" and row["value"] is not None
        and "part" not in row["labels"]
    }  # fmt: skip
    if not scores:
        bad = next((row for row in final if row["status"] != Status.ok), None)
        status = str(Status.crashed) if bad is None else bad["status"]
        reason = "it left no score" if bad is None else bad["reason"]
        return TrialOutcome(cell, status, reason)
    name = metric if metric in scores or wanted else "loss"
    if name not in scores:
        raise ConfigError(f"search.metric={name}: trials have {', '.join(sorted(scores))}")
    better = "higher" if METRICS[name].higher_is_better else "lower"
    return TrialOutcome(cell, score=scores[name], loss=scores["loss"], metric=name, better=better)
