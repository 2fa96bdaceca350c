"""Tables of scores: models by task, with intervals that name their source, and baselines below."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import stdev
from typing import Any

import pandas as pd

from lra.reports.names import display_name
from lra.reports.rows import AMBIGUOUS, MARKS, as_text, model_order, short
from lra.reports.statistics.intervals import (
    LEVEL,
    Interval,
    Uncertainty,
    mean_interval,
    wilson_interval,
)
from lra.reports.style import Captions, Spread, current_style
from lra.reports.tables.marks import absent
from lra.reports.tables.ranking import DIFFERS, RANKS, UNRANKED, rank_columns
from lra.reports.tables.table import Column, Entry, Table, TableRow
from lra.runners.metrics import METRICS
from lra.runners.records import is_oracle

# Two accuracies may stand in one column only where all of these agree.
TASK = ("task", "task_version", "source", "length", "regime", "tokenizer")
_USED = (*TASK, "name", "family", "options", "cell", "seed", "value", "status", "reason",
         "baseline", "departures", "labels", "device", "precision", "runner")  # fmt: skip
"""Columns of a score: fewer are split faster."""
BASELINES = "baselines: scores that need no long-range model"
ORACLES = "oracles: answers computed by the rule of the task"
EQUAL = "The score is equal for every seed, so the interval has no width."
ONE_SEED = "one seed, with several answers in each example: no interval"
CHANCE = {
    "listops": 0.1, "text": 0.5, "retrieval": 0.5, "image": 0.1, "pathfinder": 0.5,
    "pathfinder64": 0.5, "pathx": 0.5, "path256": 0.5,
}  # fmt: skip
"""Accuracy of guessing at the tasks of the Long Range Arena."""
LENT = " Ranks of {} use baselines of another split, because this split has none."
CAVEAT = (
    "A high score on a task of the Long Range Arena is no proof of long-range modelling: networks "
    "with short windows come near the best models on several of them (arXiv:2501.14850)."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """A metric that has a table."""

    metric: str
    title: str
    unit: str
    """Begins the caption."""
    factor: float = 1.0
    digits: int = 3
    shares: bool = False
    """Whether it is a share of examples, which lies in [0, 1] and has Wilson's interval."""

    @property
    def decimals(self) -> int:
        """Return to how many decimals of the stored number it is printed."""
        return self.digits + (2 if self.shares else 0)

    @property
    def higher(self) -> bool:
        """Return whether higher is better."""
        return METRICS[self.metric].higher_is_better is not False

    @property
    def symbol(self) -> str:
        """Return the unit as it stands after a number; "" for a pure number."""
        unit = "%" if self.shares else METRICS[self.metric].unit
        return unit if unit != "1" else ""

    @property
    def axis(self) -> str:
        """Return the label of an axis."""
        return self.title.lower() + (f" ({self.symbol})" if self.symbol else "")

    def text(self, value: float, sign: str = "") -> str:
        """Return a number as printed."""
        return f"{self.factor * value:{sign}.{self.digits}f}"


ACCURACY = Score(
    metric="accuracy", title="Accuracy", unit="Percent", factor=100.0, digits=1, shares=True
)
LANGUAGE = (
    Score(metric="bits_per_byte", title="Bits per byte", unit="Bits, lower is better"),
    Score(metric="bits_per_character", title="Bits per character", unit="Bits, lower is better"),
    Score(metric="word_perplexity", title="Perplexity per word", digits=2,
          unit="Per word, lower is better"),
    Score(metric="perplexity", title="Perplexity per token", digits=2,
          unit="Per token, lower is better"),
)  # fmt: skip
SCORES = {score.metric: score for score in (ACCURACY, *LANGUAGE)}
"""Those that have a table of final scores."""


def score_of(metric: str) -> Score:
    """Return how scores of any metric are printed."""
    unit, shares = METRICS[metric].unit, METRICS[metric].unit == "fraction"
    return SCORES.get(metric) or Score(
        metric=metric, title=metric.replace("_", " ").capitalize(), shares=shares,
        unit="Percent" if shares else unit, factor=100.0 if shares else 1.0,
        digits=1 if shares else 3,
    )  # fmt: skip


def at_task_length(rows: pd.DataFrame) -> pd.DataFrame:
    """Leave out scores at other lengths, from other contexts, and of compressed models.

    Those of a runner of the user's own are such where one cell has several, which labels tell
    apart.
    """
    rows = rows[~rows["runner"].isin(("extrapolate", "context", "compress"))]
    final = rows[rows["step"].isna() & rows["metric"].isin(SCORES) & (rows["status"] == "ok")]
    several = final.duplicated(["cell", "metric", "split", "baseline"], keep=False)
    return rows.drop(final.index[several])


def splits(rows: pd.DataFrame) -> list[str]:
    """Return the evaluated splits that have final accuracies, test first."""
    rows = at_task_length(rows)
    final = rows[(rows["metric"] == "accuracy") & rows["step"].isna() & (rows["split"] != "")]
    names = set(final["split"]) - {"train"}
    return sorted(names, key=lambda s: (s != "test", s))


def score_tables(rows: pd.DataFrame, split: str = "test") -> Iterator[tuple[str, Table]]:
    """Yield the metric and the table of each score that a split has: accuracy first."""
    for score in SCORES.values():
        table = accuracy_table(rows, split, score)
        if table is not None:
            yield score.metric, table


def accuracy_table(
    rows: pd.DataFrame, split: str = "test", score: Score = ACCURACY
) -> Table | None:
    """Build the table of final scores on one split, or None where no row has any.

    A column holds one task in one version from one source. A failed or absent place is a mark with
    a footnote; it never enters a mean.
    """
    final = final_scores(rows, split, score)
    if final is None:
        return None
    final = final[list(_USED)].copy()
    final["column"] = [tuple(as_text(v) for v in key) for key in final[list(TASK)].to_numpy()]
    columns = sorted(set(final["column"]))
    same_length = {c[0] for c in columns if len({o[3] for o in columns if o[0] == c[0]}) == 1}
    heads = tuple(
        Column(group=c[0], title=_title(c, with_length=c[0] not in same_length)) for c in columns
    )
    means = final[final["status"] == "ok"].groupby("name")["value"].mean()
    by_baseline = final[final["baseline"] != ""].drop_duplicates("name").to_dict("records")
    titles = {
        str(r["name"]): display_name(r["baseline"].replace("_", " "), {}, r["departures"])
        for r in by_baseline
    }
    oracles = {str(r["name"]) for r in by_baseline if is_oracle(r["baseline"])}
    baselines = sorted(titles, key=lambda n: (n in oracles, means.get(n, 0), n))
    lacking = _without_score(rows, final)
    models = model_order(
        [*(str(n) for n in final["name"][final["baseline"] == ""]), *(name for name, _ in lacking)]
    )
    parts = {(str(n), c): part for (n, c), part in final.groupby(["name", "column"], sort=False)}
    nothing = final.iloc[:0]

    def line(name: str) -> list[Entry]:
        return [
            absent(f"trained, without {_words(score, split)}")
            if (name, c) in lacking
            else entry(parts.get((name, c), nothing), score)
            for c in columns
        ]

    lines, marks = [line(name) for name in models], several_settings(rows, final, score)
    rivals = [line(name) for name in baselines if name not in oracles]
    elsewhere = _baselines_elsewhere(rows, split, score)
    floors, lent = _floors(columns, rivals, elsewhere, score)
    if not marks:
        lines, marks = rank_columns(lines, score.decimals, higher=score.higher, floors=floors)
        marks += LENT.format(", ".join(sorted(lent))) if lent and marks else ""
    every = [entry for entries in lines for entry in entries]
    table_rows = [
        TableRow(title=name, entries=tuple(entries))
        for name, entries in zip(models, lines, strict=True)
    ]
    for name in baselines:
        section = ORACLES if name in oracles else BASELINES
        table_rows.append(TableRow(title=titles[name], entries=(*line(name),), section=section))
    percent = f"{100 * LEVEL:g} %"
    caption = f"{score.unit}, mean over seeds [{percent} interval; what it accounts for]. "
    wilson = any(e.interval and e.interval.source is Uncertainty.examples for e in every)
    caption += (
        "Over seeds it is a t interval; over examples (one seed) it is Wilson's, which does not "
        "cover the variation between seeds."
        if wilson
        else "It is a t interval over seeds; a single seed has none."
    )
    caption += (f" {marks}" if marks else "") + differing_positions(rows.loc[final.index])
    tasks = {column[0] for column in columns}
    certified = (final["baseline"] != "") | (final["runner"] == "certify")  # that failed, too
    if without := sorted(tasks - lent - {*final["task"][certified]}):
        guessed = [f"{t} {100 * CHANCE[t]:.1f}" for t in without if t in CHANCE and score.shares]
        chance = f"; chance: {', '.join(guessed)}" if guessed else ""
        caption += (
            f" No baselines of {', '.join(without)} among the rows; add them with runner=certify"
            f"{chance}."
        )
    if CHANCE.keys() & tasks:
        caption += f" {CAVEAT}"
    if current_style().style.tables.captions is Captions.short and len(tasks) == len(columns):
        data = "; ".join(f"{head.group}: {head.title}" for head in heads)
        caption += f" Data: {data}."
        heads = tuple(Column(title=head.group, key=f"{head.group}, {head.title}") for head in heads)
    tested = any(DIFFERS in e.text for e in every)  # else a short caption says nothing of the test
    ranks = marks if tested or RANKS not in marks else RANKS + UNRANKED * (UNRANKED in marks)
    return Table(
        title=f"{score.title} on the {split} split",
        caption=caption,
        stub="model",
        columns=heads,
        rows=tuple(table_rows),
        brief=f"{score.unit}{behind_means(every)}. {ranks}".rstrip(),
    )


def _floors(
    columns: Sequence[tuple[str, ...]],
    rivals: Sequence[Sequence[Entry]],
    elsewhere: Mapping[tuple[str, ...], list[float]],
    score: Score,
) -> tuple[list[list[float]], set[str]]:
    """Return what ranks of each column have to beat, and the tasks with baselines `elsewhere`."""
    floors, lent = [], set()
    for number, column in enumerate(columns):
        floor = [e.value for line in rivals if (e := line[number]).value is not None]
        if not floor and column in elsewhere:
            floor = elsewhere[column]
            lent.add(column[0])
        chance = [CHANCE[column[0]]] if column[0] in CHANCE and score.shares else []
        floors.append(floor + chance)
    return floors, lent


def _baselines_elsewhere(
    rows: pd.DataFrame, split: str, score: Score
) -> dict[tuple[str, ...], list[float]]:
    """Return scores of baselines, but oracles, on other splits than one or train, by column."""
    there = (rows["baseline"] != "") & rows["step"].isna() & (rows["metric"] == score.metric)
    known = at_task_length(rows[there & ~rows["split"].isin((split, "train", ""))])
    known = known[~known["baseline"].map(is_oracle).astype(bool)]
    found: dict[tuple[str, ...], list[float]] = {}
    for place, part in known.groupby([*TASK, "split", "name"], dropna=False):
        if (value := entry(part, score).value) is not None:
            found.setdefault(tuple(as_text(v) for v in place[: len(TASK)]), []).append(value)
    return found


def several_settings(rows: pd.DataFrame, final: pd.DataFrame, score: Score) -> str:
    """Return why a table of several settings of one family has no best one; "" where it has.

    The best of them is to be chosen on the validation split, where there is one.
    """
    settings: dict[tuple[Any, ...], set[tuple[tuple[str, str], ...]]] = {}
    of_models = final[final["baseline"] == ""]
    columns = (of_models[c].to_numpy(dtype=object) for c in ("column", "family", "options"))
    for column, family, options in zip(*columns, strict=True):
        settings.setdefault((column, family), set()).add(tuple(sorted(options.items())))
    judged = (rows["metric"] == score.metric) & (rows["split"] == "validation")
    if not judged.any() or all(len(found) == 1 for found in settings.values()):
        return ""
    return (
        "There are no ranks, because a family has several settings here, and choosing the best of "
        "them on this split would favour it. See the table of the settings that are best on "
        "validation."
    )


def differing_positions(rows: pd.DataFrame) -> str:
    """Say which models have other positions than most, unless their names do; "" where none has."""
    if "positions" not in rows:
        return ""
    told = ["backbone.positions" in options for options in rows["options"]]
    known = rows.assign(told=told)[(rows["baseline"] == "") & (rows["positions"] != "")]
    texts = []
    for task, part in known.groupby("task"):
        usual = part.drop_duplicates("name")["positions"].mode().get(0, "")
        others = part[(part["positions"] != usual) & ~part["told"]]
        texts += [
            f"{kind} of {', '.join(model_order([*names]))} at {task} ({usual} of most)"
            for kind, names in others.groupby("positions")["name"]
        ]
    return f" Positions differ: {'; '.join(texts)}." if texts else ""


def behind_means(entries: Sequence[Entry]) -> str:
    """Return what stands behind the numbers, for a short caption."""
    counts = sorted({int(e.facts["seeds"]) for e in entries if "seeds" in e.facts})
    if not counts or counts[-1] == 1:
        return ""
    seeds = "–".join(map(str, dict.fromkeys((counts[0], counts[-1]))))
    behind = {Spread.deviation: " ± standard deviation", Spread.none: ""}.get(
        current_style().style.tables.spread, f" [{100 * LEVEL:g} % interval]"
    )
    return f", mean{behind} over {seeds} seeds"


def _without_score(rows: pd.DataFrame, final: pd.DataFrame) -> set[tuple[str, tuple[str, ...]]]:
    """Return names and columns of trainings that neither have the score of others nor failed."""
    trained = rows[(rows["runner"] == "train") & rows["task"].isin(set(final["task"]))]
    searched = set(rows["family"][rows["runner"] == "search"])  # its trials see no test split
    trained = trained[~trained["family"].isin(searched)].drop_duplicates(["name", *TASK])
    places = [tuple(as_text(v) for v in key) for key in trained[list(TASK)].to_numpy()]
    pairs = set(zip(map(str, trained["name"]), places, strict=True))
    return pairs - set(zip(map(str, final["name"]), final["column"], strict=True))


def _words(score: Score, split: str) -> str:
    return f"{score.title.lower()} on the {split} split"


def final_scores(rows: pd.DataFrame, split: str, score: Score) -> pd.DataFrame | None:
    """Return the rows of final scores on a split, one for each cell that failed among them.

    None where no row has any.
    """
    if not (rows["metric"] == score.metric).any():
        return None  # before anything is copied: most rows have few of the scores
    scores = at_task_length(rows[rows["step"].isna()])
    final = scores[scores["metric"] == score.metric]
    if not (final["split"] == split).any():
        return None
    # a training run that failed has one row with the reason, which holds for every split and score
    failed = scores[(scores["status"] != "ok") & scores["metric"].isin(("accuracy", score.metric))]
    lost = failed[failed["task"].isin(set(final["task"]))].drop_duplicates("cell")
    whole = final[(final["split"] == split) & ~final["cell"].isin(set(lost["cell"]))]
    return pd.concat([whole, lost])


def _title(column: tuple[str, ...], *, with_length: bool) -> str:
    _, version, source, length, *marks = column
    title = ", ".join([source, f"version {version}", *(mark for mark in marks if mark)])
    return f"{title}, length {length}" if with_length and length != "–" else title


def entry(rows: pd.DataFrame, score: Score) -> Entry:
    """Return one place of a table from its rows: one for each seed, or why there is no number."""
    if rows.empty:
        return absent("not run")
    sound = (rows["status"] == "ok").to_numpy()
    good, bad = (rows, rows[:0]) if sound.all() else (rows[sound], rows[~sound])
    notes = tuple(_failures(bad))
    cells = tuple(dict.fromkeys(str(key) for key in rows["cell"]))
    if good["seed"].duplicated().any():
        if (good["baseline"] == "").any():
            reason = (
                f"{len(good)} results share this name and seed (other options or other code), so "
                "they are not merged: report one sweep at a time"
            )
            return Entry(text="ambiguous", status=AMBIGUOUS, notes=(reason,), cells=cells)
        if (several := good["value"].nunique()) > 1:
            notes += (f"the best of {several} settings of the data",)
        good = good.sort_values("value", ascending=not score.higher, kind="stable").iloc[:1]
    if good.empty:
        status = str(bad.iloc[0]["status"])
        return Entry(text=MARKS[status], status=status, notes=notes, cells=cells)
    values = [float(v) for v in good["value"]]
    mean = sum(values) / len(values)
    examples = _examples(good)
    interval = score_interval(score, values, examples)
    if len(values) > 1 and len({*values}) == 1 and (good["baseline"] == "").all():
        notes += (EQUAL,)
    if interval is None and score.shares and (good["baseline"] == "").all():
        notes += (ONE_SEED,)
    labels = good["labels"][good["baseline"] != ""]
    notes += tuple(sorted({s for s in (mapping.get("sentence", "") for mapping in labels) if s}))
    notes += tuple(sorted({mapping["remark"] for mapping in good["labels"] if "remark" in mapping}))
    if len(bad) and current_style().style.tables.spread is not Spread.long:
        notes += (f"{len(good)} of {len(rows)} seeds",)
    machines = sorted({f"{d} {p}" for d, p in zip(good["device"], good["precision"], strict=True)})
    if len(machines) > 1:
        notes += (f"seeds come from {' and '.join(machines)}",)
    return Entry(
        text=_text(score, values, interval, lost=len(bad), examples=examples),
        value=mean,
        interval=interval,
        notes=notes,
        facts={"seeds": len(good), "seeds_failed": len(bad), "examples": examples or ""},
        by_seed=dict(zip(map(int, good["seed"]), values, strict=True)),
        cells=cells,
    )


def score_interval(score: Score, values: Sequence[float], examples: int) -> Interval | None:
    """Return the t interval of a mean over seeds; of a share of one seed, that over examples."""
    found = mean_interval(values)
    if found is None and examples and score.shares:
        return wilson_interval(min(values[0], 1.0), examples)
    if found is None or not score.shares:
        return found
    # a t interval knows no bounds, a share has some
    return replace(found, low=max(0.0, found.low), high=min(1.0, found.high))


def _text(
    score: Score, values: Sequence[float], interval: Interval | None, *, lost: int, examples: int
) -> str:
    """Return a mean and what the style in force has behind it."""
    seeds, written = len(values), score.text
    text, spread = written(sum(values) / len(values)), current_style().style.tables.spread
    if spread is Spread.none:
        return text
    if spread is Spread.deviation:
        return f"{text} ± {written(stdev(values))}" if len(values) > 1 else text
    count = f"{seeds} of {seeds + lost} seeds" if lost else f"{seeds} seeds"
    if interval is None:
        counted = spread is Spread.long and (seeds > 1 or lost)
        return f"{text} ({count})" if counted else text
    of = count if seeds > 1 else f"{examples:,} examples" + (f", {count}" if lost else "")
    detail = f"; {of}" if spread is Spread.long else ""
    return f"{text} [{written(interval.low)}, {written(interval.high)}{detail}]"


def _examples(rows: pd.DataFrame) -> int:
    """Return the number of evaluated examples, 0 where the rows do not say or disagree."""
    counts = {f.get("examples", "") for f in rows["labels"]}
    return int(counts.pop()) if len(counts) == 1 and "" not in counts else 0


def _failures(rows: pd.DataFrame) -> Iterator[str]:
    """Yield each reason once; the entry has the number of seeds."""
    for row in rows[["status", "reason"]].drop_duplicates().itertuples():
        yield f"{MARKS[str(row.status)]}: {short(str(row.reason))}"
