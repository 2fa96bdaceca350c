"""Sets of models by what their files say of them, for a word such as `model=all`.

A preset that names a set takes up every family to come. The sets: `all`; `causal`, those that can
be built so that a position sees only earlier ones; `approximations`, those whose files have a
budget, `about.approximation`; and every kind, as in `windows_and_blocks`.
"""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from lra.composition.catalogue import choices, names
from lra.composition.yaml_text import load

ALL, CAUSAL, APPROXIMATIONS = "all", "causal", "approximations"


def kinds(config_dirs: Sequence[Path] = ()) -> dict[str, list[str]]:
    """Return the families of every kind, as the YAML files name it, in the order of the kinds."""
    found: dict[str, list[str]] = {}
    for file in choices("model", config_dirs):
        kind = (load(file).get("about") or {}).get("kind")
        if kind:
            found.setdefault(str(kind), []).append(file.stem)
    return dict(sorted(found.items()))


def sets(config_dirs: Sequence[Path] = ()) -> dict[str, list[str]]:
    """Return the models of every set: families of one kind stand together."""
    return {name: [*models] for name, models in _sets(tuple(config_dirs)).items()}


@lru_cache
def _sets(config_dirs: tuple[Path, ...]) -> dict[str, list[str]]:
    by_kind = kinds(config_dirs)
    about = {file.stem: load(file).get("about") or {} for file in choices("model", config_dirs)}
    ordered = [name for models in by_kind.values() for name in models]
    ordered += [name for name in about if name not in ordered]
    return {
        ALL: ordered,
        CAUSAL: [name for name in ordered if about[name].get("causal")],
        APPROXIMATIONS: [name for name in ordered if about[name].get("approximation")],
        **{"_".join(kind.lower().split()): models for kind, models in by_kind.items()},
    }


def spelt_out(word: str, config_dirs: Sequence[Path] = ()) -> str:
    """Return a word of the command line with sets of models spelt out: `model=all`.

    A model that is named twice stands where it is named first; a file of a set's name is the model.
    """
    key, _, value = word.partition("=")
    if key != "model":
        return word
    parts = [part.strip() for part in value.split(",")]
    if {*parts} <= {*names("model", config_dirs)}:  # no file has to be opened
        return word
    known = sets(config_dirs)
    if not {*parts} & ({*known} - {*known[ALL]}):
        return word
    found = dict.fromkeys(
        name
        for part in parts
        for name in (known[part] if part in known and part not in known[ALL] else [part])
    )
    return f"{key}={','.join(found)}"
