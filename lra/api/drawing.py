"""Draw rows as the figures of reports."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from lra.api.plain_errors import plainly
from lra.api.prepared_rows import none_of, of_models, only_mode, only_setting, refuse, styled_rows
from lra.errors import ConfigError, unknown

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from lra.reports.figures.drawing import Look

COSTS = ("time", "memory")
LOSS = "loss"
CLASSES = {
    "loss_by_position": "position",
    "loss_by_document_position": "document_position",
    "loss_by_frequency": "frequency",
}
"""Quantities that are losses of groups of tokens, and the property that defines the groups."""
SCORES = "scores"
Quantity = Literal[
    "time", "memory", "scores", "loss", "loss_by_position", "loss_by_document_position",
    "loss_by_frequency",
]  # fmt: skip
QUANTITIES = get_args(Quantity)


@plainly
def figure(
    rows: "pd.DataFrame",
    quantity: Quantity = "time",
    *,
    models: Sequence[str] | None = None,
    mode: str | None = None,
    split: str | None = None,
    style: "str | Path | None" = None,
) -> "Figure":
    """Draw one figure of rows, for example `lra.figure(lra.rows("example"), "time", mode="step")`.

    Args:
        rows: As `lra.rows` returns them.
        quantity: What the figure shows. `time` or `memory`: of one sequence against its length, on
            doubly logarithmic axes, with fitted exponents. `scores`: final scores with their
            intervals. `loss`: training loss against the optimiser step. `loss_by_position`,
            `loss_by_document_position`, `loss_by_frequency`: the evaluated loss of language models
            by position or frequency of the token.
        models: Names or families to draw; a model has the same colour as in a figure of all models.
            None: all.
        mode: For `time` and `memory`: `step`, a training step, or `forward`, a forward pass;
            optional if the rows have only one mode.
        split: The split of the data, for `scores` and `loss_by_...`; None: `test`.
        style: Width, letters, colours, names and choice of models: a name such as `paper_column`,
            or a file, as for `lra report --style`; None: the default of reports.

    Returns:
        A matplotlib figure, which a notebook shows; `figure.savefig("time.pdf")` writes it.

    Raises:
        ValueError: The rows have no such numbers, or too many for one figure.

    Examples:
        >>> import lra
        >>> rows = lra.rows("example")
        >>> figure = lra.figure(rows, "time", mode="step", models=["linear", "sdpa"])
        >>> figure.axes[0].get_xlabel()
        'sequence length (tokens)'
    """
    from lra.reports.figures.drawing import looks

    if quantity not in QUANTITIES:
        raise ConfigError(unknown("quantity", str(quantity), QUANTITIES))
    # Time and memory have a mode and no split; all others, except the training loss, have a split.
    refuse(quantity, **({"mode": mode} if quantity not in COSTS else {"split": split}))
    if quantity == LOSS:
        refuse(quantity, split=split)
    with styled_rows(rows, style) as prepared:
        all_models = prepared["name"][prepared["baseline"] == ""].unique()
        model_looks = looks([str(name) for name in all_models])
        frame = of_models(prepared, models)
        if quantity in COSTS:
            return _draw_cost(frame, quantity, mode, model_looks)
        if quantity == SCORES:
            return _draw_scores(frame, split or "test", model_looks)
        return _draw_losses(frame, quantity, split or "test", model_looks)


def _draw_cost(
    frame: "pd.DataFrame", quantity: str, mode: str | None, looks: "dict[str, Look]"
) -> "Figure":
    """Return a figure of time or memory against length; `looks` has the colour of each model."""
    from lra.composition.selection import kinds
    from lra.reports.figures.panels import line_figures
    from lra.reports.figures.scaling import scaling_data
    from lra.reports.rows import names_by_group

    setting, points = only_setting(frame)
    data = scaling_data(points, only_mode(points, mode), quantity)
    if data["value"].isna().all():
        reasons = "; ".join(sorted({str(reason) for reason in data["reason"]}))
        raise ConfigError(
            f"{quantity}: every measurement in the rows failed, for these reasons: {reasons}"
        )
    groups = names_by_group(frame, kinds())
    figures = [drawn for _, drawn in line_figures(data, looks, groups, subtitle=setting)]
    return _require_one(figures)


def _draw_scores(frame: "pd.DataFrame", split: str, looks: "dict[str, Look]") -> "Figure":
    """Return a figure of the final scores on `split`; `looks` has the colour of each model."""
    from lra.reports.sections.score_dots import dots_data, dots_figure

    data = dots_data(frame)
    data = data[data["split"] == split] if len(data) else data
    if data.empty:
        raise none_of(f"scores on the {split} split", frame)
    return dots_figure(data, looks)


def _draw_losses(
    frame: "pd.DataFrame", quantity: str, split: str, looks: "dict[str, Look]"
) -> "Figure":
    """Return a figure of training losses, or of losses on `split` by position or frequency."""
    from lra.reports.sections import losses
    from lra.reports.sections.section import pages

    if quantity == LOSS:
        data, draw = losses.loss_data(frame), losses.loss_figure
    else:
        kind = CLASSES[quantity]
        data, draw = losses.class_data(frame, split, kind), losses.class_figures[kind]
    if data.empty:
        raise none_of(f"numbers for {quantity!r}", frame)
    return _require_one([draw(page, looks) for page in pages(data, draw.panel)])


def _require_one(figures: "Sequence[Figure]") -> "Figure":
    """Return the only element of `figures`; raise ConfigError if there are several."""
    if len(figures) > 1:
        raise ConfigError(
            f"the rows fill {len(figures)} figures, but lra.figure returns one; choose fewer "
            "models, as in models=['sdpa', 'linear'], or rows of fewer tasks"
        )
    (figure,) = figures
    return figure
