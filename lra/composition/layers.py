"""The files that a configuration is merged of, each read once, and merged as Hydra merges them.

Hydra finds out which files a combination needs, and in which order, and merges them: a tenth of a
second, mostly spent on its own configuration. Where a sweep only puts one file of a group in the
place of another, order and places stay, and plain dictionaries are merged here. That holds for
files without a defaults list of their own, of one package, and of plain data; for all else there
is Hydra.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from hydra.core.default_element import ResultDefault
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from lra.composition.loader import Loader, chosen_names, source_of
from lra.composition.own_options import TABLES, Tree, merged, own_options

Choices = Mapping[str, str]


class Layers:
    """Merges the files of combinations that differ in nothing but their choices of files."""

    def __init__(self, loader: Loader, master: DictConfig) -> None:
        """Begin a sweep.

        Args:
            loader: Hydra's.
            master: The configuration of the sweep as a whole, with Hydra's own part.
        """
        self.loader = loader
        self.config_name: str | None = master.hydra.job.config_name
        self.hydra_words = [*master.hydra.overrides.hydra]
        self.searched = bool(master.hydra.searchpath)
        self.orders: dict[tuple[str, ...], list[ResultDefault] | None] = {}
        self.read: dict[tuple[str | None, str | None], Tree | None] = {}
        self.alike: dict[tuple[str, str], bool] = {}

    def merged(self, words: Sequence[str], choices: Choices) -> Tree | None:
        """Return the files' values, without Hydra's own; None where only Hydra can tell.

        Args:
            words: Those that choose files, in order; their values must exist.
            choices: Of these, the groups whose choice differs between combinations.
        """
        key = tuple(w for w in words if w.lstrip("+").partition("=")[0] not in choices)
        if key not in self.orders:
            self.orders[key] = self._order(words, choices)
        order = self.orders[key]
        if order is None:
            return None
        layers = []
        for default in order:
            group = _group_of(default)
            path = f"{group}/{choices[group]}" if group in choices else default.config_path
            if path != default.config_path:
                pair = (str(default.config_path), str(path))
                if pair not in self.alike:
                    self.alike[pair] = self._alike(*pair)
                if not self.alike[pair]:
                    return None
            chosen = replace(default, config_path=path)
            values = self._values(chosen)
            if values is None:
                return None
            layers.append((source_of(chosen), values))
        return self._refined(layers)

    def _refined(self, layers: Sequence[tuple[str, Tree]]) -> Tree:
        """Merge, each with what it has for the chosen model, task and runner alone."""
        chosen = chosen_names([layer for _, layer in layers])
        tree: Tree = {}
        for source, layer in layers:
            options = own_options(layer, chosen, self.loader.names_of, source)
            tree = merged(tree, merged(layer, options))
        return {**tree, **{table: {} for table in TABLES if table in tree}}

    def _order(self, words: Sequence[str], choices: Choices) -> list[ResultDefault] | None:
        """Return what is merged for one combination, in order, without Hydra's own files."""
        if self.searched:
            return None
        files = self.loader.compute_defaults_list(
            self.config_name, [*self.hydra_words, *words], RunMode.RUN
        ).defaults
        ours = [file for file in files if not str(file.config_path).startswith("hydra/")]
        for file in ours:
            loaded = self.loader.repository.load_config(str(file.config_path))
            if loaded is None or "${" in repr(loaded.defaults_list):
                return None
        groups = [_group_of(file) for file in ours]
        return ours if all(groups.count(group) == 1 for group in choices) else None

    def _alike(self, path: str, instead: str) -> bool:
        """Return whether one file can stand in another's place without moving any other."""
        one, other = map(self.loader.repository.load_config, (path, instead))
        if one is None or other is None:
            return False
        alone = all(
            default.is_self() for config in (one, other) for default in config.defaults_list or ()
        )
        return alone and one.header == other.header

    def _values(self, default: ResultDefault) -> Tree | None:
        """Return what a file sets, in its place; None where that is not plain data."""
        key = (default.config_path, default.package)
        if key not in self.read:
            loaded = self.loader._load_single_config(default, self.loader.repository)
            values = cast(Tree, OmegaConf.to_container(loaded.config, resolve=False))
            values.pop("hydra", None)
            self.read[key] = values if is_plain(values) else None
        return self.read[key]


def _group_of(default: ResultDefault) -> str:
    return str(default.config_path).rpartition("/")[0]


def is_plain(value: Any) -> bool:
    """Return whether a value stands for itself: no interpolation, nothing missing."""
    if isinstance(value, dict):
        return all(map(is_plain, value.values()))
    if isinstance(value, list):
        return all(map(is_plain, value))
    return not isinstance(value, str) or ("${" not in value and value != "???")
