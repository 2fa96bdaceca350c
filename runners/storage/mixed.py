"""Whether rows of one kind come from different versions of the code."""

import warnings
from collections.abc import Sequence
from operator import itemgetter

from runners.storage.blocks import Block
from runners.storage.formats import some


class MixedSources(UserWarning):
    """Rows of one kind in one table come from different versions of the code."""


Kind = tuple[tuple[str, ...], tuple[str, ...], str]


def kinds_of(blocks: Sequence[Block]) -> set[Kind]:
    """Return what was measured, and by which code."""
    return {
        # Other families, in some layers or as what the weights come from, have other sources; so
        # has a mode that starts from trained weights.
        (_measured(shared), others, shared["fingerprint"])
        for shared, rows in blocks
        for others in {
            (labels.get("layers", ""), labels.get("start", "")) for labels in map(_labels, rows)
        }
    }


_measured = itemgetter("runner", "model", "task", "mode")
_labels = itemgetter("labels")


def warn_if_mixed(kinds: set[Kind]) -> None:
    """Warn the caller's caller where one kind of measurement was made by several versions."""
    seen: dict[tuple[tuple[str, ...], tuple[str, ...]], set[str]] = {}
    for kind, others, fingerprint in kinds:
        seen.setdefault((kind, others), set()).add(fingerprint)
    mixed = sorted(
        {
            f"{runner}/{' '.join(filter(None, (model, *others)))}/{task}"
            for ((runner, model, task, _), others), prints in seen.items()
            if len(prints) > 1
        }
    )
    if mixed:
        warnings.warn(
            f"rows made by different versions of the code stand in one table: {some(mixed)} "
            "(runner/model/task); run the sweep again for equal ground",
            MixedSources,
            stacklevel=3,
        )
