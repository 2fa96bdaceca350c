"""Make tables of scores: models by task, with intervals over seeds or examples, and baselines."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import stdev
from typing import Any

import pandas as pd

from lra.reports.names import display_name
from lra.reports.rows import AMBIGUOUS, MARKS, as_text, in_order, model_order, short
from lra.reports.statistics.intervals import (
    LEVEL,
    Interval,
    Uncertainty,
    mean_interval,
    wilson_interval,
)
from lra.reports.style import Captions, Spread, current_style
from lra.reports.tables.marks import absent
from lra.reports.tables.ranking import DIFFERS, RANKS, marks_without_star, rank_columns
from lra.reports.tables.table import Column, Entry, Table, TableRow
from lra.runners.metrics import METRICS
from lra.runners.records import is_oracle

# One column of a table has only accuracies that agree in all of these columns.
TASK = ("task", "task_version", "source", "length", "regime", "tokenizer")
_USED = (*TASK, "name", "family", "options", "cell", "seed", "value", "status", "reason",
         "baseline", "departures", "labels", "device", "precision", "runner")  # fmt: skip
"""The columns that tables of scores read. Frames with fewer columns are split faster."""
BASELINES = "baselines: scores that need no long-range model"
ORACLES = "oracles: programs that know the rule by which the task was generated"
EQUAL = "All seeds have the same score, so the interval has width 0."
ONE_SEED = (
    "there is no interval, because there is only one seed and each example has several answers"
)
CHANCE = {
    "listops": 0.1, "text": 0.5, "retrieval": 0.5, "image": 0.1, "pathfinder": 0.5,
    "pathfinder64": 0.5, "pathx": 0.5, "path256": 0.5,
}  # fmt: skip
"""The accuracy of guessing on the tasks of the Long Range Arena."""


def chance_of(place: Sequence[Any]) -> list[float]:
    """Return the accuracy of guessing at a place (values of `TASK`): one number, or none.

    Only classes have one: where a model predicts tokens, the place has a regime.
    """
    task, *_, regime, _ = place
    return [CHANCE[task]] if task in CHANCE and not regime else []


LENT = " The ranks on {} use baselines from another split, because this split has none."
CAVEAT = (
    "A high score on a task of the Long Range Arena is no proof of long-range modelling: on "
    "several of its tasks, networks with short windows score almost as well as the best models "
    "(arXiv:2501.14850)."
)
_UNIT_WORDS = {
    "1": "without a unit", "fraction": "fractions", "ratio": "ratios", "s": "in seconds",
    "B": "in bytes", "nat": "in nats", "token": "in tokens", "bit": "in bits",
    "flop": "in operations", "token/s": "in tokens per second",
    "flop/s": "in operations per second", "B/s": "in bytes per second",
}  # fmt: skip


def unit_words(unit: str) -> str:
    """Return the unit of a metric in words, which end the sentence "Numbers are ..."."""
    return _UNIT_WORDS.get(unit, f"in {unit}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """How the numbers of a metric are printed."""

    metric: str
    title: str
    unit: str
    """The unit in words, which ends the sentence "Numbers are ..." of a caption."""
    factor: float = 1.0
    digits: int = 3
    shares: bool = False
    """Whether it is a fraction of examples, which is in [0, 1] and has Wilson's interval."""

    @property
    def decimals(self) -> int:
        """Return the decimals of the stored number that are printed."""
        return self.digits + (2 if self.shares else 0)

    @property
    def higher(self) -> bool:
        """Return whether higher is better."""
        return METRICS[self.metric].higher_is_better is not False

    @property
    def symbol(self) -> str:
        """Return the unit as printed after a number; "" for a pure number."""
        unit = "%" if self.shares else METRICS[self.metric].unit
        return unit if unit != "1" else ""

    @property
    def axis(self) -> str:
        """Return the label of an axis, as in "accuracy (%)"."""
        return self.title.lower() + (f" ({self.symbol})" if self.symbol else "")

    def text(self, value: float, sign: str = "") -> str:
        """Return a number as printed; `sign` is a sign option of format strings, such as "+"."""
        return f"{self.factor * value:{sign}.{self.digits}f}"


ACCURACY = Score(
    metric="accuracy", title="Accuracy", unit="in percent", factor=100.0, digits=1, shares=True
)
LANGUAGE = (
    Score(metric="bits_per_byte", title="Bits per byte", unit="in bits (lower is better)"),
    Score(metric="bits_per_character", title="Bits per character",
          unit="in bits (lower is better)"),
    Score(metric="word_perplexity", title="Perplexity per word", digits=2,
          unit="perplexities per word (lower is better)"),
    Score(metric="perplexity", title="Perplexity per token", digits=2,
          unit="perplexities per token (lower is better)"),
)  # fmt: skip
SQUARES = Score(
    metric="mse", title="Mean squared error", unit="squares of the answer's unit (lower is better)",
    digits=4,
)  # fmt: skip
SCORES = {score.metric: score for score in (ACCURACY, *LANGUAGE, SQUARES)}
"""The metrics that have a table of final scores."""


def score_of(metric: str) -> Score:
    """Return how the scores of any metric are printed."""
    unit, shares = METRICS[metric].unit, METRICS[metric].unit == "fraction"
    return SCORES.get(metric) or Score(
        metric=metric, title=metric.replace("_", " ").capitalize(), shares=shares,
        unit="in percent" if shares else unit_words(unit), factor=100.0 if shares else 1.0,
        digits=1 if shares else 3,
    )  # fmt: skip


def at_task_length(rows: pd.DataFrame) -> pd.DataFrame:
    """Return rows without scores at other lengths or contexts, and of compressed models.

    If a run of a custom runner has several scores of one metric and split, none of them is
    returned, because labels that this function does not know distinguish them.
    """
    rows = rows[~rows["runner"].isin(("extrapolate", "context", "compress", "loops"))]
    final = rows[rows["step"].isna() & rows["metric"].isin(SCORES) & (rows["status"] == "ok")]
    repeated = final.duplicated(["cell", "metric", "split", "baseline"], keep=False)
    return rows.drop(final.index[repeated])


def splits(rows: pd.DataFrame) -> list[str]:
    """Return the splits, except train, that have final accuracies or errors: test first."""
    rows = at_task_length(rows)
    judged = rows["metric"].isin((ACCURACY.metric, SQUARES.metric))
    final = rows[judged & rows["step"].isna() & (rows["split"] != "")]
    names = set(final["split"]) - {"train"}
    return sorted(names, key=lambda s: (s != "test", s))


def score_tables(rows: pd.DataFrame, split: str = "test") -> Iterator[tuple[str, Table]]:
    """Yield (metric, table) for each metric of `SCORES` that a split has."""
    for score in SCORES.values():
        table = accuracy_table(rows, split, score)
        if table is not None:
            yield score.metric, table


def accuracy_table(
    rows: pd.DataFrame, split: str = "test", score: Score = ACCURACY
) -> Table | None:
    """Return the table of final scores on one split; None if no row has such a score.

    A column has one task in one version from one source. A failed or missing run has a mark and a
    footnote; means exclude it.
    """
    final = final_scores(rows, split, score)
    if final is None:
        return None
    final = final[list(_USED)].copy()
    final["column"] = [tuple(as_text(v) for v in key) for key in final[list(TASK)].to_numpy()]
    columns = sorted(set(final["column"]), key=lambda c: (in_order(c), c))
    heads = _heads(columns)
    means = final[final["status"] == "ok"].groupby("name")["value"].mean()
    by_baseline = final[final["baseline"] != ""].drop_duplicates("name").to_dict("records")
    titles = {
        str(r["name"]): display_name(r["baseline"].replace("_", " "), {}, r["departures"])
        for r in by_baseline
    }
    oracles = {str(r["name"]) for r in by_baseline if is_oracle(r["baseline"])}
    baselines = sorted(titles, key=lambda n: (n in oracles, means.get(n, 0), n))
    without_score = _trainings_without_score(rows, final)
    names = [str(n) for n in final["name"][final["baseline"] == ""]]
    models = model_order([*names, *(name for name, _ in without_score)])
    parts = {(str(n), c): part for (n, c), part in final.groupby(["name", "column"], sort=False)}
    no_rows = final.iloc[:0]

    def line_of(name: str) -> list[Entry]:
        """Return the entry of a model or baseline in each column."""
        return [
            absent(f"this training has no {_score_in_words(score, split)}")
            if (name, c) in without_score
            else entry(parts.get((name, c), no_rows), score)
            for c in columns
        ]

    lines, marks = [line_of(name) for name in models], several_settings(rows, final, score)
    baseline_lines = [line_of(name) for name in baselines if name not in oracles]
    of_other_splits = _baselines_of_other_splits(rows, split, score)
    floors, lent = _scores_without_model(columns, baseline_lines, of_other_splits, score)
    if not marks:
        lines, marks = rank_columns(lines, score.decimals, higher=score.higher, floors=floors)
        marks += LENT.format(", ".join(sorted(lent))) if lent and marks else ""
    all_entries = [entry for entries in lines for entry in entries]
    table_rows = [
        TableRow(title=name, entries=tuple(entries))
        for name, entries in zip(models, lines, strict=True)
    ]
    for name in baselines:
        section = ORACLES if name in oracles else BASELINES
        entries = tuple(line_of(name))
        table_rows.append(TableRow(title=titles[name], entries=entries, section=section))
    percent = f"{100 * LEVEL:g} %"
    caption = f"Numbers are {score.unit}, as means over seeds [{percent} interval]. "
    wilson = any(e.interval and e.interval.source is Uncertainty.examples for e in all_entries)
    caption += (
        "Intervals over seeds are t intervals. For a single seed, the interval is Wilson's over "
        "test examples, which excludes the variation between seeds."
        if wilson
        else "Intervals are t intervals over seeds, so a single seed has no interval."
    )
    caption += (f" {marks}" if marks else "") + differing_positions(rows.loc[final.index])
    tasks = {column[0] for column in columns}
    # a failed run of certify counts, too
    certified = (final["baseline"] != "") | (final["runner"] == "certify")
    if uncertified := sorted(tasks - lent - {*final["task"][certified]}):
        guesses = [
            f"{place[0]} {100 * chance:.1f}"
            for place in {c[0]: c for c in columns}.values()
            if place[0] in uncertified and score.shares
            for chance in chance_of(place)
        ]
        chance = f" Chance is {', '.join(guesses)}." if guesses else ""
        caption += (
            f" The rows have no baselines of {', '.join(uncertified)}; add them with "
            f"runner=certify.{chance}"
        )
    if any(map(chance_of, columns)):
        caption += f" {CAVEAT}"
    if current_style().style.tables.captions is Captions.short and len(tasks) == len(columns):
        data = "; ".join(f"{head.group}: {head.title}" for head in heads)
        caption += f" Data: {data}."
        heads = tuple(Column(title=head.group, key=f"{head.group}, {head.title}") for head in heads)
    # A short caption explains the test only if the table has a mark of it.
    tested = any(DIFFERS in e.text for e in all_entries)
    ranks = marks if tested or RANKS not in marks else marks_without_star(marks)
    return Table(
        title=f"{score.title} on the {split} split",
        caption=caption,
        stub="model",
        columns=heads,
        rows=tuple(table_rows),
        brief=f"Numbers are {score.unit}{behind_means(all_entries)}. {ranks}".rstrip(),
    )


def _heads(columns: Sequence[tuple[str, ...]]) -> tuple[Column, ...]:
    """Return the headings of columns; those of a task with several lengths name the length."""
    lengths: dict[str, set[str]] = {}
    for task, _, _, length, *_ in columns:
        lengths.setdefault(task, set()).add(length)
    return tuple(
        Column(group=c[0], title=_data_in_words(c, with_length=len(lengths[c[0]]) > 1))
        for c in columns
    )


def _scores_without_model(
    columns: Sequence[tuple[str, ...]],
    baseline_lines: Sequence[Sequence[Entry]],
    of_other_splits: Mapping[tuple[str, ...], list[float]],
    score: Score,
) -> tuple[list[list[float]], set[str]]:
    """Return for each column the scores of baselines and chance.

    A column without baselines takes those `of_other_splits`; the returned set has its task.
    """
    floors, lent = [], set()
    for index, column in enumerate(columns):
        task = column[0]
        floor = [e.value for line in baseline_lines if (e := line[index]).value is not None]
        if not floor and column in of_other_splits:
            floor = of_other_splits[column]
            lent.add(task)
        floors.append(floor + (chance_of(column) if score.shares else []))
    return floors, lent


def _baselines_of_other_splits(
    rows: pd.DataFrame, split: str, score: Score
) -> dict[tuple[str, ...], list[float]]:
    """Return the scores of baselines, without oracles, on splits except `split` and train."""
    final = (rows["baseline"] != "") & rows["step"].isna() & (rows["metric"] == score.metric)
    scored = at_task_length(rows[final & ~rows["split"].isin((split, "train", ""))])
    scored = scored[~scored["baseline"].map(is_oracle).astype(bool)]
    by_column: dict[tuple[str, ...], list[float]] = {}
    for place, part in scored.groupby([*TASK, "split", "name"], dropna=False):
        if (value := entry(part, score).value) is not None:
            by_column.setdefault(tuple(as_text(v) for v in place[: len(TASK)]), []).append(value)
    return by_column


def several_settings(rows: pd.DataFrame, final: pd.DataFrame, score: Score) -> str:
    """Return a sentence if a table has several settings of one family and so no ranks, or "".

    The best setting must be chosen on the validation split, if the rows have one.
    """
    settings: dict[tuple[Any, ...], set[tuple[tuple[str, str], ...]]] = {}
    of_models = final[final["baseline"] == ""]
    columns = (of_models[c].to_numpy(dtype=object) for c in ("column", "family", "options"))
    for column, family, options in zip(*columns, strict=True):
        settings.setdefault((column, family), set()).add(tuple(sorted(options.items())))
    validated = (rows["metric"] == score.metric) & (rows["split"] == "validation")
    if not validated.any() or all(len(of_family) == 1 for of_family in settings.values()):
        return ""
    return (
        "This table has no ranks, because a family has several settings, and its best score on "
        "this split would be too good. Use the table of the settings that are best on validation "
        "instead."
    )


def differing_positions(rows: pd.DataFrame) -> str:
    """Return a sentence about models whose position encodings differ from those of most models.

    Models with the positions in their names are skipped. The sentence is "" if no model differs.
    """
    if "positions" not in rows:
        return ""
    in_name = ["backbone.positions" in options for options in rows["options"]]
    models = rows.assign(in_name=in_name)[(rows["baseline"] == "") & (rows["positions"] != "")]
    texts = []
    for task, part in models.groupby("task"):
        usual = part.drop_duplicates("name")["positions"].mode().get(0, "")
        others = part[(part["positions"] != usual) & ~part["in_name"]]
        texts += [
            f"on {task}, {', '.join(model_order([*names]))} used {kind} (most models used {usual})"
            for kind, names in others.groupby("positions")["name"]
        ]
    return f" Position encodings differ: {'; '.join(texts)}." if texts else ""


def behind_means(entries: Sequence[Entry]) -> str:
    """Return words for a short caption about what follows a mean, and how many seeds it has."""
    counts = sorted({int(e.facts["seeds"]) for e in entries if "seeds" in e.facts})
    if not counts or counts[-1] == 1:
        return ""
    seeds = "–".join(map(str, dict.fromkeys((counts[0], counts[-1]))))
    spread = {Spread.deviation: " ± standard deviations", Spread.none: ""}.get(
        current_style().style.tables.spread, f" [{100 * LEVEL:g} % intervals]"
    )
    return f", as means{spread} over {seeds} seeds"


def _trainings_without_score(
    rows: pd.DataFrame, final: pd.DataFrame
) -> set[tuple[str, tuple[str, ...]]]:
    """Return (name, column) of the trainings that succeeded but lack the score of the table."""
    trained = rows[(rows["runner"] == "train") & rows["task"].isin(set(final["task"]))]
    searched = set(rows["family"][rows["runner"] == "search"])  # trials read no test data
    trained = trained[~trained["family"].isin(searched)].drop_duplicates(["name", *TASK])
    columns = [tuple(as_text(v) for v in key) for key in trained[list(TASK)].to_numpy()]
    pairs = set(zip(map(str, trained["name"]), columns, strict=True))
    return pairs - set(zip(map(str, final["name"]), final["column"], strict=True))


def _score_in_words(score: Score, split: str) -> str:
    """Return words for a missing score, as in "accuracy on the test split"."""
    return f"{score.title.lower()} on the {split} split"


def final_scores(rows: pd.DataFrame, split: str, score: Score) -> pd.DataFrame | None:
    """Return the rows of final scores on a split, and one row for each failed run.

    Return None if no row has a final score of this metric on the split.
    """
    if not (rows["metric"] == score.metric).any():
        return None  # this quick check avoids copies, because most rows have few of the metrics
    scores = at_task_length(rows[rows["step"].isna()])
    final = scores[scores["metric"] == score.metric]
    if not (final["split"] == split).any():
        return None
    # A failed training has a single row with the reason, which counts for all splits and metrics.
    failed = scores[(scores["status"] != "ok") & scores["metric"].isin(("accuracy", score.metric))]
    failed = failed[failed["task"].isin(set(final["task"]))].drop_duplicates("cell")
    finished = final[(final["split"] == split) & ~final["cell"].isin(set(failed["cell"]))]
    return pd.concat([finished, failed])


def _data_in_words(column: tuple[str, ...], *, with_length: bool) -> str:
    """Return the source, version and marks of a column's data, as in "generated, version 1"."""
    _, version, source, length, *marks = column
    title = ", ".join([source, f"version {version}", *(mark for mark in marks if mark)])
    return f"{title}, length {length}" if with_length and length != "–" else title


def entry(rows: pd.DataFrame, score: Score) -> Entry:
    """Return the entry of one model in one column: the mean over seeds, or why there is none.

    Args:
        rows: the rows of the model, one for each seed.
        score: the metric, and how its numbers are printed.
    """
    if rows.empty:
        return absent("not run")
    is_ok = (rows["status"] == "ok").to_numpy()
    ok, failed = (rows, rows[:0]) if is_ok.all() else (rows[is_ok], rows[~is_ok])
    notes = tuple(_failure_notes(failed))
    cells = tuple(dict.fromkeys(str(key) for key in rows["cell"]))
    if ok["seed"].duplicated().any():
        if (ok["baseline"] == "").any():
            reason = (
                f"{len(ok)} runs with different options or code share this name and seed, so they "
                "are not merged: report one sweep at a time"
            )
            return Entry(text="ambiguous", status=AMBIGUOUS, notes=(reason,), cells=cells)
        if (count := ok["value"].nunique()) > 1:
            notes += (f"this is the best of {count} scores, from different settings of the data",)
        ok = ok.sort_values("value", ascending=not score.higher, kind="stable").iloc[:1]
    if ok.empty:
        status = str(failed.iloc[0]["status"])
        return Entry(text=MARKS[status], status=status, notes=notes, cells=cells)
    values = [float(v) for v in ok["value"]]
    examples = _examples(ok)
    interval = score_interval(score, values, examples)
    if len(values) > 1 and len({*values}) == 1 and (ok["baseline"] == "").all():
        notes += (EQUAL,)
    if interval is None and score.shares and (ok["baseline"] == "").all():
        notes += (ONE_SEED,)
    labels = ok["labels"][ok["baseline"] != ""]
    notes += tuple(sorted({s for s in (mapping.get("sentence", "") for mapping in labels) if s}))
    notes += tuple(sorted({mapping["remark"] for mapping in ok["labels"] if "remark" in mapping}))
    if len(failed) and current_style().style.tables.spread is not Spread.long:
        notes += (f"the mean is over {len(ok)} of {len(rows)} seeds",)
    machines = sorted({f"{d} {p}" for d, p in zip(ok["device"], ok["precision"], strict=True)})
    if len(machines) > 1:
        notes += (f"seeds come from {' and '.join(machines)}",)
    return Entry(
        text=_mean_text(score, values, interval, failed=len(failed), examples=examples),
        value=sum(values) / len(values),
        interval=interval,
        notes=notes,
        facts={"seeds": len(ok), "seeds_failed": len(failed), "examples": examples or ""},
        by_seed=dict(zip(map(int, ok["seed"]), values, strict=True)),
        cells=cells,
    )


def score_interval(score: Score, values: Sequence[float], examples: int) -> Interval | None:
    """Return the t interval of a mean over seeds, or, for a single seed, Wilson's over examples.

    Return None for a single seed if the score is no fraction or the number of `examples` is 0.
    """
    interval = mean_interval(values)
    if interval is None and examples and score.shares:
        return wilson_interval(min(values[0], 1.0), examples)
    if interval is None or not score.shares:
        return interval
    # A t interval may reach beyond the possible values of a fraction.
    return replace(interval, low=max(0.0, interval.low), high=min(1.0, interval.high))


def _mean_text(
    score: Score, values: Sequence[float], interval: Interval | None, *, failed: int, examples: int
) -> str:
    """Return the mean of values as printed, followed by its spread in the style in force."""
    seeds, written = len(values), score.text
    text, spread = written(sum(values) / len(values)), current_style().style.tables.spread
    if spread is Spread.none:
        return text
    if spread is Spread.deviation:
        return f"{text} ± {written(stdev(values))}" if len(values) > 1 else text
    count = f"{seeds} of {seeds + failed} seeds" if failed else f"{seeds} seeds"
    if interval is None:
        with_count = spread is Spread.long and (seeds > 1 or failed)
        return f"{text} ({count})" if with_count else text
    basis = count if seeds > 1 else f"{examples:,} examples" + (f", {count}" if failed else "")
    detail = f"; {basis}" if spread is Spread.long else ""
    return f"{text} [{written(interval.low)}, {written(interval.high)}{detail}]"


def _examples(rows: pd.DataFrame) -> int:
    """Return the number of evaluated examples; 0 if rows lack it or disagree."""
    counts = {labels.get("examples", "") for labels in rows["labels"]}
    return int(counts.pop()) if len(counts) == 1 and "" not in counts else 0


def _failure_notes(rows: pd.DataFrame) -> Iterator[str]:
    """Yield each different failure once, as in "OOM: the batch needs 40 GiB"."""
    for row in rows[["status", "reason"]].drop_duplicates().itertuples():
        yield f"{MARKS[str(row.status)]}: {short(str(row.reason))}"
