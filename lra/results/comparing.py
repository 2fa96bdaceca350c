"""From arguments to the sides of a comparison, over stored or published rows."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd

from lra.errors import ConfigError, UnknownName, near, unknown
from lra.reports.comparison.numbers import FinalTrainings, Numbers, numbers_of
from lra.reports.comparison.pairs import Comparison, Side, compare
from lra.reports.rows import as_text, prepare
from lra.reports.statistics.tuning import STUDIES
from lra.reports.tables.scores import TASK, score_of
from lra.reports.tables.searches import PLACE, RUNNER, Searches
from lra.results.rows import file_of_rows, published_cells, published_rows, stored_rows
from lra.runners.metrics import JUDGED_BY
from lra.runners.records import CELL_COLUMNS
from lra.runners.store import read_outcomes
from lra.sweep.model_names import TRAININGS, flat_options, with_distinct_names

Settings = dict[str, dict[str, str]]
MODEL = ("model", "mixer.")
"""Beginnings of the settings that the name of a model stands for."""
LABELS = ("protocol", "scale", "variant", "start")
"""Labels of rows that count as settings of a cell."""
LED = ("runner.tuned", "runner.transferred")
"""Settings of a final training that name the search which chose its options."""
PUBLISHED = "published="
"""The beginning of an argument that is a score from elsewhere, as a side of a comparison."""


def compare_words(
    words: Sequence[str],
    *,
    root: Path | None,
    sweep: str | None = None,
    files: Sequence[Path] = (),
    rows: pd.DataFrame | None = None,
    metric: str | None = None,
    split: str | None = None,
    where: Sequence[str] = (),
    best: bool = False,
    untuned: bool = False,
) -> tuple[Numbers, list[Side], list[Comparison], list[str]]:
    """Compare the first side with each other one, or the best with all.

    Returns the numbers, the sides, the comparisons, and the messages about excluded, damaged files.
    An argument `published=NUMBER` is a side that has this score at all seeds. After a search, a
    name stands for the final trainings with the chosen options, unless `words` name an option that
    was searched.

    Args:
        words: one for each side: the name of a model or baseline, KEY=VALUE, or several of these
            with spaces between them.
        root: the results folder; None: there is none.
        sweep: a sweep of this folder; None: all of them.
        files: files of published rows, instead of the results folder.
        rows: rows with models named as in reports, instead of both.
        metric: the metric to compare; None: the first score that every side has.
        split: the split of the data; None: test.
        where: further KEY=VALUE arguments, which hold for all sides.
        best: whether the best side is compared with all others.
        untuned: whether a name stands for the final trainings without the chosen options.

    Raises:
        ConfigError: two sides have the same results, or there are too few, or no untuned ones.
        UnknownName: an argument names nothing that is stored.
        NoPair: no two results belong together.
    """
    excluded: list[str] = []
    cells: dict[str, dict[str, Any]] = {}
    if files and sweep is not None:
        raise ConfigError(
            f"sweep: got {sweep!r} together with files; remove it, as files have no sweeps"
        )
    if files:
        row_files = [file_of_rows(file) for file in files]
        for file in row_files:
            cells |= published_cells(file)
        published = pd.concat(map(published_rows, row_files), ignore_index=True)
        rows = with_distinct_names(published, cells)
    elif rows is None:
        assert root is not None
        rows, cells, excluded = stored_rows(root, sweep)
    frame = prepare(rows)
    if len(words) < 2:
        listed = "".join(words).split(",")
        known_names = sorted({*frame["name"][frame["baseline"] == ""]})
        got = f"1 name, {words[0]!r}" if words else "no name"
        hint = f", for example {' '.join(listed)}" * (len(listed) > 1)
        raise ConfigError(
            f"got {got}; wanted two or more names{hint}; the results have {', '.join(known_names)}"
        )
    frame = _with_baselines(frame, words)
    settings = _read_settings(frame, cells)
    place = f"sweep {sweep}" if sweep else ", ".join(map(str, files)) or str(root or "the rows")
    sides = [_make_side(word, frame, settings, where, place) for word in words]
    sides, trainings = _after_search(frame, settings, sides, where, untuned=untuned)
    for number, side in enumerate(sides):
        for other in sides[:number]:
            if shared := side.cells & other.cells:
                raise ConfigError(
                    f"{other.title!r} and {side.title!r} share {len(shared)} results: add an "
                    "option to one of them in which they differ, for example 'linear seed=0'"
                )
    metric, split = _choose_metric(frame, sides, metric, split)
    # Published rows have no results of single examples.
    hits = (lambda *_: None) if files or root is None else _hits_reader(root)
    chosen = frame["cell"].isin(set().union(*(side.cells for side in sides)))
    frame = frame[chosen | (frame["baseline"] != "")]
    numbers = numbers_of(frame, settings, metric, split, hits, trainings=trainings)
    return numbers, sides, compare(numbers, sides, best=best), excluded


def _with_baselines(frame: pd.DataFrame, words: Sequence[str]) -> pd.DataFrame:
    """Return the rows, with the baselines in `words` as models that have one score at all seeds.

    For each seed of a training, a copy of one of its rows gets the mean score of the baseline.
    """
    place = [*TASK, "metric", "split"]
    parts = {part for argument in words for part in (argument, *argument.split())}
    known = frame[(frame["baseline"] != "") & (frame["status"] == "ok") & frame["step"].isna()]
    trained = frame[(frame["baseline"] == "") & (frame["status"] == "ok") & frame["step"].isna()]
    seeds = trained[trained["runner"] == "train"].drop_duplicates([*place, "seed"])  # one row each
    means = known.groupby(["baseline", *place], dropna=False)["value"].mean().reset_index()
    records = []
    for row in seeds.drop(columns=["value", "baseline"]).merge(means, on=place).to_dict("records"):
        baseline = str(row["baseline"])
        labels = {key: value for key, value in row["labels"].items() if key not in LABELS}
        cell = f"{baseline} {row['cell']}"
        row |= {"cell": cell, "baseline": "", "labels": labels, "options": {}}
        for name in parts & {baseline, f"baseline/{baseline}", baseline.replace("_", " ")}:
            records.append(row | {"family": name, "name": name})
    for name in dict.fromkeys(part for part in parts if part.startswith(PUBLISHED)):
        number = _published_number(name)
        for row in seeds[seeds["metric"].isin(JUDGED_BY)].to_dict("records"):
            row |= {"cell": f"{name} {row['cell']}", "labels": {}, "options": {}, "baseline": "",
                    "family": name, "name": name,
                    "value": number / score_of(str(row["metric"])).factor}  # fmt: skip
            records.append(row)
    if not records:
        return frame
    return pd.concat([frame, pd.DataFrame(records)], ignore_index=True)


def _published_number(word: str) -> float:
    """Return the number in `published=NUMBER`; raise ConfigError for another word."""
    try:
        number = float(word.removeprefix(PUBLISHED))
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ConfigError(
            f"got {word!r}; wanted {PUBLISHED}NUMBER, a score as tables print it, for example "
            f"{PUBLISHED}65.9 for an accuracy of 65.9 %"
        )
    return number


def _read_settings(frame: pd.DataFrame, cells: Mapping[str, Mapping[str, Any]]) -> Settings:
    """Return the options, columns and some labels of each cell as text, by key and dotted name.

    Options below `TRAININGS` hold keys of other cells, which the user did not set, so they are
    dropped. The setting `model` is the family: the column `model` may contain a label of the user.
    """
    settings: Settings = {}
    of_models = frame[frame["baseline"] == ""]
    columns = [column for column in CELL_COLUMNS if column != "model"]
    for row in of_models.drop_duplicates("cell").to_dict("records"):
        cell = str(row["cell"])
        options = flat_options(cells.get(cell, {}).get("described", {}))
        settings[cell] = {k: v for k, v in options.items() if not k.startswith(TRAININGS)}
        settings[cell] |= {column: as_text(row[column]) for column in columns}
        settings[cell]["model"] = str(row["family"])
    for cell, labels in zip(of_models["cell"], of_models["labels"], strict=True):
        settings[cell] |= {name: labels[name] for name in LABELS if name in labels}
    return settings


def _make_side(
    word: str, frame: pd.DataFrame, settings: Settings, where: Sequence[str], place: str
) -> Side:
    """Return the side of a comparison: the cells that meet the conditions in `word` and `where`.

    A condition is a name or KEY=VALUE. Messages name the results by `place`, such as `sweep mine`.
    """
    cells, setting_names = {*settings}, list[str]()
    names = _cells_by_name(frame)
    for part in [word] if word in names else word.split():
        if part in names or "=" not in part:
            if part not in names:
                raise UnknownName(_no_results(part, names, frame, place))
            cells &= names[part]
            setting_names += [*MODEL, *set().union(*frame["options"][frame["name"] == part])]
        else:
            key, matching_cells = _match(part, settings)
            cells &= matching_cells
            setting_names += MODEL if key == "model" else [key]
    for part in where:
        _, matching_cells = _match(part, settings)
        cells &= matching_cells
    if not cells:
        raise UnknownName(
            f"no stored run meets all of {' '.join([word, *where])!r}: remove a condition"
        )
    return Side(
        title=word, cells=frozenset(cells), about=tuple(setting_names),
        published=word.startswith(PUBLISHED),
    )  # fmt: skip


def _no_results(name: str, models: Collection[str], frame: pd.DataFrame, place: str) -> str:
    """Return the message for a model or baseline that a place has no results of."""
    saying = f"there are no results of {name!r} in {place}"
    baselines = sorted({*frame["baseline"]} - {"", *models})
    if near(name, baselines) and not near(name, models):
        return unknown("baseline", name, baselines, listed=False, saying=saying)
    baselines_hint = f"Baselines: {', '.join(baselines)}." if baselines else ""
    return unknown("model", name, models, listed=False, saying=saying, way_out=baselines_hint)


def _after_search(
    frame: pd.DataFrame,
    settings: Settings,
    sides: list[Side],
    where: Sequence[str],
    *,
    untuned: bool,
) -> tuple[list[Side], FinalTrainings | None]:
    """Return the sides with the final trainings of searches instead of all their trainings.

    This concerns the tasks and models that were searched. The searched options are removed from
    `settings` of the final trainings, because they may differ between the studies of a search.
    None is returned as the second value if no side changes.
    """
    trained = frame[frame["runner"].isin(("train", RUNNER)) & (frame["baseline"] == "")]
    # The key of a repeated baseline has a space.
    trained = trained[~trained["cell"].str.contains(" ")].drop_duplicates("cell")
    tuned_cells = {c for c, labels in zip(trained["cell"], trained["labels"], strict=True)
              if "tuned" in labels}  # fmt: skip
    searching = {*trained["cell"][trained["runner"] == RUNNER]}
    if not searching | tuned_cells:  # neither a search nor its final trainings are stored
        if untuned:
            raise ConfigError(
                "untuned: these results contain no search; without this argument, a name stands "
                "for all trainings of its model"
            )
        return sides, None
    searches = Searches(frame)
    searched = searches.searched | {*LED}
    for_all = {_match(part, settings)[0] for part in where}
    names_of_choices = {*searches.led["name"]} - {*frame["family"]}
    is_named_so = [  # by a searched option, or by the name that reports give to the choice
        bool(searched & {*s.about, *for_all}) or s.title in names_of_choices for s in sides
    ]
    if all(is_named_so):
        return sides, None
    final_studies = searches.led_to(tuned=not untuned)
    places = trained[[*PLACE, "family"]].astype(str).itertuples(index=False, name=None)
    place_of = dict(zip(trained["cell"], places, strict=True))
    searched_places = {place_of[cell] for cell in searching | tuned_cells}
    trials = {c for c, place in place_of.items() if place in searched_places} - searching
    kind, new_sides = "untuned" if untuned else "tuned", []
    for side, as_named in zip(sides, is_named_so, strict=True):
        # Without the trials, but with those that are final trainings.
        cells = side.cells if as_named else side.cells - trials | side.cells & final_studies.keys()
        new_sides.append(replace(side, cells=cells))
        if not cells - searching:
            raise UnknownName(
                f"{side.title!r} has no final training with {kind} options, because its search is "
                "unfinished or failed; to compare trials, name an option that was searched"
            )
    pair_studies = searches.studies >= STUDIES
    chosen_names = searched | {"seed"} if pair_studies else searched
    for cell in final_studies:
        settings[cell] = {k: v for k, v in settings[cell].items() if k not in chosen_names}
    studies = {cell: int(study) for cell, study in final_studies.items()}
    return new_sides, FinalTrainings(options=kind, studies=studies, by_study=pair_studies)


def _cells_by_name(frame: pd.DataFrame) -> dict[str, set[str]]:
    """Return the keys of the cells of each family, and of each name in reports."""
    models = frame[frame["baseline"] == ""]
    cells: dict[str, set[str]] = {}
    for column in ("family", "name"):
        for name, cell in zip(models[column], models["cell"], strict=True):
            cells.setdefault(str(name), set()).add(str(cell))
    return cells


def _match(word: str, settings: Settings) -> tuple[str, set[str]]:
    """Return the full name of the setting in `word` (KEY=VALUE), and the cells with this value."""
    key, equals, value = word.partition("=")
    if not equals:
        raise ConfigError(f"got {word!r}; wanted KEY=VALUE, for example task=listops")
    key = _find_key(key, {name for options in settings.values() for name in options})
    values = {cell: options[key] for cell, options in settings.items() if key in options}
    cells = {cell for cell, text in values.items() if _normalise(text) == _normalise(value)}
    if not cells:
        raise UnknownName(unknown(f"value of {key}", value, {*values.values()}))
    return key, cells


def _find_key(key: str, names: set[str]) -> str:
    """Return the full name of a setting, given as on the command line or by its last part."""
    plain = key.removeprefix("model.") if key != "model" else key
    candidates = [plain, f"mixer.{plain}", plain.replace("task.", "task.options.", 1)]
    matches = [name for name in candidates if name in names][:1]  # the first has priority
    matches = matches or sorted(name for name in names if name.endswith(f".{plain}"))
    if len(matches) > 1:
        raise UnknownName(f"setting {key!r} is ambiguous: type {' or '.join(matches)}")
    if not matches:
        last = {name.rpartition(".")[2] for name in names}
        raise UnknownName(unknown("setting", key, near(plain, names | last) or names))
    return matches[0]


def _normalise(text: str) -> str | float:
    """Return a value in a form in which equal values are equal: 1e-3 and 0.001, null and None."""
    try:
        return float(text)
    except ValueError:
        lower = text.lower().replace(" ", "")
        return "none" if lower == "null" else lower


def _choose_metric(
    frame: pd.DataFrame, sides: Sequence[Side], metric: str | None, split: str | None
) -> tuple[str, str]:
    """Return the metric and split to compare; by default, the first score that all sides have."""
    final = frame[frame["step"].isna() & (frame["status"] == "ok") & (frame["baseline"] == "")]
    shared = set.intersection(*({*final["metric"][final["cell"].isin(s.cells)]} for s in sides))
    if not shared:
        titles = " and ".join(side.title for side in sides)
        raise ConfigError(
            f"there is no metric for which each of {titles} has a score: choose other runs"
        )
    metric = metric or next(name for name in [*JUDGED_BY, *sorted(shared)] if name in shared)
    if metric not in shared:
        raise UnknownName(unknown("metric", metric, shared))
    splits = {*final["split"][final["metric"] == metric]}
    split = split or "test"
    if splits != {""} and split not in splits:  # {""}: this metric is of no split
        raise UnknownName(unknown(f"split of {metric}", split, splits - {""}))
    return metric, split


def _hits_reader(root: Path) -> Any:
    """Return a function from a cell and a split to its per-example results: indices and hits."""

    @cache  # a run is compared with many others
    def hits(cell: str, split: str) -> tuple[Any, Any] | None:
        if " " in cell:  # a baseline's row, whose key is its name and the key of a cell
            return None
        outcomes = [outcome for outcome in read_outcomes(root, cell) if outcome.split == split]
        return (outcomes[0].index, outcomes[0].hit) if outcomes else None

    return hits
