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

Hydra takes a tenth of a second for a configuration, and a sweep has ten thousand. So it is asked
once for its own part, and once for the order of files for each choice of those that bring others
along; a file that only sets values takes another's place there. Files and words are merged as plain
dictionaries, and by OmegaConf where they refer to one another.
"""

import copy
import pickle
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial, reduce
from pathlib import Path
from typing import Any, cast

from hydra import compose
from hydra.core.default_element import ResultDefault
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from lra.composition import warm_up
from lra.composition.files import Files, Listed
from lra.composition.own_options import (
    TABLES,
    Tree,
    by_option,
    matching_options,
    merge_trees,
    tree_at,
    without,
)
from lra.composition.placement import is_plain, put
from lra.errors import ConfigError, unknown
from lra.runners.records import Memo

BUNDLES = ("size", "optim")
"""Groups whose files are nothing but values: named by hand, they win over presets."""
OWN_FILES = "For your YAML files, add --config-dir DIR."


class Composer:
    """Composes the runs of one command.

    Args:
        files: That words choose from. Hydra is started on them.
        of_hydra: Words for Hydra itself.
    """

    def __init__(self, files: Files, of_hydra: Sequence[str] = ()) -> None:
        files.start_hydra()
        self.files, self.of_hydra = files, tuple(of_hydra)
        self.notes: dict[str, None] = {}
        """What somebody at a keyboard should hear of the configurations composed so far."""
        self.memo = Memo()
        """Equal parts of configurations are one object: later work is done once for each."""
        self._parser = OverridesParser.create(GlobalHydra.instance().config_loader())
        self._words: dict[str, Override] = {}
        self._layers: dict[tuple[str | None, str | None], Tree] = {}
        self._bases: dict[tuple[str, ...], Tree] = {}

    def parse(self, word: str) -> Override:
        """Return a word as Hydra reads it."""
        if word not in self._words:
            (self._words[word],) = self._parser.parse_overrides([word])
        return self._words[word]

    def own_part(self, words: Sequence[str]) -> DictConfig:
        """Return Hydra's own part of a run, or of a sweep with all words."""
        parsed = [self.parse(word) for word in self.in_place(words)]
        single = [word for word in parsed if not word.is_sweep_override()]
        asked, plain = self._split([word for word in single if self._chooses(word)])
        key = (*self.of_hydra, *asked)
        if key not in self.files.own_parts:
            config = compose("config", [*key], return_hydra_config=True)
            self.files.own_parts[key] = pickle.dumps(OmegaConf.masked_copy(config, "hydra"))
        config = cast(DictConfig, pickle.loads(self.files.own_parts[key]))  # noqa: S301  # our own
        with open_dict(config.hydra):
            del config.hydra["help"], config.hydra["hydra_help"]
        config.hydra.runtime.cwd = str(Path.cwd())
        config.hydra.runtime.choices.update(plain)
        config.hydra.overrides.task = [*words]
        names = config.hydra.job.config.override_dirname
        lines = [str(w.input_line) for w in parsed if w.key_or_group not in names.exclude_keys]
        joined = names.item_sep.join(sorted(lines))
        config.hydra.job.override_dirname = joined.replace("=", names.kv_sep)
        return config

    def compose(self, words: Sequence[str]) -> Tree:
        """Return the configuration of one run, references unresolved. Its parts may be shared.

        Args:
            words: Those of the run without Hydra's own; no sweep among them.
        """
        words = self.in_place(words)
        early, values = list[Override](), list[Override]()
        for word in map(self.parse, words):
            is_value = not self._chooses(word) and not _of_a_table(word)
            (values if is_value else early).append(word)
        base = tuple(str(word.input_line) for word in early)
        if base not in self._bases:
            self._bases[base] = self._of_files(early)
        return self._settled(reduce(partial(put, self.memo), values, self._bases[base]), words)

    def resolved(self, words: Sequence[str], number: int) -> Tree:
        """Return the configuration of one run, the number of which in its sweep is given."""
        tree = self.compose(words)
        if is_plain(tree):
            return tree
        if "${hydra:" in repr(tree):
            config = self.whole(words, tree)
            with open_dict(config):
                config.hydra.job.id, config.hydra.job.num = str(number), number
            HydraConfig.instance().set_config(config)
        return cast(Tree, OmegaConf.to_container(OmegaConf.create(tree), resolve=True))

    def whole(self, words: Sequence[str], tree: Tree) -> DictConfig:
        """Return a configuration with Hydra's own part, to which `${hydra:...}` refers."""
        config = self.own_part(words)
        config.hydra.mode = config.hydra.mode or RunMode.RUN
        with open_dict(config):
            config.merge_with(tree)
        return config

    def _chooses(self, word: Override) -> bool:
        """Return whether a word chooses a file."""
        is_group = bool(self.files.names(word.key_or_group)) or word.package is not None
        return is_group and not isinstance(word.value(), dict)

    def in_place(self, words: Sequence[str]) -> Sequence[str]:
        """Return the words, of which `+protocol=` replaces the protocol that a preset chooses."""
        if not any(word.startswith("+protocol=") for word in words):
            return words
        presets = [word for word in map(self.parse, words) if word.key_or_group == "experiment"]
        if not any(self._chooses_protocol(str(preset.value())) for preset in presets):
            return words
        return [word[1:] if word.startswith("+protocol=") else word for word in words]

    def _chooses_protocol(self, preset: str) -> bool:
        """Return whether a preset, or one that it builds on, chooses a protocol."""
        file = self.files.find(f"experiment/{preset}")
        for entry in file.brings if file else ():
            if isinstance(entry, dict) and any(str(k).endswith("/protocol") for k in entry):
                return True
            if isinstance(entry, str) and entry != "_self_":
                return self._chooses_protocol(entry)
        return False

    def sources(self, words: Sequence[str]) -> list[str]:
        """Return the files of a run, the weaker first, as one would choose them."""
        parsed = [self.parse(word) for word in self.in_place(words)]
        return [source_of(file) for file in self._files([w for w in parsed if self._chooses(w)])]

    def _files(self, words: Sequence[Override]) -> list[ResultDefault]:
        """Return our files, the weaker first.

        Args:
            words: Those that choose files.
        """
        asked, plain = self._split(words)
        files = [file for file in self._listed(asked).files if group_of(file) != "hydra"]
        return [
            replace(file, config_path=f"{group}/{plain[group]}") if group in plain else file
            for file in _ordered(files, words)
            for group in (_folder(file),)
        ]

    def _split(self, words: Sequence[Override]) -> tuple[list[str], dict[str, str]]:
        """Return the choices to ask Hydra with, and names of files that take others' places.

        A file of values alone takes the place of another one of values alone that Hydra has for
        its group; what else a choice does, Hydra has to tell.
        """
        for word in words:
            group, name = word.key_or_group, word.value()
            if existing := self.files.names(group):
                if not isinstance(name, str):
                    name = str(word.input_line).partition("=")[2]
                elif self.files.find(f"{group}/{name}"):
                    continue
                raise ConfigError(unknown(group, name, existing, way_out=OWN_FILES))
        plain = {word.key_or_group: str(word.value()) for word in words if self._names(word)}
        everything = [str(word.input_line) for word in words]
        asked = [str(word.input_line) for word in words if not self._names(word)]
        if len(asked) + len(plain) < len(everything):  # two of one group
            return everything, {}
        packages = self._listed(asked).packages
        for group, name in plain.items():
            file = self.files.find(f"{group}/{name}")
            if file is None or packages.get(group, "none") != file.header["package"]:
                return everything, {}
        return asked, plain

    def _names(self, word: Override) -> bool:
        """Return whether a word only names a file, of values alone."""
        simple = word.type is OverrideType.CHANGE and word.package is None
        if not simple or not isinstance(word.value(), str) or word.is_sweep_override():
            return False
        file = self.files.find(f"{word.key_or_group}/{word.value()}")
        return file is not None and file.alone

    def _listed(self, words: Sequence[str]) -> Listed:
        """Return what Hydra says of choices."""
        key = (*self.of_hydra, *words)
        if key not in self.files.lists:
            loader = GlobalHydra.instance().config_loader()
            files = loader.compute_defaults_list("config", [*key], RunMode.RUN).defaults
            folders = Counter(map(_folder, files))
            found = {_folder(file): self.files.find(str(file.config_path)) for file in files}
            named = any("${" in repr(file.brings) for file in found.values() if file)
            packages = {
                folder: file.header["package"]
                for folder, file in found.items()
                if file and file.alone and folders[folder] == 1 and not named
            }
            self.files.lists[key] = Listed(files, packages)
        return self.files.lists[key]

    def _of_files(self, words: Sequence[Override]) -> Tree:
        """Return what files and words about tables set."""
        of_tables = [word for word in words if _of_a_table(word)]
        gone = [word.key_or_group.split(".") for word in of_tables if word.is_delete()]
        files = self._files([word for word in words if word not in of_tables])
        layers = [(source_of(file), reduce(without, gone, self._layer(file))) for file in files]
        chosen = chosen_names([layer for _, layer in layers])
        tree = self._merged(
            [merge_trees(layer, self._refined(layer, chosen, s)) for s, layer in layers]
        )
        if of_tables:
            before = self._merged([self._layer(file) for file in files])
            reduce(partial(put, self.memo), of_tables, before)  # refuses what has no place
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
        return matching_options(layer, chosen, self.files.names, source)

    def _layer(self, file: ResultDefault) -> Tree:
        """Return what a file sets, in its place, without Hydra's own part."""
        place = (file.config_path, file.package)
        if place not in self._layers:
            read = self.files.find(str(file.config_path))
            # Of each command its own: who asked may change what it got.
            values = {} if read is None else copy.deepcopy(read.values)
            layer = tree_at(file.package, values) if file.package else values
            self._layers[place] = {key: node for key, node in layer.items() if key != "hydra"}
        return self._layers[place]

    def _merged(self, layers: Sequence[Tree]) -> Tree:
        """Return layers merged as OmegaConf does it, each over those before it."""
        if all(map(is_plain, layers)):
            return reduce(merge_trees, layers, {})
        return cast(Tree, OmegaConf.to_container(OmegaConf.merge(*layers)))

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
        if not is_plain(parts):
            config = OmegaConf.create(tree)
            try:
                parts = {path: _resolved(config, path) for path in parts}
            except OmegaConfBaseException:  # which resolving the whole will name
                return tree
        above = parts["optim"] if isinstance(parts["optim"], dict) else {}
        for path, optim in parts.items():
            warmup = warm_up.cut_warm_up(optim, above, words, path)
            if warmup is None:
                continue
            before = {**above, **optim}["warmup_steps"]
            self.notes[warm_up.sentence(path, before, warmup, tree.get("protocol"))] = None
            if path == "optim":
                above = {**above, "warmup_steps": warmup}
            head, _, rest = f"{path}.warmup_steps".partition(".")
            layed = partial(merge_trees, tree[head], tree_at(rest, warmup))
            tree = {**tree, head: self.memo.of((path, warmup), (tree[head],), layed)}
        return tree


def _ordered(files: Sequence[ResultDefault], words: Sequence[Override]) -> list[ResultDefault]:
    """Put protocols before experiments, the scale and bundles named by hand behind all."""
    named = {word.key_or_group for word in words if not isinstance(word.value(), dict)}
    behind = {"scale", *named.intersection(BUNDLES)}
    order = [file for file in files if group_of(file) not in behind]
    late = [file for file in files if group_of(file) in behind]
    protocols = [file for file in order if group_of(file) == "protocol"]
    presets = [index for index, file in enumerate(order) if group_of(file) == "experiment"]
    if presets and protocols:
        before = [file for file in order[: presets[0]] if file not in protocols]
        after = [file for file in order[presets[0] :] if file not in protocols]
        order = [*before, *protocols, *after]
    return [*order, *late]


def _of_a_table(word: Override) -> bool:
    return word.key_or_group.partition(".")[0] in TABLES


def _resolved(config: DictConfig, path: str) -> Any:
    node = OmegaConf.select(config, path)
    return OmegaConf.to_container(node, resolve=True) if OmegaConf.is_config(node) else node


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
