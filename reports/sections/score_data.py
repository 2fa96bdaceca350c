"""Collect final scores for figures: means over seeds with their intervals."""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from lra.reports.rows import short
from lra.reports.tables.places import Place, place_words
from lra.reports.tables.scores import ACCURACY, LANGUAGE, TASK, Score, entry, final_scores, splits

PANEL = (*TASK, "split", "metric")
"""The columns in which panels differ."""


def score_data(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the final scores of models and baselines on the test split, or else on another.

    The accuracy of a language model is omitted, because perplexity and bits say more.

    Returns:
        A row for each model and panel, with the columns of `PANEL`, `model`, `baseline`, `score`,
        `low` and `high` (the ends of its interval, or NaN), `seeds`, `status` and `reason`.
    """
    records = []
    for split in splits(rows)[:1] or ["test"]:  # a single split, test if it has scores
        language_tasks: set[str] = set()
        for score in (*LANGUAGE, ACCURACY):
            final = final_scores(rows, split, score)
            if final is None:
                continue
            if score is ACCURACY:
                final = final[~final["task"].isin(language_tasks)]
            language_tasks |= set(final["task"])
            for key, part in final.groupby([*TASK, "baseline", "name"], dropna=False):
                records.append(_score_record(key, split, score, part))
    columns = [*PANEL, "baseline", "model", "score", "low", "high", "seeds", "status", "reason"]
    return pd.DataFrame(records, columns=columns)


def _score_record(
    key: tuple[Any, ...], split: str, score: Score, part: pd.DataFrame
) -> dict[str, Any]:
    """Return the row of one model; `part` has its seeds."""
    result, low, high = entry(part, score), float("nan"), float("nan")
    if (interval := result.interval) is not None:
        low, high = interval.low, interval.high
    return {
        **dict(zip((*TASK, "baseline", "model"), key, strict=True)),
        "split": split, "metric": score.metric, "score": result.value, "low": low,
        "high": high, "seeds": result.facts.get("seeds", 0), "status": result.status,
        "reason": "" if result.value is not None else short("; ".join(result.notes)),
    }  # fmt: skip


def panel_words(panel: Sequence[str], key: Place) -> tuple[str, str]:
    """Return the task of a panel, and facts about it, from the values of its columns."""
    return place_words(panel, key, ("task_version", "split", "metric", "tokens"))
