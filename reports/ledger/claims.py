"""Read the claims of papers from `claims.yaml`, with the checks that decide them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import NoneType
from typing import Any

from lra.conf.plain_files import NoJson, Types, typed_object
from lra.conf.short_values import short_repr


class BadClaim(ValueError):
    """A claim cannot be read or decided; the message says which one and why."""


class Setting(StrEnum):
    """How our setting relates to the published one."""

    same = "same"
    smaller = "smaller"
    """Tests the direction of a claim, and never its number."""
    counted = "counted"
    """Counted or computed without training, so exact."""


class Relation(StrEnum):
    """Where the interval of a number has to lie."""

    above = "above"
    below = "below"
    within = "within"


Where = Mapping[str, str]
"""Wanted texts of columns, labels or options of a row, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MarginCheck:
    """One number of a claim, and where its interval has to lie."""

    metric: str
    left: Where
    right: Where | float | None = None
    """Rows or a published number that `left` is compared with; None: `left` alone is the number."""
    ratio: bool = False
    """Compare by left / right instead of left - right."""
    relation: Relation
    margin: float
    """A bound of the number; for `within`, the largest distance from 0, or from 1 for a ratio."""
    over: Where = field(default_factory=dict)
    """`mean` or `best` by option: what happens to the values of several runs of one seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperClaim:
    """A claim of a paper, and the rows and checks that decide it."""

    id: str
    theme: str
    claim: str
    source: str
    published: str
    setting: Setting
    written: str = ""
    """`before` or `after`: when the margins were written, compared with the rows."""
    rows: tuple[str, ...] = ()
    """Files in `reports/published`, without `.jsonl`."""
    command: str = ""
    checks: tuple[MarginCheck, ...] = ()
    not_attempted: str = ""
    """Why no row is stored; empty if the claim has checks or is not comparable."""
    not_comparable: str = ""
    """Why the stored rows decide nothing about the claim."""
    remark: str = ""
    """What a reader of the verdict has to know, written when the rows were there."""


_CLAIM: Types = {
    "id": str, "claim": str, "source": str, "published": str, "setting": str, "written": str,
    "rows": list[str], "command": str, "checks": list, "not_attempted": str, "not_comparable": str,
    "remark": str,
}  # fmt: skip
_OPTIONAL: dict[str, Any] = {
    "written": "", "rows": [], "command": "", "checks": [], "not_attempted": "",
    "not_comparable": "", "remark": "",
}  # fmt: skip
_NUMBER = (int, float, NoneType)
_CHECK: Types = {
    "metric": str, "where": dict, "left": dict, "right": (dict, *_NUMBER), "by": str, "over": dict,
    "above": _NUMBER, "below": _NUMBER, "within": _NUMBER,
}  # fmt: skip
_DEFAULTS: dict[str, Any] = {"where": {}, "by": "difference", "over": {}}


def text(value: Any) -> str:
    """Return a value as `where` compares it: 1 for 1.0, true for True, nothing for None."""
    if value is None or isinstance(value, bool):
        return "" if value is None else str(value).lower()
    number = isinstance(value, float) and value.is_integer()
    return str(int(value)) if number else str(value)


def read_claims(themes: Any) -> list[PaperClaim]:
    """Return the claims of a parsed `claims.yaml`, in its order.

    Raises:
        BadClaim: an entry is no claim, with its place, the value seen and the value wanted.
    """
    if not isinstance(themes, dict) or not all(isinstance(part, list) for part in themes.values()):
        raise BadClaim("claims.yaml: wanted lists of claims by theme")
    found = [_claim(theme, entry) for theme, part in themes.items() for entry in part]
    for claim in found:
        if sum(other.id == claim.id for other in found) > 1:
            raise BadClaim(f"{claim.id}: two claims have this id; give one of them another")
    return found


def _typed(where: str, entry: Any, types: Types, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return an entry with its defaults. Raises BadClaim for a wrong type or an unknown key."""
    try:
        found = typed_object({**defaults, **entry} if isinstance(entry, dict) else entry, types)
    except NoJson as error:
        raise BadClaim(f"{where}: {error}") from None
    if unknown := found.keys() - types.keys():
        raise BadClaim(f"{where}: unknown keys {sorted(unknown)}; wanted some of {[*types]}")
    return found


def _choice(where: str, value: str, wanted: Mapping[str, Any]) -> Any:
    """Return what a word stands for. Raises BadClaim for any other word."""
    if value not in wanted:
        raise BadClaim(f"{where}: got {short_repr(value)}; wanted one of {[*wanted]}")
    return wanted[value]


def _claim(theme: str, entry: Any) -> PaperClaim:
    """Return the claim of an entry."""
    name = entry.get("id") if isinstance(entry, dict) else None
    place = str(name or f"an entry of {short_repr(theme)}")
    found = _typed(place, entry, _CLAIM, _OPTIONAL)
    reasons = [key for key in ("checks", "not_attempted", "not_comparable") if found[key]]
    if len(reasons) != 1:
        raise BadClaim(
            f"{place}: got {reasons}; wanted one of checks, not_attempted and not_comparable"
        )
    if found["checks"] and not (found["rows"] and found["command"]):
        raise BadClaim(f"{place}: a claim with checks needs rows and the command that repeats them")
    checks = [
        _check(f"{place}, check {number}", check) for number, check in enumerate(found["checks"], 1)
    ]
    wanted = ("before", "after") if checks else ("",)
    _choice(f"{place}, written", found["written"], dict.fromkeys(wanted))
    setting = _choice(f"{place}, setting", found["setting"], Setting.__members__)
    found |= {"checks": tuple(checks), "rows": tuple(found["rows"]), "setting": setting}
    return PaperClaim(theme=theme, **found)


def _check(place: str, entry: Any) -> MarginCheck:
    """Return the check of an entry."""
    found = _typed(place, {"right": None, **dict.fromkeys(Relation), **entry}, _CHECK, _DEFAULTS)
    relations = [relation for relation in Relation if found[relation] is not None]
    if len(relations) != 1:
        raise BadClaim(f"{place}: got {relations}; wanted one of {[*map(str, Relation)]}")
    (relation,), right = relations, found["right"]
    ratio = _choice(f"{place}, by", found["by"], {"difference": False, "ratio": True})
    if right is None and (ratio or relation is Relation.within):
        raise BadClaim(f"{place}: a ratio and `within` need `right`, rows or a number")
    for key, how in found["over"].items():
        _choice(f"{place}, over {key}", how, {"mean": 1, "best": 1})
    shared = {key: text(value) for key, value in found["where"].items()}
    sides = [
        {**shared, **{key: text(value) for key, value in side.items()}}
        if isinstance(side, dict)
        else side
        for side in (found["left"], right)
    ]
    return MarginCheck(
        metric=found["metric"], left=sides[0], right=sides[1], ratio=ratio, relation=relation,
        margin=float(found[relation]), over=found["over"],
    )  # fmt: skip
