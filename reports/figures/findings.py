"""Make titles of figures that state a finding, from the numbers that a figure shows.

A function returns "" if the numbers support no single sentence; the figure then has a plain title.
If a figure has bands or intervals, a difference counts only if they do not overlap.
"""

from collections import Counter
from collections.abc import Sequence

import pandas as pd

from lra.reports.figures.words import readable
from lra.reports.style import current_style
from lra.reports.tables.costs import significant
from lra.reports.tables.scores import score_of

FEW = 3
"""The most models that a title names; if there are more, it has their number."""
_NOTICED = 1.05
"""The smallest ratio of two costs that a title calls a difference."""
_REFERENCES, _NO_MIXER = ("sdpa", "softmax"), "identity"
_COMPARED = {
    "time": ("is faster", "are faster", "takes {} times as long as {}"),
    "memory": ("needs less memory", "need less memory", "needs {} times the memory of {}"),
}


def model_list(names: Sequence[str]) -> str:
    """Return names of models in words, as in "linear, local and SDPA"."""
    *most, last = readable(["SDPA" if name == "sdpa" else name for name in names])
    return f"{', '.join(most)} and {last}" if most else last


def who(names: Sequence[str], total: int) -> str:
    """Return the names of at most `FEW` models, or their number, as in "5 of 8 models"."""
    count = {0: f"none of {total}", total: f"all {total}"}.get(
        len(names), f"{len(names)} of {total}"
    )
    return model_list(names) if 0 < len(names) <= FEW else f"{count} models"


def clause(names: Sequence[str], total: int, one: str, many: str) -> str:
    """Return a clause about `names` of `total` models, as in "5 of 8 models are faster".

    `one` is the verb phrase for a single model, and `many` that for several.
    """
    return f"{who(names, total)} {many if len(names) > 1 else one}"


def at_end(part: pd.DataFrame, x: str, column: str = "value") -> pd.DataFrame:
    """Return the rows at the largest `x` among those that most models have a number at."""
    measured = part[part[column].notna()]
    models = measured.groupby(x)["model"].nunique()
    end = max(models.index, key=lambda place: (models[place], place), default=None)
    return measured[measured[x] == end]


def best_models(parts: Sequence[pd.DataFrame], column: str = "value") -> str:
    """Return which models are best in one panel, or which is best in most of several.

    Where intervals overlap, a panel of several has no best model.

    Args:
        parts: for each panel, a row for each model with the columns `model`, `low` and `high` (the
            ends of its band), and `metric`, which is the loss if the column is missing.
        column: the column of the values.
    """
    wins, text = Counter[str](), ""
    for part in parts:
        measured = part[part[column].notna()]
        if len(measured) < 2:
            return ""
        score = score_of(str(measured["metric"].iloc[0]) if "metric" in measured else "loss")
        sign, value = 1 if score.higher else -1, measured[column].astype(float)
        best = score.text(sign * float((sign * value).max()))
        is_best = value.map(score.text) == best  # equal as printed
        # times sign, so that larger is better: the better and the worse end of each band
        better_end, worse_end = (
            sign * measured[c].astype(float).fillna(value) for c in ("high", "low")[::sign]
        )
        overlaps = int((better_end >= worse_end[is_best].max()).sum() - is_best.sum())
        words = f"the {'highest' if sign > 0 else 'lowest'} {score.title.lower()} "
        words += f"({best} {score.symbol}".rstrip() + ")"
        names = [*measured["model"][is_best]]
        wins.update(names if not overlaps else ())
        text = clause(names, len(measured), f"has {words}", f"have {words}")
        if overlaps == 1:
            text += "; the interval of 1 other model overlaps"
        elif overlaps > 1:
            text += f"; the intervals of {overlaps} other models overlap"
    if len(parts) < 2:
        return text
    (name, count), (_, next_most), *_ = [*wins.most_common(2), ("", 0), ("", 0)]
    unique = count > max(1, next_most)
    return (
        f"{model_list([name])} is the best model in {count} of {len(parts)} panels"
        if unique
        else ""
    )


def best_at(parts: Sequence[pd.DataFrame], when: str, sign: int = 1) -> str:
    """Return which models are best at the largest `length`; with sign -1, at the smallest.

    `when` begins the sentence and has {} for the length, as in "After {:,} steps".
    """
    ends = [at_end(part.assign(at=sign * part["length"]), "at") for part in parts]
    finding, lengths = best_models(ends), {int(n) for end in ends for n in end["length"]}
    if not finding or len(lengths) != 1:
        return finding
    return f"{when.format(lengths.pop())}, {finding}"


def front(data: pd.DataFrame, cost: str, score: str, *, higher: bool) -> list[str]:
    """Return the models on the front of score against cost, the cheapest first.

    No other model is both better and cheaper than one of these. `cost` and `score` are columns.
    """
    mixers = data[data["model"].map(current_style().plain) != _NO_MIXER]
    order = mixers.assign(worse=mixers[score].astype(float) * (-1 if higher else 1))
    order = order.sort_values([cost, "worse"], kind="stable")
    before = order["worse"].cummin().shift(fill_value=float("inf"))
    return [str(name) for name in order["model"][order["worse"] < before]]


def costs(data: pd.DataFrame) -> str:
    """Return how the costs of models compare with exact attention, from `scaling_data`."""
    plain, measured = data["model"].map(current_style().plain), data[data["value"].notna()]
    reference = next((name for name in _REFERENCES if name in {*plain[measured.index]}), "")
    words = _COMPARED.get(str(data["quantity"].iloc[0]))
    of_reference = measured[plain[measured.index] == reference].set_index("length")
    of_reference = of_reference[["value", "p20"]].astype(float)
    of_reference.columns = pd.Index(["reference", "reference_p20"])
    of_models = measured[~plain[measured.index].isin([*_REFERENCES, _NO_MIXER])]
    pairs = of_models.join(of_reference, on="length", how="inner")
    if words is None or pairs.empty:
        return ""
    value = pairs["value"].astype(float)
    ratio = pairs["reference"] / value
    # the band of a model must end below that of the reference
    upper_end = pairs["p80"].astype(float).fillna(value)
    below = upper_end < pairs["reference_p20"].fillna(pairs["reference"])
    pairs = pairs.assign(ratio=ratio, less=below & (ratio > _NOTICED))
    return _cost_sentence(pairs, str(data["model"][plain == reference].iloc[0]), words)


def _cost_sentence(pairs: pd.DataFrame, reference: str, words: tuple[str, str, str]) -> str:
    """Return a sentence about costs that `less` marks as smaller than those of the reference.

    `words` are the phrases of `_COMPARED` for one model, several models, and a worse model.
    """
    last, reference_words = at_end(pairs, "length"), model_list([reference])
    length = f"{int(last['length'].iloc[0]):,} tokens"
    cheaper = last[last["less"]].sort_values("ratio")
    one, many, worse = words
    if pairs["model"].nunique() > 1:
        which = clause([*cheaper["model"][::-1]], len(last), one, many)
        best = ""
        if "fast" in one and len(cheaper) > 1:
            name, ratio = cheaper.iloc[-1][["model", "ratio"]]
            best = f"; {name} is {significant(ratio, 2)} times faster"
        return f"At {length}, {which} than {reference_words}{best}"
    name = model_list([str(last["model"].iloc[0])])
    if cheaper.empty:
        factor = significant(1 / float(last["ratio"].iloc[0]), 2)
        return f"At {length}, {name} {worse.format(factor, reference_words)}"
    slower = pairs["length"][~pairs["less"]]
    first = pairs["length"][pairs["length"] > slower.max()].min() if len(slower) else 0
    where = f"from {int(first):,} tokens on" if first else "at every length"
    return f"{name} {one} than {reference_words} {where}"
