"""Words to a configuration: Hydra says which files there are and in what order; merged here.

What wins over what, the weaker first:

1. the files of the groups, in the order of conf/config.yaml;
2. the protocol: its settings for all, then `for_task`, `for_model`, `for_runner`, then those that
   stand in one another (`lra.composition.own_options`);
3. the experiment, likewise;
4. the scale, likewise;
5. `size=` and `optim=` on the command line, which stand for the words in their files;
6. the other words of the command line, first those about these tables.

A preset may choose the protocol that it is made for. One that is named by hand takes its place.

Hydra takes a tenth of a second for a configuration, mostly spent on its own part, and a sweep has
ten thousand. So its own part is composed once, each order of files is asked for once, a file that
brings nothing along takes another's place in both, and files and words are merged as plain
dictionaries. A process that composes again, as a notebook does, goes on with both. Whatever is no
plain case goes through Hydra's own function for words, and through OmegaConf for references.
Whoever asks Hydra (`--cfg`, `--info`) is answered from here, too: what is printed is what runs.
"""

import copy
import pickle
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial, reduce
from pathlib import Path
from typing import Any, NamedTuple, cast

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.default_element import ConfigDefault, GroupDefault, ResultDefault
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.plugins.config_source import ConfigResult
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from lra.composition import warm_up
from lra.composition.own_options import (
    TABLES,
    Tree,
    by_option,
    matching_options,
    merged,
    without,
)
from lra.composition.plain_values import Unclear, changed, is_plain
from lra.runners.records import Memo

BUNDLES = ("size", "optim")
"""Groups whose files are nothing but values: named by hand, they win over presets."""
_NUMBER = re.compile(r"-?(0|[1-9][0-9]{0,17})")


class Loader(ConfigLoaderImpl):
    """Hydra's loader, with its own part from Hydra and the rest from `compose`."""

    def __init__(self, config_search_path: ConfigSearchPath) -> None:
        super().__init__(config_search_path)
        self._places: dict[tuple[str | None, tuple[str, ...]], _Files] = {}
        self.begin_command()

    def begin_command(self) -> None:
        """Forget what one command composed; what its files are stays."""
        self.notes: dict[str, None] = {}
        """What somebody at a keyboard should hear of the configurations composed so far."""
        self.memo = Memo()
        """Equal parts of configurations are one object: later work is done once for each."""
        self._words: dict[str, Override] = {}
        self._numbers: dict[str, Override] = {}
        self._begin("config", ())

    def _begin(self, config_name: str | None, of_hydra: tuple[str, ...]) -> None:
        """Turn to what depends on the words for Hydra itself, which may name more folders."""
        self._config_name, self.words_of_hydra = config_name, of_hydra
        self._files_there = self._places.setdefault((config_name, of_hydra), _Files())
        self._layers: dict[tuple[str | None, str | None], Tree] = {}
        self._bases: dict[tuple[str, ...], Tree] = {}

    @cached_property
    def _parser(self) -> OverridesParser:
        return OverridesParser.create(self)

    def load_configuration(
        self,
        config_name: str | None,
        overrides: list[str],
        run_mode: RunMode,
        from_shell: bool = True,
        validate_sweep_overrides: bool = True,
    ) -> DictConfig:
        """Return Hydra's own part with the configuration of a run, or of a sweep with all words."""
        words = [self.parse(word) for word in self._in_place(overrides)]
        of_hydra = tuple(str(w.input_line) for w in words if w.is_hydra_override())
        ours = [word for word in words if not word.is_hydra_override()]
        if (config_name, of_hydra) != (self._config_name, self.words_of_hydra):
            self._begin(config_name, of_hydra)
        how = (run_mode, from_shell, validate_sweep_overrides)
        config = self._own_part([word for word in ours if self._chooses(word)], how)
        config.hydra.overrides.task = [str(word.input_line) for word in ours]
        names = config.hydra.job.config.override_dirname
        lines = [str(w.input_line) for w in ours if w.key_or_group not in names.exclude_keys]
        joined = names.item_sep.join(sorted(lines)).replace("=", names.kv_sep)
        config.hydra.job.override_dirname = joined
        if run_mode is RunMode.RUN:
            tree = self.compose([str(word.input_line) for word in ours])
            config = OmegaConf.masked_copy(config, "hydra")
            config.hydra.mode = config.hydra.mode or run_mode
            with open_dict(config):
                config.merge_with(tree)
        return config

    def _own_part(self, choices: Sequence[Override], how: tuple[RunMode, bool, bool]) -> DictConfig:
        """Return Hydra's own part, which choices that only name a file leave as it is."""
        if how[0] is RunMode.MULTIRUN and not how[2]:  # Hydra looks at no sweep
            choices = [word for word in choices if not word.is_sweep_override()]
        known, chosen = self._files_there.own_parts, dict[str, _Shape]()
        for key, lines, chosen in self._questions(choices):
            if (key, how) not in known:
                # Of files, Hydra merges its own part alone: see `_load_single_config`.
                config = super().load_configuration(
                    self._config_name, [*self.words_of_hydra, *lines], *how
                )
                self._files_there.lists[key] = self._listed
                known[key, how] = pickle.dumps(config)
            if self._takes(key, chosen):
                break
        config = cast(DictConfig, pickle.loads(known[key, how]))  # noqa: S301  # our own
        config.hydra.runtime.cwd = str(Path.cwd())
        config.hydra.runtime.choices.update({group: file.name for group, file in chosen.items()})
        return config

    def compose(self, words: Sequence[str]) -> Tree:
        """Return the configuration of one run, references unresolved. Its parts may be shared.

        Args:
            words: Those of the run without Hydra's own; no sweep among them.
        """
        words = self._in_place(words)
        early, values = list[Override](), list[Override]()
        for word in map(self.parse, words):
            is_value = not self._chooses(word) and not _of_a_table(word)
            (values if is_value else early).append(word)
        base = tuple(str(word.input_line) for word in early)
        if base not in self._bases:
            self._bases[base] = self._of_files(early)
        return self._settled(reduce(self._with, values, self._bases[base]), words)

    def resolved(self, words: Sequence[str], number: int) -> Tree:
        """Return the configuration of one run, the number of which in its sweep is given."""
        tree = self.compose(words)
        if self.is_plain(tree):
            return tree
        if "${hydra:" in repr(tree):
            config = self.load_configuration(
                self._config_name, [*self.words_of_hydra, *words], RunMode.RUN
            )
            with open_dict(config):
                config.hydra.job.id, config.hydra.job.num = str(number), number
            HydraConfig.instance().set_config(config)
        return cast(Tree, _container(OmegaConf.create(tree), resolve=True))

    def parse(self, word: str) -> Override:
        """Return a word as Hydra reads it; of numbers, one a key is read in full (0.5 ms)."""
        if word not in self._words:
            key, _, value = word.partition("=")
            if _NUMBER.fullmatch(value) is None:
                (self._words[word],) = self._parser.parse_overrides([word])
            else:
                if key not in self._numbers:
                    (self._numbers[key],) = self._parser.parse_overrides([f"{key}=0"])
                number = self._numbers[key]
                self._words[word] = replace(number, _value=int(value), input_line=word)
        return self._words[word]

    def names_of(self, group: str) -> list[str]:
        """Return the names of a group, those of one's own files among them."""
        if group not in self._files_there.names:
            self._files_there.names[group] = self.get_group_options(
                group, config_name=self._config_name, overrides=[*self.words_of_hydra]
            )
        return self._files_there.names[group]

    def compute_defaults_list(
        self, config_name: str | None, overrides: list[str], run_mode: RunMode
    ) -> Any:
        """Return the files in the order in which they are merged."""
        overrides = [*self._in_place(overrides)]
        files = super().compute_defaults_list(config_name, overrides, run_mode)
        files.defaults = self._ordered(files.defaults, [self.parse(word) for word in overrides])
        return files

    def _chooses(self, word: Override) -> bool:
        """Return whether a word chooses a file."""
        is_group = bool(self.names_of(word.key_or_group)) or word.package is not None
        return is_group and not isinstance(word.value(), dict)

    def _in_place(self, words: Sequence[str]) -> Sequence[str]:
        """Return the words, of which `+protocol=` replaces the protocol that a preset chooses."""
        if not any(word.startswith("+protocol=") for word in words):
            return words
        presets = [word for word in map(self.parse, words) if word.key_or_group == "experiment"]
        if not any(self._chooses_protocol(str(preset.value())) for preset in presets):
            return words
        return [word[1:] if word.startswith("+protocol=") else word for word in words]

    def _chooses_protocol(self, preset: str) -> bool:
        """Return whether a preset, or one that it builds on, chooses a protocol."""
        loaded = self.repository.load_config(f"experiment/{preset}")
        for default in (loaded.defaults_list or ()) if loaded is not None else ():
            if isinstance(default, GroupDefault) and default.group == "/protocol":
                return True
            if isinstance(default, ConfigDefault) and default.path != "_self_":
                return self._chooses_protocol(str(default.path))
        return False

    def _of_files(self, words: Sequence[Override]) -> Tree:
        """Return what files and words about tables set."""
        of_tables = [word for word in words if _of_a_table(word)]
        gone = [word.key_or_group.split(".") for word in of_tables if word.is_delete()]
        files = self._files([word for word in words if word not in of_tables])
        layers = [(source_of(file), reduce(without, gone, self._layer(file))) for file in files]
        chosen = chosen_names([layer for _, layer in layers])
        tree = self._merged([merged(layer, self._refined(layer, chosen, s)) for s, layer in layers])
        if of_tables:
            before = self._merged([self._layer(file) for file in files])
            self._by_hydra(before, of_tables)  # refused as Hydra refuses words
            added = OmegaConf.create({})
            for word in of_tables:
                if not word.is_delete():
                    key, value = word.key_or_group, word.value()
                    OmegaConf.update(added, key, value, merge=True, force_add=True)
            options = cast(Tree, OmegaConf.to_container(added, resolve=False))
            tree = self._merged([tree, self._refined(options, chosen, "")])
        tables = {word.key_or_group.partition(".")[0] for word in of_tables} | tree.keys()
        return {**tree, **{table: {} for table in TABLES if table in tables}}

    def _refined(self, layer: Tree, chosen: Mapping[str, str], source: str) -> Tree:
        return matching_options(layer, chosen, self.names_of, source)

    def _files(self, words: Sequence[Override]) -> list[ResultDefault]:
        """Return our files in order, which stays where one only takes the place of another."""
        lists, chosen = self._files_there.lists, dict[str, _Shape]()
        for key, lines, chosen in self._questions(words):
            if key not in lists:
                asked = [*self.words_of_hydra, *lines]
                everything = super().compute_defaults_list(self._config_name, asked, RunMode.RUN)
                lists[key] = everything.defaults
            if self._takes(key, chosen):
                break
        files = [file for file in self._ordered(lists[key], words) if group_of(file) != "hydra"]
        return [
            replace(file, config_path=f"{group}/{chosen[group].name}") if group in chosen else file
            for file, group in zip(files, map(_folder, files), strict=True)
        ]

    def _questions(
        self, words: Sequence[Override]
    ) -> Iterator[tuple[tuple[Any, ...], list[str], dict[str, "_Shape"]]]:
        """Yield what to ask Hydra of choices: a key of its answer, words, and what to put into it.

        First for as little as an answer may depend on, then for all as it stands.
        """
        lines = [str(word.input_line) for word in words]
        shapes = [self._shape(word) for word in words]
        heard = [number for number, shape in enumerate(shapes) if not shape.in_place]
        groups = [word.key_or_group for word in words]
        key = tuple((groups[number], shapes[number].rest) for number in heard)
        named = {group: shape for group, shape in zip(groups, shapes, strict=True) if shape.name}
        yield key, [lines[number] for number in heard], named
        yield tuple(lines), lines, {}

    def _takes(self, key: tuple[Any, ...], chosen: Mapping[str, "_Shape"]) -> bool:
        """Return whether each file that is chosen can take the place of one of a list."""
        if key not in self._files_there.packages:
            loaded = [
                (_folder(file), self.repository.load_config(str(file.config_path)))
                for file in self._files_there.lists[key]
            ]
            folders = [folder for folder, _ in loaded]
            named = any("${" in repr(file.defaults_list) for _, file in loaded if file)
            self._files_there.packages[key] = {
                folder: file.header["package"]
                for folder, file in loaded
                if file and not named and folders.count(folder) == 1 and _is_alone(file)
            }
        packages = self._files_there.packages[key].items()
        return {(group, shape.rest[-1]) for group, shape in chosen.items()} <= packages

    def _shape(self, word: Override) -> "_Shape":
        """Return what of a choice the order of files depends on, and what only names a file."""
        line = str(word.input_line)
        if line not in self._files_there.shapes:
            group, simple = word.key_or_group, not word.is_sweep_override() and not word.is_delete()
            file = self.repository.load_config(f"{group}/{word.value()}") if simple else None
            if file and _is_alone(file) and word.package is None and "hydra" not in file.config:
                package = file.header["package"]
                first = self._first(group) if word.type is OverrideType.CHANGE else None
                in_place = first is not None and first.header["package"] == package
                shape = _Shape((word.type, package), str(word.value()), in_place)
            else:
                shape = _Shape((line,), None, False)
            self._files_there.shapes[line] = shape
        return self._files_there.shapes[line]

    def _first(self, group: str) -> ConfigResult | None:
        """Return the file of a group that stands where no word chooses one."""
        root = self.repository.load_config(str(self._config_name))
        for default in (root.defaults_list or ()) if root is not None else ():
            if isinstance(default, GroupDefault) and default.group == group:
                return self.repository.load_config(f"{group}/{default.value}")
        return None

    def _ordered(
        self, defaults: Sequence[ResultDefault], words: Sequence[Override]
    ) -> list[ResultDefault]:
        """Put protocols before experiments, the scale and bundles named by hand behind all."""
        named = {word.key_or_group for word in words if not isinstance(word.value(), dict)}
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
        self._listed, self._repository = defaults, repo
        return super()._compose_config_from_defaults_list(defaults, repo)

    def _load_single_config(self, default: ResultDefault, repo: Any) -> ConfigResult:
        """Return what a file sets of Hydra's own part; the rest is kept, in place, as a layer."""
        loaded = super()._load_single_config(default, repo)
        if group_of(default) == "hydra":
            return loaded
        loaded, config = copy.copy(loaded), cast(DictConfig, loaded.config)
        loaded.config = OmegaConf.masked_copy(config, "hydra")
        values = cast(Tree, _container(config))
        values.pop("hydra", None)
        self._files_there.layers[default.config_path, default.package] = pickle.dumps(values)
        return loaded

    def _layer(self, file: ResultDefault) -> Tree:
        """Return what a file sets, in its place, without Hydra's own part."""
        place = (file.config_path, file.package)
        if place not in self._layers:
            if place not in self._files_there.layers:
                self._load_single_config(file, self._repository)
            # Of each command its own: who asked may change what it got.
            self._layers[place] = pickle.loads(self._files_there.layers[place])  # noqa: S301
        return self._layers[place]

    def _merged(self, layers: Sequence[Tree]) -> Tree:
        """Return layers merged as OmegaConf does it, each over those before it."""
        if all(map(self.is_plain, layers)):
            return reduce(merged, layers, {})
        return cast(Tree, _container(OmegaConf.merge(*layers)))

    def is_plain(self, tree: Tree) -> bool:
        """Return whether values stand for themselves: no reference, nothing missing."""
        return all(
            self.memo.of("plain", (part,), partial(is_plain, part))
            if isinstance(part, dict | list)
            else is_plain(part)
            for part in tree.values()
        )

    def _with(self, tree: Tree, word: Override) -> Tree:
        """Return a configuration with what one word sets in its place, as Hydra does it.

        Equal values in one place give one object.
        """
        head, *rest = word.key_or_group.split(".")
        value = word.value()
        try:
            if not rest or head not in tree:
                return changed(tree, [head, *rest], value, word.type)
            what = (word.type, word.key_or_group, type(value), repr(value))
            put = partial(changed, tree[head], rest, value, word.type)
            return {**tree, head: self.memo.of(what, (tree[head],), put)}
        except Unclear:
            if word.is_delete() or head not in tree or not self.is_plain({head: tree[head]}):
                return self._by_hydra(tree, [word])
            # Of this part alone: Hydra takes its time for every other.
            return {**tree, **self._by_hydra({head: tree[head]}, [word])}

    def _by_hydra(self, tree: Tree, words: Sequence[Override]) -> Tree:
        """Return a configuration with words applied by Hydra, which refuses what it refuses."""
        config = OmegaConf.create(tree)
        OmegaConf.set_struct(config, True)
        self._apply_overrides_to_config([*words], config)
        return cast(Tree, _container(config))

    def _settled(self, tree: Tree, words: Sequence[str]) -> Tree:
        """Return a configuration with its sentences chosen, and with its warm-ups cut.

        See `lra.composition.own_options` and `lra.composition.warm_up`.
        """
        if isinstance(sentences := tree.get("deviations"), dict):
            chosen = {name: by_option(tree, entry) for name, entry in sentences.items()}
            tree = {**tree, "deviations": chosen}
        runner = tree.get("runner")
        start = runner.get("pretraining") if isinstance(runner, dict) else None
        parts: Tree = {
            "optim": tree.get("optim"),
            "runner.pretraining.optim": start.get("optim") if isinstance(start, dict) else None,
        }
        if not self.is_plain(parts):
            config = OmegaConf.create(tree)
            try:
                parts = {
                    path: _container(OmegaConf.select(config, path), resolve=True) for path in parts
                }
            except OmegaConfBaseException:  # which resolving the whole will name
                return tree
        above = parts["optim"] if isinstance(parts["optim"], dict) else {}
        for path, optim in parts.items():
            warmup = warm_up.clipped(optim, above, words, path)
            if warmup is None:
                continue
            before = {**above, **optim}["warmup_steps"]
            self.notes[warm_up.sentence(path, before, warmup, tree.get("protocol"))] = None
            if path == "optim":
                above = {**above, "warmup_steps": warmup}
            head, *rest = path.split(".")
            layer: Tree = {"warmup_steps": warmup}
            layer = reduce(lambda below, part: {part: below}, rest[::-1], layer)
            put = partial(merged, tree[head], layer)
            tree = {**tree, head: self.memo.of((path, warmup), (tree[head],), put)}
        return tree


class _Shape(NamedTuple):
    """Of a word that chooses a file."""

    rest: tuple[Any, ...]
    name: str | None
    """Of the file, where it can stand in another's place without moving any other."""
    in_place: bool
    """Whether that is the place of the file that is chosen where no word is."""


@dataclass(slots=True)
class _Files:
    """What is known of the files that can be chosen."""

    names: dict[str, list[str]] = field(default_factory=dict)
    lists: dict[tuple[Any, ...], list[ResultDefault]] = field(default_factory=dict)
    packages: dict[tuple[Any, ...], dict[str, str | None]] = field(default_factory=dict)
    """Where the one file of a group, which brings no other along, sets its options."""
    shapes: dict[str, "_Shape"] = field(default_factory=dict)
    layers: dict[tuple[str | None, str | None], bytes] = field(default_factory=dict)
    own_parts: dict[tuple[Any, ...], bytes] = field(default_factory=dict)


def _is_alone(file: ConfigResult) -> bool:
    """Return whether a file brings no others along."""
    return all(default.is_self() for default in file.defaults_list or ())


def _of_a_table(word: Override) -> bool:
    return word.key_or_group.partition(".")[0] in TABLES


def _container(node: Any, *, resolve: bool = False) -> Any:
    return OmegaConf.to_container(node, resolve=resolve) if OmegaConf.is_config(node) else node


def _folder(file: ResultDefault) -> str:
    return str(file.config_path).rpartition("/")[0]


def group_of(file: ResultDefault) -> str:
    """Return the group of a file: protocol of protocol/nystrom and of protocol/mine/a."""
    return str(file.config_path).partition("/")[0]


def source_of(file: ResultDefault) -> str:
    """Return a file as one would choose it on the command line."""
    group, _, name = str(file.config_path).partition("/")
    if not name:
        return f"{group}.yaml"
    return f"+{group}={name}" if group in ("protocol", "experiment") else f"{group}={name}"


def chosen_names(layers: Sequence[Tree]) -> dict[str, str]:
    """Return the names that entries of tables are looked up by: the last that a layer gives."""
    return {
        group: node["name"]
        for layer in layers
        for group in TABLES.values()
        if isinstance(node := layer.get(group), dict) and isinstance(node.get("name"), str)
    }
