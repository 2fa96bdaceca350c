"""Show how many pairs a model recalls: where accuracy falls below 90 % as pairs become more.

    lra run -m task=mqar task.pairs=4,8,16,32 model=sdpa,delta_net seed=0,1,2

The capacity of a training is the number of pairs at which its accuracy crosses 90 %, on a straight
line over the logarithm of pairs between the two measured numbers.
"""

import math
import re
from collections.abc import Iterator, Mapping

import pandas as pd

from lra.reports.rows import model_order
from lra.reports.sections.section import Part, TablePart
from lra.reports.sections.width_curves import state_bytes
from lra.reports.statistics.intervals import mean_interval
from lra.reports.tables.marks import absent
from lra.reports.tables.pivot import table_of
from lra.reports.tables.scores import ACCURACY, final_scores
from lra.reports.tables.table import Column, Entry

LEAST = 0.9
PAIRS = re.compile(r"\b(\d+) pairs\b")
"""In the source of a task that asks for pairs."""


def capacity(scores: Mapping[int, float]) -> tuple[float, str]:
    """Return the number of pairs at which accuracy falls below `LEAST`, and a sign.

    Args:
        scores: Accuracy from 0 to 1 by number of pairs.

    Returns:
        The number; the sign is `<` if fewer pairs than measured would be needed, `≥` if the
        accuracy never falls, and otherwise empty.
    """
    above = 0
    for pairs in sorted(scores):
        if scores[pairs] >= LEAST:
            above = pairs
            continue
        if not above:
            return float(pairs), "<"
        part = (scores[above] - LEAST) / (scores[above] - scores[pairs])
        return above * (pairs / above) ** part, ""
    return float(above), "≥"


def capacities(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the capacity of each training by task, model and seed, with the bytes of its state.

    Only models with several numbers of pairs are included.
    """
    trained = rows[(rows["runner"] == "train") & (rows["baseline"] == "")]
    scores = final_scores(trained, "test", ACCURACY)
    columns = ["task", "model", "seed", "pairs", "sign", "state_bytes"]
    if scores is None:
        return pd.DataFrame(columns=columns)
    told = [PAIRS.search(str(source)) for source in scores["source"]]
    asked = scores.assign(pairs=[int(each[1]) if each else math.nan for each in told])
    asked = asked[asked["pairs"].notna() & (asked["status"] == "ok")]
    bytes_of = state_bytes(trained)
    records = []
    for (task, model, seed), part in asked.groupby(["task", "name", "seed"], sort=False):
        values = dict(zip(part["pairs"].astype(int), part["value"].astype(float), strict=True))
        if len(values) > 1:
            size = bytes_of.reindex(part["cell"]).max()  # nan: the model has no state
            records.append((task, model, seed, *capacity(values), size))
    return pd.DataFrame(records, columns=columns)


def _capacity_entry(data: pd.DataFrame) -> Entry:
    """Return the mean over seeds with its interval, or the bound if a seed has one."""
    values, signs = [*data["pairs"].astype(float)], {*data["sign"]}
    interval = None
    if signs == {""}:
        interval = mean_interval(values)
        text = f"{sum(values) / len(values):.1f}"
        text += f" [{max(0.0, interval.low):.1f}, {interval.high:.1f}]" if interval else ""
    elif len(signs) == 1:
        text = f"{signs.pop()} {min(values):.0f}"
    else:  # some seeds have a number, and others a bound
        ends = data.sort_values("pairs").iloc[[0, -1]].to_dict("records")
        text = " to ".join(f"{end['sign']} {end['pairs']:.1f}".strip() for end in ends)
    facts = {"seeds": len(values)}
    return Entry(text=text, value=sum(values) / len(values), interval=interval, facts=facts)


def _bytes_entry(data: pd.DataFrame) -> Entry:
    """Return the largest state of one text."""
    size = data["state_bytes"].max()
    return absent("no state") if pd.isna(size) else Entry(text=f"{size:,.0f}", value=float(size))


def capacity_table(rows: pd.DataFrame) -> Iterator[Part]:
    """Yield the table of capacities, if models were trained on several numbers of pairs."""
    data = capacities(rows)
    if data.empty:
        return
    lines = [
        (str(task), name, part[part["model"] == name])
        for task, part in data.groupby("task", sort=True)
        for name in model_order([str(each) for each in part["model"]])
    ]
    table = table_of(
        lines,
        [(Column(title="capacity (pairs)"), _capacity_entry),
         (Column(title="state of one text (bytes)"), _bytes_entry)],
        title="Capacity",
        caption="The capacity is the number of pairs at which test accuracy falls below 90 %, "
        "interpolated between measured numbers of pairs: the mean over seeds [95 % interval]. "
        "≥: accuracy is at least 90 % for all pairs; <: for none.",
    )  # fmt: skip
    yield TablePart("capacity", "How many pairs does a model recall?", table)
