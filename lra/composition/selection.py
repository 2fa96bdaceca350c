"""Replace the name of a set of models, as in `model=all`, by the models in it.

The sets are: `all`; `causal`, models that can be built so that a token reads earlier tokens only;
`approximations`, models with an entry `about.approximation` in their file; and one set for each
kind, such as `windows_and_blocks`. A preset that names a set also contains families that lra will
get later. A set never contains models of an installed package, because installing a package must
not change a preset.
"""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from lra.composition.catalogue import choices, names
from lra.composition.extensions import package_of
from lra.composition.yaml_text import load

ALL, CAUSAL, APPROXIMATIONS = "all", "causal", "approximations"


def kinds(config_dirs: Sequence[Path] = ()) -> dict[str, list[str]]:
    """Return the names of the families of each kind (`about.kind` in their YAML files)."""
    by_kind: dict[str, list[str]] = {}
    for file in choices("model", config_dirs):
        kind = (load(file).get("about") or {}).get("kind")
        if kind:
            by_kind.setdefault(str(kind), []).append(file.stem)
    return dict(sorted(by_kind.items()))


def sets(config_dirs: Sequence[Path] = ()) -> dict[str, list[str]]:
    """Return the names of the models in each set; families of one kind follow one another."""
    return {name: [*models] for name, models in _collect_sets(tuple(config_dirs)).items()}


@lru_cache
def _collect_sets(config_dirs: tuple[Path, ...]) -> dict[str, list[str]]:
    """Return what `sets` returns; the caller must not change it, because it is cached."""
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
    """Return an argument with the names of sets replaced: `model=all` becomes `model=s4,linear,…`.

    A model occurs once, at its first place. If a model has the same name as a set, the name means
    the model.
    """
    key, _, value = word.partition("=")
    if key != "model":
        return word
    parts = [part.strip() for part in value.split(",")]
    if {*parts} <= {*names("model", config_dirs)}:  # quick: this opens no file
        return word
    by_set = sets(config_dirs)
    if not {*parts} & ({*by_set} - {*by_set[ALL]}):  # no set is named: Hydra reports unknown names
        return word
    expanded = dict.fromkeys(
        name
        for part in parts
        for name in (by_set[part] if part in by_set and part not in by_set[ALL] else [part])
    )
    return f"{key}={','.join(expanded)}"
