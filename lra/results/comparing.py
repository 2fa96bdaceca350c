"""From words to the sides of a comparison, over a store or files of published rows."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from lra.errors import ConfigError, UnknownName, near, unknown
from lra.reports.comparison.numbers import FinalTrainings, Numbers, numbers_of
from lra.reports.comparison.pairs import Comparison, Side, compare
from lra.reports.rows import as_text, prepare
from lra.reports.statistics.tuning import STUDIES
from lra.reports.tables.scores import TASK
from lra.reports.tables.searches import PLACE, RUNNER, Searches
from lra.results.rows import file_of_rows, published_cells, published_rows, stored_rows
from lra.runners.metrics import JUDGED_BY
from lra.runners.records import CELL_COLUMNS
from lra.runners.store import read_outcomes
from lra.sweep.model_names import TRAININGS, flat_options, with_distinct_names

Settings = dict[str, dict[str, str]]
MODEL = ("model", "mixer.")
"""Beginnings of the settings that a model's name is about."""
LABELS = ("protocol", "scale", "variant", "start")
"""That are settings of a cell."""
LED = ("runner.tuned", "runner.transferred")
"""Settings that say of a training which search led to it."""


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
) -> tuple[Numbers, list[Comparison], list[str]]:
    """Compare what words choose: the first with each other one, or the best with all.

    The numbers, the comparisons, and what was left out because it is damaged, are returned. After a
    search, a name stands for the final trainings with the options that were chosen for it, unless
    its words name an option that was searched.

    Args:
        words: names of models or baselines, or KEY=VALUE words; several are separated by spaces.
        root: the store; None: there is none.
        sweep: of the store; None: all of it.
        files: published rows, in place of the store.
        rows: with models named as in reports, in place of both; their options are not known.
        metric: what is compared; None: the first score that every side has.
        split: of the data; None: test.
        where: further KEY=VALUE words, which hold for all sides.
        best: whether the best is compared with all.
        untuned: whether names stand for the final trainings with the options that a search began
            from.

    Raises:
        ConfigError: two words choose the same, too few are given, or nothing is untuned.
        UnknownName: a word names nothing that is stored.
        NoPair: no two results belong together.
    """
    left_out: list[str] = []
    cells: dict[str, dict[str, Any]] = {}
    if files and sweep is not None:
        raise ConfigError(
            f"sweep: got {sweep!r}, which is for a results folder, and you gave files: remove it"
        )
    if files:
        found = [file_of_rows(file) for file in files]
        for file in found:
            cells |= published_cells(file)
        whole = pd.concat(map(published_rows, found), ignore_index=True)
        rows = with_distinct_names(whole, cells)
    elif rows is None:
        assert root is not None
        rows, cells, left_out = stored_rows(root, sweep)
    frame = prepare(rows)
    if len(words) < 2:
        apart = "".join(words).split(",")
        there = sorted({*frame["name"][frame["baseline"] == ""]})
        got = f"1 name, {words[0]!r}" if words else "no name"
        apart_words = f", as {' '.join(apart)}" * (len(apart) > 1)
        raise ConfigError(
            f"got {got}; wanted two or more{apart_words}; the results have {', '.join(there)}"
        )
    frame = _with_baselines(frame, words)
    settings = _settings(frame, cells)
    place = f"sweep {sweep}" if sweep else ", ".join(map(str, files)) or str(root or "the rows")
    sides = [_side(word, frame, settings, where, place) for word in words]
    sides, trainings = _after_search(frame, settings, sides, where, untuned=untuned)
    for number, side in enumerate(sides):
        for other in sides[:number]:
            if both := side.cells & other.cells:
                raise ConfigError(
                    f"{other.title!r} and {side.title!r} choose {len(both)} results in common: "
                    "add an option in which they differ, for example 'linear seed=0'"
                )
    metric, split = _what(frame, sides, metric, split)
    hits = (lambda *_: None) if files or root is None else _hits(root)
    chosen = frame["cell"].isin(set().union(*(side.cells for side in sides)))
    frame = frame[chosen | (frame["baseline"] != "")]
    numbers = numbers_of(frame, settings, metric, split, hits, trainings=trainings)
    return numbers, compare(numbers, sides, best=best), left_out


def _with_baselines(frame: pd.DataFrame, words: Sequence[str]) -> pd.DataFrame:
    """Return rows with the baselines that words name as models: of one score at every seed."""
    place = [*TASK, "metric", "split"]
    parts = {part for word in words for part in (word, *word.split())}
    known = frame[(frame["baseline"] != "") & (frame["status"] == "ok") & frame["step"].isna()]
    trained = frame[(frame["baseline"] == "") & (frame["status"] == "ok") & frame["step"].isna()]
    seeds = trained[trained["runner"] == "train"].drop_duplicates([*place, "seed"])
    means = known.groupby(["baseline", *place], dropna=False)["value"].mean().reset_index()
    records = []
    for row in seeds.drop(columns=["value", "baseline"]).merge(means, on=place).to_dict("records"):
        baseline = str(row["baseline"])
        labels = {key: value for key, value in row["labels"].items() if key not in LABELS}
        cell = f"{baseline} {row['cell']}"
        row |= {"cell": cell, "baseline": "", "labels": labels, "options": {}}
        for name in parts & {baseline, f"baseline/{baseline}", baseline.replace("_", " ")}:
            records.append(row | {"family": name, "name": name})
    if not records:
        return frame
    return pd.concat([frame, pd.DataFrame(records)], ignore_index=True)


def _settings(frame: pd.DataFrame, cells: Mapping[str, Mapping[str, Any]]) -> Settings:
    """Return every option and column of each cell as text, by dotted name."""
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


def _side(
    word: str, frame: pd.DataFrame, settings: Settings, where: Sequence[str], place: str
) -> Side:
    """Return what a word chooses of the results of a place, such as `sweep mine`."""
    cells, about = {*settings}, list[str]()
    names = _named(frame)
    for part in [word] if word in names else word.split():
        if part in names or "=" not in part:
            if part not in names:
                raise UnknownName(_no_results(part, names, frame, place))
            cells &= names[part]
            about += [*MODEL, *set().union(*frame["options"][frame["name"] == part])]
        else:
            key, chosen = _matching(part, settings)
            cells &= chosen
            about += MODEL if key == "model" else [key]
    for part in where:
        cells &= _matching(part, settings)[1]
    if not cells:
        raise UnknownName(
            f"no stored run is {' '.join([word, *where])!r}: remove one of these conditions"
        )
    return Side(title=word, cells=frozenset(cells), about=tuple(about))


def _no_results(name: str, models: Collection[str], frame: pd.DataFrame, place: str) -> str:
    """Return the message for a model or baseline that a place has no results of."""
    saying = f"no results of {name!r} in {place}"
    baselines = sorted({*frame["baseline"]} - {"", *models})
    if near(name, baselines) and not near(name, models):
        return unknown("baseline", name, baselines, listed=False, saying=saying)
    others = f"Baselines: {', '.join(baselines)}." if baselines else ""
    return unknown("model", name, models, listed=False, saying=saying, way_out=others)


def _after_search(
    frame: pd.DataFrame,
    settings: Settings,
    sides: list[Side],
    where: Sequence[str],
    *,
    untuned: bool,
) -> tuple[list[Side], FinalTrainings | None]:
    """Return sides with the final trainings of searches in place of all at the tasks of these.

    Their `settings` lose what was searched: it belongs to the choice, and differs between studies.
    """
    trained = frame[frame["runner"].isin(("train", RUNNER)) & (frame["baseline"] == "")]
    trained = trained[~trained["cell"].str.contains(" ")].drop_duplicates("cell")
    is_led = {c for c, labels in zip(trained["cell"], trained["labels"], strict=True)
              if "tuned" in labels}  # fmt: skip
    searching = {*trained["cell"][trained["runner"] == RUNNER]}
    if not searching | is_led:
        if untuned:
            raise ConfigError(
                "untuned: these results contain no search; remove this argument, and a name means "
                "all trainings of its model"
            )
        return sides, None
    searches = Searches(frame)
    searched = searches.searched | {*LED}
    for_all = {_matching(part, settings)[0] for part in where}
    led_by_name = {*searches.led["name"]} - {*frame["family"]}
    asked = [bool(searched & {*s.about, *for_all}) or s.title in led_by_name for s in sides]
    if all(asked):
        return sides, None
    final = searches.led_to(tuned=not untuned)
    places = trained[[*PLACE, "family"]].astype(str).itertuples(index=False, name=None)
    place_of = dict(zip(trained["cell"], places, strict=True))
    with_search = {place_of[cell] for cell in searching | is_led}
    trials = {c for c, place in place_of.items() if place in with_search} - searching
    word, kept = "untuned" if untuned else "tuned", []
    for side, as_named in zip(sides, asked, strict=True):
        cells = side.cells if as_named else side.cells - trials | side.cells & final.keys()
        kept.append(replace(side, cells=cells))
        if not cells - searching:
            raise UnknownName(
                f"{side.title!r} has no final training with {word} options: its search is "
                "unfinished or failed; to compare trials, name an option that was searched"
            )
    by_study = searches.studies >= STUDIES
    of_choice = searched | {"seed"} if by_study else searched
    for cell in final:
        settings[cell] = {k: v for k, v in settings[cell].items() if k not in of_choice}
    studies = {cell: int(study) for cell, study in final.items()}
    return kept, FinalTrainings(options=word, studies=studies, by_study=by_study)


def _named(frame: pd.DataFrame) -> dict[str, set[str]]:
    """Return the cells of every name and every family."""
    models = frame[frame["baseline"] == ""]
    cells: dict[str, set[str]] = {}
    for column in ("family", "name"):
        for name, cell in zip(models[column], models["cell"], strict=True):
            cells.setdefault(str(name), set()).add(str(cell))
    return cells


def _matching(word: str, settings: Settings) -> tuple[str, set[str]]:
    """Return the setting that a KEY=VALUE word is about, and the cells that have the value."""
    key, equals, value = word.partition("=")
    if not equals:
        raise ConfigError(f"got {word!r}; wanted KEY=VALUE, as in task=listops")
    key = _key(key, {name for options in settings.values() for name in options})
    values = {cell: options[key] for cell, options in settings.items() if key in options}
    cells = {cell for cell, text in values.items() if _plain(text) == _plain(value)}
    if not cells:
        raise UnknownName(unknown(f"value of {key}", value, {*values.values()}))
    return key, cells


def _key(key: str, names: set[str]) -> str:
    """Return a setting by its name on the command line, in a report, or its last part."""
    plain = key.removeprefix("model.") if key != "model" else key
    tried = [plain, f"mixer.{plain}", plain.replace("task.", "task.options.", 1)]
    found = [name for name in tried if name in names][:1]
    found = found or sorted(name for name in names if name.endswith(f".{plain}"))
    if len(found) > 1:
        raise UnknownName(f"setting {key!r} may be {' or '.join(found)}: give the longer name")
    if not found:
        last = {name.rpartition(".")[2] for name in names}
        raise UnknownName(unknown("setting", key, near(plain, names | last) or names))
    return found[0]


def _plain(text: str) -> str | float:
    """Return a value such that 1e-3 is 0.001, true True and null None."""
    try:
        return float(text)
    except ValueError:
        lower = text.lower().replace(" ", "")
        return "none" if lower == "null" else lower


def _what(
    frame: pd.DataFrame, sides: Sequence[Side], metric: str | None, split: str | None
) -> tuple[str, str]:
    """Return metric and split: those asked for, or the first score that every side has."""
    final = frame[frame["step"].isna() & (frame["status"] == "ok") & (frame["baseline"] == "")]
    shared = set.intersection(*({*final["metric"][final["cell"].isin(s.cells)]} for s in sides))
    if not shared:
        titles = " and ".join(side.title for side in sides)
        raise ConfigError(f"{titles} have no final score in common: choose other runs")
    metric = metric or next(name for name in [*JUDGED_BY, *sorted(shared)] if name in shared)
    if metric not in shared:
        raise UnknownName(unknown("metric", metric, shared))
    splits = {*final["split"][final["metric"] == metric]}
    split = split or "test"
    if splits != {""} and split not in splits:
        raise UnknownName(unknown(f"split of {metric}", split, splits - {""}))
    return metric, split


def _hits(root: Path) -> Any:

    def hits(cell: str, split: str) -> tuple[Any, Any] | None:
        if " " in cell:  # of a baseline, behind whose name the cell of a seed stands
            return None
        found = [each for each in read_outcomes(root, cell) if each.split == split]
        return (found[0].index, found[0].hit) if found else None

    return hits
