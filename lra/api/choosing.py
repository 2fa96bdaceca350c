"""Rank all families at one length by counted costs, and by stored measurements and scores."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lra.api.plain_errors import plainly
from lra.api.results import DamagedCell
from lra.composition.python_words import flags, words_of
from lra.errors import ConfigError, unknown

if TYPE_CHECKING:
    import pandas as pd

KEYS = {
    "forecast": ("step_s",), "time": ("time_ratio",), "memory": ("memory_bytes",),
    "operations": ("multiply_adds",), "prefill": ("prefill_s",), "token": ("token_s",),
    "state": ("state_bytes",), "quality": ("paper_score", "score"),
}  # fmt: skip
"""The columns by which each rank sorts; the second counts where the first is equal or unknown."""
NUMBERS = (*(n for names in KEYS.values() for n in names), "parameters", "room_bytes", "reach")


@plainly
def choose(
    length: int,
    *,
    hardware: str = "cpu",
    task: str | None = None,
    causal: bool = False,
    by: str = "forecast",
    results: "str | Path" = "results",
    config_dir: "str | Path | None" = None,
    plugins: Sequence[str] = (),
    **options: Any,
) -> "pd.DataFrame":
    """Rank all families by the time or memory that they need at a length, or by known scores.

    It only counts operations and bytes; it starts no run. For example, `lra.choose(4096,
    hardware="a100", by="memory")` ranks by the memory of a training step on an A100.

    Args:
        length: Number of tokens of a sequence.
        hardware: A name of `lra list hardware`, for this machine or another machine.
        task: A name of `lra list tasks`. It decides the vocabulary of the model and which scores
            are shown. None: the vocabulary of listops, without scores.
        causal: Whether models read earlier tokens only, whatever the task needs.
        by: `forecast` (time of a training step as `lra plan` counts it), `time` (measured, divided
            by that of exact attention), `memory`, `operations`, `prefill`, `token`, `state` or
            `quality`.
        results: A results folder, whose rows are preferred to published ones.
        config_dir: A folder with your configuration files.
        plugins: Packages that these files may name.
        **options: `width` (feed-forward networks are four times as wide), `heads`, `depth`, `batch`
            (sequences of a step; default: 1), `gib` (memory of your GPU), and other arguments of
            `lra run`: `size="base"`, `model=("linear", "s4")`.

    Returns:
        A frame with a line for each family, the best first, and NaN or "" for unknown values. Its
        columns are: `parameters`; `multiply_adds` of a forward pass for each token; `memory_bytes`
        and `step_s` of a training step, and whether it `fits` into `room_bytes`; `reach`, the
        largest distance in tokens between an output and an input that it depends on; forecasts for
        one text: `prefill_s` of a forward pass and, for causal models, `token_s` of one more token
        and `state_bytes` after all tokens, in float32; `time_ratio`, `score` (of rows) and
        `paper_score`, each with its source; `time_ratio_alike`: whether the ratio was measured on
        this kind of device and in this direction; `step_source`: where a step of this setting was
        measured, or exhausted the memory (`step_s` and `fits` are then measured); `reason`: why a
        value is unknown, or why the family is excluded. Families with `serves` False are excluded
        and come last. `attrs["setting"]` repeats the question in words, and `attrs["no_scores"]`
        is the reason if there are no scores.

    Warns:
        DamagedCell: A stored run cannot be read and is excluded.

    Raises:
        ValueError: A name or option is unknown, a number is out of range, or `by="quality"` has
            no scores to rank by.

    Examples:
        >>> import lra
        >>> frame = lra.choose(1024, model=("sdpa", "linear", "fnet"), causal=True, by="operations")
        >>> [*frame["model"]], [*frame["serves"]]
        (['linear', 'sdpa', 'fnet'], [True, True, False])
    """
    from lra.composition.hydra_entry import hydra_left_alone

    for name, value in options.items():
        if name == "model" and isinstance(value, str) and "," in value:
            raise ConfigError(
                f"model: got {value!r}; wanted a tuple such as {(*value.split(','),)!r:.80}"
            )
    words = [*flags(config_dir, plugins), *(["causal"] if causal else [])]
    named = {"length": length, "hardware": hardware, **({} if task is None else {"task": task})}
    words += words_of({**named, **options})
    with hydra_left_alone():
        frame, left_out = screen(words, by=by, results=Path(results))
    for line in left_out:
        warnings.warn(f"excluded: {line}", DamagedCell, stacklevel=3)
    return frame


def screen(words: Sequence[str], *, by: str, results: Path) -> "tuple[pd.DataFrame, Sequence[str]]":
    """Return the frame of `choose`, and a message for each damaged run that is excluded.

    Args:
        words: The arguments of `lra choose`, without its flags.
        by: The rank, one of `KEYS`.
        results: A results folder.
    """
    if by not in KEYS:
        raise ConfigError(unknown("rank", str(by), KEYS))
    import pandas as pd

    from lra.results.evidence import on_record
    from lra.sweep.family_costs import family_costs, runs_of, setting_of, why_no_scores

    runs = runs_of(words)
    no_scores = why_no_scores(runs, words)
    if by == "quality" and no_scores:
        raise ConfigError(f"by=quality: {no_scores}")
    costs, left_out = [*family_costs(runs)], list[str]()
    record = on_record(runs, results, left_out, scores=not no_scores)
    frame = pd.DataFrame([{**cost, **record[cost["model"]]} for cost in costs])
    frame = frame.astype(dict.fromkeys(NUMBERS, float))
    if by in ("token", "state") and frame["token_s"].isna().all():
        raise ConfigError(
            f"by={by} ranks causal models only; add the argument causal, or choose a language task"
        )
    sources = frame["paper_score_source"] + frame["score_source"]
    # A high accuracy is good, all other scores and costs are good if they are low.
    higher_is_better = by == "quality" and sources.str.startswith("accuracy").any()
    keys = {key: frame[key] * (-1 if higher_is_better else 1) for key in KEYS[by]}
    too_large = frame["fits"].map(lambda fits: fits is False)
    # Times of another kind of device or direction come last.
    keys = {"other_device": ~frame["time_ratio_alike"], **keys} if by == "time" else keys
    order = pd.DataFrame({"excluded": ~frame["serves"], "too_large": too_large, **keys})
    frame = frame.loc[order.sort_values([*order], kind="stable").index].reset_index(drop=True)
    frame.attrs["setting"] = setting_of(runs, frame["room_bytes"].max(), words)
    frame.attrs |= {"device": str(runs[0].hardware.device), "no_scores": no_scores}
    return frame, left_out
