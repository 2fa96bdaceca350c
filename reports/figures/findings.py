"""Titles that state a finding, computed from the numbers that a figure shows.

Each function returns "" where the numbers support no single sentence; a plain title takes its
place. Where bands or intervals are drawn, a difference counts only if they do not overlap.
"""

from collections import Counter
from collections.abc import Sequence

import pandas as pd

from lra.reports.figures.words import readable
from lra.reports.style import current_style
from lra.reports.tables.costs import significant
from lra.reports.tables.scores import score_of

FEW = 3
"""Models that a title names; of more it gives the number."""
_NOTICED = 1.05
"""The least ratio of two costs that a title calls a difference."""
_REFERENCES, _NO_MIXER = ("sdpa", "softmax"), "identity"
_COMPARED = {
    "time": ("is faster", "are faster", "takes {} times as long as {}"),
    "memory": ("needs less memory", "need less memory", "needs {} times the memory of {}"),
}


def model_list(names: Sequence[str]) -> str:
    """Return names of models as words."""
    *most, last = readable(["SDPA" if name == "sdpa" else name for name in names])
    return f"{', '.join(most)} and {last}" if most else last


def who(names: Sequence[str], total: int) -> str:
    """Return few models by name, of more how many of all these are."""
    count = {0: f"none of {total}", total: f"all {total}"}.get(
        len(names), f"{len(names)} of {total}"
    )
    return model_list(names) if 0 < len(names) <= FEW else f"{count} models"


def clause(names: Sequence[str], total: int, one: str, many: str) -> str:
    """Return which of `total` models do something; with the verb of one and that of many."""
    return f"{who(names, total)} {many if len(names) > 1 else one}"


def at_end(part: pd.DataFrame, x: str, column: str = "value") -> pd.DataFrame:
    """Return the numbers at the largest `x` at which most models have one."""
    good = part[part[column].notna()]
    models = good.groupby(x)["model"].nunique()
    return good[good[x] == max(models.index, key=lambda at: (models[at], at), default=None)]


def best_models(parts: Sequence[pd.DataFrame], column: str = "value") -> str:
    """Return which models are best; of several panels, the one that is best in most of them.

    Args:
        parts: of each panel a line for each model: `model`, `metric` unless it is a loss, and `low`
            and `high`, the ends of its band.
        column: of the values.
    """
    wins, text = Counter[str](), ""
    for part in parts:
        good = part[part[column].notna()]
        if len(good) < 2:
            return ""
        score = score_of(str(good["metric"].iloc[0]) if "metric" in good else "loss")
        sign, value = 1 if score.higher else -1, good[column].astype(float)
        top = score.text(sign * float((sign * value).max()))
        tied = value.map(score.text) == top
        wins.update(good["model"][tied])
        ends = [sign * good[c].astype(float).fillna(value) for c in ("high", "low")[::sign]]
        near = int((ends[0] >= ends[1][tied].max()).sum() - tied.sum())
        has = f"the {'highest' if sign > 0 else 'lowest'} {score.title.lower()} "
        has += f"({top} {score.symbol}".rstrip() + ")"
        text = clause([*good["model"][tied]], len(good), f"has {has}", f"have {has}")
        if near > 0:
            one = "the interval of 1 other overlaps"
            text += f"; {f'the intervals of {near} others overlap' if near > 1 else one}"
    if len(parts) < 2:
        return text
    (name, most), *others = wins.most_common(2)
    lone = most > 1 and not (others and others[0][1] == most)
    return (
        f"{model_list([name])} is the best model in {most} of {len(parts)} panels" if lone else ""
    )


def best_at(parts: Sequence[pd.DataFrame], when: str, sign: int = 1) -> str:
    """Return which models are best at the largest `length` or, by sign -1, at the smallest.

    `when` begins the sentence, with {} for the length.
    """
    ends = [at_end(part.assign(at=sign * part["length"]), "at") for part in parts]
    found, places = best_models(ends), {int(n) for e in ends for n in e["length"]}
    return f"{when.format(places.pop())}, {found}" if found and len(places) == 1 else found


def front(data: pd.DataFrame, cost: str, score: str, *, higher: bool) -> list[str]:
    """Return the models than which no other is better and cheaper, the cheapest first."""
    mixers = data[data["model"].map(current_style().plain) != _NO_MIXER]
    order = mixers.assign(worse=mixers[score].astype(float) * (-1 if higher else 1))
    order = order.sort_values([cost, "worse"], kind="stable")
    before = order["worse"].cummin().shift(fill_value=float("inf"))
    return [str(name) for name in order["model"][order["worse"] < before]]


def costs(data: pd.DataFrame) -> str:
    """Return how costs by length compare with exact attention; of what `scaling_data` returns."""
    plain, good = data["model"].map(current_style().plain), data[data["value"].notna()]
    reference = next((name for name in _REFERENCES if name in {*plain[good.index]}), "")
    words = _COMPARED.get(str(data["quantity"].iloc[0]))
    theirs = good[plain[good.index] == reference].set_index("length")[["value", "p20"]]
    theirs = theirs.astype(float).rename(columns={"value": "there", "p20": "least"})
    ours = good[~plain[good.index].isin([*_REFERENCES, _NO_MIXER])]
    pairs = ours.join(theirs, on="length", how="inner")
    if words is None or pairs.empty:
        return ""
    value, ratio = pairs["value"].astype(float), pairs["there"] / pairs["value"].astype(float)
    apart = pairs["p80"].astype(float).fillna(value) < pairs["least"].fillna(pairs["there"])
    pairs = pairs.assign(ratio=ratio, less=apart & (ratio > _NOTICED))
    return _compared(pairs, str(data["model"][plain == reference].iloc[0]), words)


def _compared(pairs: pd.DataFrame, reference: str, words: tuple[str, str, str]) -> str:
    at, than = at_end(pairs, "length"), model_list([reference])
    end, less = f"{int(at['length'].iloc[0]):,} tokens", at[at["less"]].sort_values("ratio")
    if pairs["model"].nunique() > 1:
        which = clause([*less["model"][::-1]], len(at), *words[:2])
        best = less.iloc[-1:] if "fast" in words[0] and len(less) > 1 else less[:0]
        most = [
            f"; {n} is {significant(r, 2)} times faster" for n, r in best[["model", "ratio"]].values
        ]
        return f"At {end}, {which} than {than}{''.join(most)}"
    name = model_list([str(at["model"].iloc[0])])
    if less.empty:
        factor = significant(1 / float(at["ratio"].iloc[0]), 2)
        return f"At {end}, {name} {words[2].format(factor, than)}"
    slower = pairs["length"][~pairs["less"]]
    first = pairs["length"][pairs["length"] > slower.max()].min() if len(slower) else 0
    where = f"from {int(first):,} tokens on" if first else "at every length"
    return f"{name} {words[0]} than {than} {where}"
