"""Columns that distinguish differently configured runs of one model in tables and figures."""

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from lra.composition.catalogue import ours
from lra.composition.pattern_name import pattern_of
from lra.composition.yaml_text import load
from lra.reports.labels import RUN_MARKS, labels_of
from lra.reports.names import FAITHFUL, display_name
from lra.runners.records import baseline_of

if TYPE_CHECKING:  # a sweep asks for names before its first cell, and not for tables
    import pandas as pd

AXES = ("length", "mode", "seed", "runner", "schema")
LABELLED = (
    "mixer.variant", "mixer.layers", "runner.qk", "runner.source", "runner.rule",
    "runner.learning_rate", "runner.decay", "runner.evaluate_splits", "runner.tuned",
    "runner.transferred", "kernels",
)  # fmt: skip
"""Options that a label or the mode of a row names already, so that reports show them."""
SCORED = ("alibi", "t5", "shaw", "transformer_xl")
"""Positions that add a term to every score of attention, so that no fused kernel can be used."""
SIZES = ("depth", "width", "heads", "head_width", "feed_forward_width")
PLACE = ("task_version", "source", "length")
"""Columns of rows that, with the task, decide the column of a table."""
TRAININGS = "trainings."
"""Beginning of the options that hold the keys of the trainings that a cell starts from."""
OTHERS = "mixer.others."
"""Beginning of the options of other families in some layers."""


def flatten(node: Any, prefix: str = "") -> dict[str, str]:
    """Return a nested mapping as one level with dotted keys and text values."""
    if not isinstance(node, Mapping):
        return {prefix.rstrip("."): str(node)}
    flat: dict[str, str] = {}
    _put(flat, node, prefix)
    return flat


def _put(flat: dict[str, str], node: Mapping[str, Any], prefix: str) -> None:
    """Add the values of a nested mapping to `flat`; each dotted key begins with `prefix`."""
    for key, value in node.items():
        if isinstance(value, Mapping):
            _put(flat, value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = str(value)


def with_distinct_names(
    rows: "pd.DataFrame", cells: Mapping[str, Mapping[str, Any]]
) -> "pd.DataFrame":
    """Return `rows` with distinct model names where one name stands for several configurations.

    A table must not average cells of one model, task, runner and protocol that differ in more than
    length, mode and seed. Their names therefore gain the options that differ, for example
    `performer (features=64)`. If a cell is older than an option, it counts as a cell with the
    option's default value. Protocols are distinguished by their labels (`lra.reports.rows.prepare`)
    instead of everything that they set.

    Args:
        rows: frame with the columns of `lra.runners.records.COLUMNS`.
        cells: cell.json of each cell by its key; `described` and `identity` are read.

    Returns:
        The rows with the name to display in `model`, and with two further columns: `family`, the
        name as stored, and `options`, a mapping of the differing options, by dotted name.
    """
    import pandas as pd

    by_cell: dict[tuple[str, str], dict[str, str]] = {}
    of_models = rows[rows["model"].map(baseline_of).isna()]
    marks: dict[str, dict[str, str]] = {mark: {} for mark in RUN_MARKS}
    for cell, labels in zip(of_models["cell"], of_models["labels"].map(labels_of), strict=True):
        for mark, texts in marks.items():  # some rows of a cell lack the label, which counts as ""
            texts[cell] = max(texts.get(cell, ""), labels.get(mark, ""))
    places: dict[str, set[tuple[Any, ...]]] = {}
    for cell, *place in (
        of_models[["cell", *PLACE]].drop_duplicates().astype(str).itertuples(index=False)
    ):
        places.setdefault(cell, set()).add(tuple(place))
    distinct = of_models[["model", "task", "runner", "cell"]].drop_duplicates()
    distinct = distinct.assign(**{m: distinct["cell"].map(texts) for m, texts in marks.items()})
    for (name, *_), group in distinct.groupby(["model", "task", "runner", *RUN_MARKS], sort=False):
        model = str(name)
        flat: dict[str, dict[str, str]] = {}
        set_by_hand: dict[str, set[str]] = {}
        for cell in group["cell"]:
            flat[cell] = flat_options(cells.get(cell, {}).get("described", {}))
            set_by_hand[cell] = {*flat_options(cells.get(cell, {}).get("identity", {}))}
        _fill_defaults(flat, set_by_hand)
        keys = sorted(set().union(*flat.values()))
        fixed_options = _options_of_variants(flat, set_by_hand)
        unnamed = [key for key in keys if not key.startswith(LABELLED) and key not in fixed_options]
        seeds = {cell: _seed_and_schema(cells.get(cell, {}).get("described", {})) for cell in flat}
        layers = {cell: values.get("mixer.layers") for cell, values in flat.items()}
        groups = {key: layers if key.startswith(OTHERS) else seeds for key in unnamed}
        differing = [key for key in unnamed if _differs(key, flat, groups[key])]
        differing = [key for key in differing if not _follows_from_place(key, flat, places)]
        # The key of a training is named only if nothing else differs: options say more to readers.
        differing = [key for key in differing if not key.startswith(TRAININGS)] or differing
        for cell, values in flat.items() if differing else ():  # else the name says enough
            by_cell[model, cell] = {key: values.get(key, "none") for key in differing}
    families = list(rows["model"])
    options = [by_cell.get(pair, {}) for pair in zip(families, rows["cell"], strict=True)]
    names = [display_name(f, o) if o else f for f, o in zip(families, options, strict=True)]
    renamed = rows.assign(model=names, family=families)
    return with_backbones(renamed.assign(options=pd.Series(options, rows.index, object)), cells)


def with_backbones(rows: "pd.DataFrame", cells: Mapping[str, Mapping[str, Any]]) -> "pd.DataFrame":
    """Return rows with three columns about the backbone, which names of models do not mention.

    `positions` is the kind of positions ("": not known). `scored` is the same if the kind is in
    `SCORED`, else "". `size` are the sizes, which distinguish references of one name.

    Args:
        rows: have the key of their cell in the column `cell`.
        cells: cell.json of each cell, by key.
    """
    known = {}
    for key, cell in cells.items():
        backbone = cell.get("identity", {}).get("backbone", {})
        described = cell.get("described", {}).get("backbone", {})
        size = str({name: backbone[name] for name in SIZES if name in backbone})
        set_positions = str(backbone.get("positions", ""))
        known[key] = (
            set_positions if set_positions in SCORED else "",
            size,
            set_positions or str(described.get("positions", "")),
        )
    facts = [known.get(key, ("", "", "")) for key in rows["cell"]]
    columns = zip(*facts, strict=True) if facts else [()] * 3
    return rows.assign(**dict(zip(("scored", "size", "positions"), columns, strict=True)))


def flat_options(described: Mapping[str, Any]) -> dict[str, str]:
    """Return the options of a cell as text, by dotted name, without those in `AXES`."""
    options = flatten({k: v for k, v in described.items() if k not in AXES})
    return options | flatten(described.get("runner", {}), "runner.")


def _fill_defaults(flat: Mapping[str, dict[str, str]], set_by_hand: Mapping[str, set[str]]) -> None:
    """Add the default of an option to cells that are older than it, if another cell has it."""
    usual = {
        key: value
        for cell, values in flat.items()
        for key, value in values.items()
        if key not in set_by_hand[cell]  # so that it has its default
    }
    for values in flat.values():
        values.update({key: value for key, value in usual.items() if key not in values})


def _options_of_variants(
    flat: Mapping[str, Mapping[str, str]], set_by_hand: Mapping[str, set[str]]
) -> set[str]:
    """Return the options that only the variants of a model decide, as nobody set them.

    The label `variant` already distinguishes cells that differ in these. Empty for one variant.
    """
    if len({values.get("mixer.variant") for values in flat.values()}) < 2:
        return set()
    mixer_options = {key for values in flat.values() for key in values if key.startswith("mixer.")}
    return mixer_options.difference(*set_by_hand.values())


def _seed_and_schema(described: Mapping[str, Any]) -> str:
    """Return seed and schema of a cell: only cells with the same ones can share a training."""
    return f"{described.get('seed')} {described.get('schema')}"


def cell_model_name(cell: Mapping[str, Any]) -> str:
    """Return the name of a cell's model with the options that differ from its YAML file.

    The cell alone decides this name, while `with_distinct_names` compares the cells of a report. A
    family from another package is named by the arguments of the command that set its options, and
    so is a pattern, whose name is followed by the layers if they differ.

    Args:
        cell: the content of its cell.json.
    """
    model = str(cell["columns"]["model"])
    options = flatten(cell.get("described", {}).get("mixer", {}))
    options.pop("version", None)
    usual = _read_defaults(model)
    if usual is not None:
        changed = {key: value for key, value in options.items() if usual.get(key) != value}
        if options.get("variant", FAITHFUL) != FAITHFUL:  # the variant fixes other options
            set_by_hand = flatten(cell.get("identity", {}).get("mixer", {}))
            changed = {key: value for key, value in changed.items() if key in set_by_hand}
    else:
        words = [word.partition("=") for word in cell.get("overrides", ())]
        prefix = "model.mixer."
        changed = {k.removeprefix(prefix): v for k, _, v in words if k.startswith(prefix)}
    layers = pattern_of(cell["config"])[1] if cell.get("config") else ""
    return display_name(model, dict(sorted(changed.items())), [layers] if layers else [])


@cache
def _read_defaults(model: str) -> Mapping[str, str] | None:
    """Return the mixer's options in the YAML file of a family; None: the family is not lra's."""
    file = ours() / "model" / f"{model}.yaml"
    if not file.is_file():
        return None
    options = flatten(load(file).get("mixer", {}))
    options.pop("class_path", None)
    return options


def _follows_from_place(
    key: str, flat: Mapping[str, Mapping[str, str]], places: Mapping[str, set[tuple[Any, ...]]]
) -> bool:
    """Return whether `key` is an option of the task that follows from the columns in `PLACE`."""
    if not key.startswith("task."):
        return False
    by_place: dict[tuple[Any, ...], set[str | None]] = {}
    for cell, values in flat.items():
        for place in places[cell]:
            by_place.setdefault(place, set()).add(values.get(key))
    return all(len(values) == 1 for values in by_place.values())


def _differs(
    key: str, flat: Mapping[str, Mapping[str, str]], groups: Mapping[str, str | None]
) -> bool:
    """Return whether cells differ in `key`.

    The key of a training must differ at one seed, and an option of another family in cells with the
    same layers: a label names the layers. These groups are in `groups`, by cell.
    """
    if not key.startswith((TRAININGS, OTHERS)):
        return len({values.get(key) for values in flat.values()}) > 1
    by_group: dict[str | None, set[str]] = {}
    for cell, values in flat.items():
        if key in values:
            by_group.setdefault(groups[cell], set()).add(values[key])
    return any(len(values) > 1 for values in by_group.values())
