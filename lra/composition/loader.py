"""Hydra's composition, with what a protocol or a preset has for one choice alone in its place.

What wins over what, the weaker first:

1. the files of the groups, in the order of conf/config.yaml;
2. the protocol: its settings for all, then `for_task`, `for_model`, `for_runner`, then those that
   stand in one another (`lra.composition.own_options`);
3. the experiment, likewise;
4. the scale, likewise;
5. `size=` and `optim=` on the command line, which stand for the words in their files;
6. the other words of the command line, first those about these tables.

A preset may choose the protocol that it is made for. One that is named by hand takes its place.

Whatever asks Hydra for a configuration asks here: a run, a sweep, another launcher, `--cfg` and
`--info`. So what is printed is what runs.
"""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial, reduce
from typing import Any, cast

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.default_element import ConfigDefault, GroupDefault, ResultDefault
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.plugins.config_source import ConfigResult
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from lra.composition import warm_up
from lra.composition.own_options import TABLES, Tree, merged, own_options, without
from runners.records import Memo

BUNDLES = ("size", "optim")
"""Groups whose files are nothing but values: named by hand, they win over presets."""


class Loader(ConfigLoaderImpl):
    """Hydra's loader, which also applies what presets and protocols set for one choice."""

    def __init__(self, config_search_path: ConfigSearchPath) -> None:
        super().__init__(config_search_path)
        self.notes: dict[str, None] = {}
        """What somebody at a keyboard should hear of the configurations composed so far."""
        self.settles = True
        self._words: list[Override] = []
        self._refined: dict[tuple[Any, ...], ConfigResult] = {}
        self._sweeping = False
        self._names: dict[str, list[str]] = {}

    def load_configuration(
        self,
        config_name: str | None,
        overrides: list[str],
        run_mode: RunMode,
        from_shell: bool = True,
        validate_sweep_overrides: bool = True,
    ) -> DictConfig:
        """Return the composed configuration.

        That of a sweep as a whole is for Hydra's own part and lists the words. What they change in
        the files that are chosen, and what these have for one choice alone, each run has.
        """
        overrides = self._in_place(overrides)
        self._words = OverridesParser.create().parse_overrides(overrides)
        self._sweeping = run_mode is RunMode.MULTIRUN
        words = overrides
        if self._sweeping:
            words = [str(word.input_line) for word in self._words if not _in_a_file(word)]
        config = super().load_configuration(
            config_name, words, run_mode, from_shell, validate_sweep_overrides
        )
        if self._sweeping:
            config.hydra.overrides.task = [
                word.input_line for word in self._words if not word.is_hydra_override()
            ]
            return config
        with open_dict(config):
            for table in TABLES:
                if table in config or any(_about(table, word) for word in self._words):
                    config[table] = {}
        if self.settles:
            self._settle(config, overrides)
        return config

    @contextmanager
    def unsettled(self) -> Iterator[None]:
        """Have warm-ups stay as the files give them: other words are still to come."""
        self.settles = False
        try:
            yield
        finally:
            self.settles = True

    def names_of(self, group: str) -> list[str]:
        """Return the names of a group, those of one's own files among them."""
        if group not in self._names:
            self._names[group] = self.get_group_options(group)
        return self._names[group]

    def compute_defaults_list(
        self, config_name: str | None, overrides: list[str], run_mode: RunMode
    ) -> Any:
        """Return the files in the order in which they are merged."""
        overrides = self._in_place(overrides)
        files = super().compute_defaults_list(config_name, overrides, run_mode)
        self._words = OverridesParser.create().parse_overrides(overrides)
        files.defaults = self._ordered(files.defaults)
        return files

    def _in_place(self, overrides: list[str]) -> list[str]:
        """Return the words, of which `+protocol=` replaces the protocol that a preset chooses."""
        if not any(word.startswith("+protocol=") for word in overrides):
            return overrides
        presets = [
            word.value()
            for word in OverridesParser.create().parse_overrides(overrides)
            if word.key_or_group == "experiment"
        ]
        if not any(self._chooses_protocol(str(name)) for name in presets):
            return overrides
        return [word[1:] if word.startswith("+protocol=") else word for word in overrides]

    def _chooses_protocol(self, preset: str) -> bool:
        """Return whether a preset, or one that it builds on, chooses a protocol."""
        loaded = self.repository.load_config(f"experiment/{preset}")
        for default in (loaded.defaults_list or ()) if loaded is not None else ():
            if isinstance(default, GroupDefault) and default.group == "/protocol":
                return True
            if isinstance(default, ConfigDefault) and default.path != "_self_":
                return self._chooses_protocol(str(default.path))
        return False

    def _ordered(self, defaults: Sequence[ResultDefault]) -> list[ResultDefault]:
        """Put protocols before experiments, the scale and bundles named by hand behind all."""
        named = {word.key_or_group for word in self._words if not isinstance(word.value(), dict)}
        behind = {"scale", *named.intersection(BUNDLES)}
        order = [file for file in defaults if group_of(file) not in behind]
        late = [file for file in defaults if file not in order]
        protocols = [file for file in order if group_of(file) == "protocol"]
        presets = [index for index, file in enumerate(order) if group_of(file) == "experiment"]
        if presets and protocols:
            before = [file for file in order[: presets[0]] if file not in protocols]
            after = [file for file in order[presets[0] :] if file not in protocols]
            order = [*before, *protocols, *after]
        return [*order, *late]

    def _compose_config_from_defaults_list(self, defaults: Any, repo: Any) -> DictConfig:
        order = self._ordered(defaults)
        if self._sweeping:
            return super()._compose_config_from_defaults_list(order, repo)
        words = [word for word in self._words if any(_about(table, word) for table in TABLES)]
        gone = [word.key_or_group.split(".") for word in words if word.is_delete()]
        layers = self._layers(order, repo)
        chosen = chosen_names([layer for _, layer in layers.values()])
        refined = {}
        for index, (loaded, layer) in layers.items():
            left = reduce(without, gone, layer)
            options = own_options(left, chosen, self.names_of, source_of(order[index]))
            if options:
                cast(DictConfig, loaded.config).merge_with(options)
            refined[_position(order[index])] = loaded
        self._refined = refined
        try:
            config = super()._compose_config_from_defaults_list(order, repo)
        finally:
            self._refined = {}
        if words:
            trial = copy.deepcopy(config)
            OmegaConf.set_struct(trial, True)
            self._apply_overrides_to_config(words, trial)  # refused as Hydra refuses words
            config.merge_with(own_options(_layer(words), chosen, self.names_of, ""))
        return config

    def _layers(
        self, order: Sequence[ResultDefault], repo: Any
    ) -> dict[int, tuple[ConfigResult, Tree]]:
        """Return our files by their places in the order, and what they set; not Hydra's own."""
        by_place = {}
        for index, default in enumerate(order):
            if group_of(default) != "hydra":
                loaded = super()._load_single_config(default, repo)
                if OmegaConf.is_dict(loaded.config):
                    by_place[index] = (loaded, _container(loaded.config))
        return by_place

    def _load_single_config(self, default: ResultDefault, repo: Any) -> ConfigResult:
        refined = self._refined.pop(_position(default), None)
        return super()._load_single_config(default, repo) if refined is None else refined

    def _settle(self, config: DictConfig, words: Sequence[str]) -> None:
        """Cut warm-ups that no word names: see `lra.composition.warm_up`."""
        try:
            parts = {
                path: _container(OmegaConf.select(config, path), resolve=True)
                for path in warm_up.PATHS
            }
            protocol = OmegaConf.select(config, "protocol")
        except OmegaConfBaseException:  # which resolving the whole will name
            return
        for path, warmup in self.cuts(parts, words, protocol).items():
            OmegaConf.update(config, f"{path}.warmup_steps", warmup, force_add=True)

    def cuts(self, parts: Tree, words: Sequence[str], protocol: Any) -> dict[str, int]:
        """Return the warm-ups to cut by their places, and note them."""
        by_path = {}
        above = parts["optim"] if isinstance(parts["optim"], dict) else {}
        for path, optim in parts.items():
            cut = warm_up.clipped(optim, above, words, path)
            if cut is not None:
                by_path[path] = cut
                before = {**above, **optim}["warmup_steps"]
                self.notes[warm_up.sentence(path, before, cut, protocol)] = None
                if path == "optim":
                    above = {**above, "warmup_steps": cut}
        return by_path

    def settled(self, tree: Tree, words: Sequence[str], memo: Memo) -> Tree:
        """Return a plain configuration with its warm-ups cut; equal cuts of a part are one."""
        runner = tree.get("runner")
        start = runner.get("pretraining") if isinstance(runner, dict) else None
        parts = {
            "optim": tree.get("optim"),
            "runner.pretraining.optim": start.get("optim") if isinstance(start, dict) else None,
        }
        for path, warmup in self.cuts(parts, words, tree.get("protocol")).items():
            head, *rest = path.split(".")
            layer: Any = {"warmup_steps": warmup}
            for part in reversed(rest):
                layer = {part: layer}
            part = tree[head]
            tree = {**tree, head: memo.of((path, warmup), (part,), partial(merged, part, layer))}
        return tree


def group_of(default: ResultDefault) -> str:
    """Return the group of a file: protocol of protocol/nystrom and of protocol/mine/a."""
    return str(default.config_path).partition("/")[0]


def source_of(default: ResultDefault) -> str:
    """Return a file as one would choose it on the command line."""
    group, _, name = str(default.config_path).partition("/")
    if not name:
        return f"{group}.yaml"
    return f"+{group}={name}" if group in ("protocol", "experiment") else f"{group}={name}"


def chosen_names(layers: Sequence[Tree]) -> dict[str, str]:
    """Return the names that entries of tables are looked up by: the last that a layer gives."""
    by_group = {}
    for layer in layers:
        for group in dict.fromkeys(TABLES.values()):
            node = layer.get(group)
            if isinstance(node, dict) and isinstance(node.get("name"), str):
                by_group[group] = node["name"]
    return by_group


def _position(default: ResultDefault) -> tuple[Any, ...]:
    return default.config_path, default.package, default.parent


def _in_a_file(word: Override) -> bool:
    """Return whether a word changes a value that a chosen file gives, of ours."""
    return "." in word.key_or_group and not word.is_hydra_override()


def _about(table: str, word: Override) -> bool:
    return f"{word.key_or_group}.".startswith(f"{table}.")


def _layer(words: Sequence[Override]) -> Tree:
    """Return what words set, as a file would."""
    layer = OmegaConf.create({})
    for word in words:
        if not word.is_delete():
            OmegaConf.update(layer, word.key_or_group, word.value(), merge=True, force_add=True)
    return cast(Tree, _container(layer))


def _container(node: Any, *, resolve: bool = False) -> Any:
    if not OmegaConf.is_config(node):
        return node
    return OmegaConf.to_container(node, resolve=resolve)
