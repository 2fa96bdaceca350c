"""Sets of models by what their files say of them, for a word such as `model=all`.

A preset that names a set takes up every family to come, but none of an installed package, which
would change what the preset is. The sets: `all`; `causal`, those that can
be built so that a position sees only earlier ones; `approximations`, those whose files have a
budget, `about.approximation`; and every kind, as in `windows_and_blocks`.
"""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from lra.composition.catalogue import choices, names
from lra.composition.extensions import package_of
from lra.composition.yaml_text import load

ALL, CAUSAL, APPROXIMATIONS = "all", "causal", "approximations"


def kinds(config_dirs: Sequence[Path] = ()) -> dict[str, list[str]]:
    """Return the families of every kind, as the YAML files name it, in the order of the kinds."""
    by_kind: dict[str, list[str]] = {}
    for file in choices("model", config_dirs):
        kind = (load(file).get("about") or {}).get("kind")
        if kind:
            by_kind.setdefault(str(kind), []).append(file.stem)
    return dict(sorted(by_kind.items()))


def sets(config_dirs: Sequence[Path] = ()) -> dict[str, list[str]]:
    """Return the models of every set: families of one kind stand together."""
    return {name: [*models] for name, models in _sets(tuple(config_dirs)).items()}


@lru_cache
def _sets(config_dirs: tuple[Path, ...]) -> dict[str, list[str]]:
    by_kind = kinds(config_dirs)
    files = [file for file in choices("model", config_dirs) if not package_of(file)]
    about = {file.stem: load(file).get("about") or {} for file in files}
    by_kind = {kind: [name for name in models if name in about] for kind, models in by_kind.items()}
    ordered = [name for models in by_kind.values() for name in models]
    ordered += [name for name in about if name not in ordered]
    return {
        ALL: ordered,
        CAUSAL: [name for name in ordered if about[name].get("causal")],
        APPROXIMATIONS: [name for name in ordered if about[name].get("approximation")],
        **{"_".join(kind.lower().split()): models for kind, models in by_kind.items()},
    }


def expand_sets(word: str, config_dirs: Sequence[Path] = ()) -> str:
    """Return a word of the command line with the models of each set: of `model=all`, all.

    A model that is named twice stands where it is named first; a file of a set's name is the model.
    """
    key, _, value = word.partition("=")
    if key != "model":
        return word
    parts = [part.strip() for part in value.split(",")]
    if {*parts} <= {*names("model", config_dirs)}:  # no file has to be opened
        return word
    by_set = sets(config_dirs)
    if not {*parts} & ({*by_set} - {*by_set[ALL]}):
        return word
    expanded = dict.fromkeys(
        name
        for part in parts
        for name in (by_set[part] if part in by_set and part not in by_set[ALL] else [part])
    )
    return f"{key}={','.join(expanded)}"
