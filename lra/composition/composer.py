"""From the arguments of a command to a configuration.

Hydra says which files are read and in what order, and this module merges them. Later entries of
this list win over earlier ones:

1. the files of the groups, in the order of conf/config.yaml, then a pattern of layers;
2. the protocol: its settings for all, then `for_task`, `for_model`, `for_runner`, then those that
   stand in one another (`lra.composition.own_options`);
3. the experiment, likewise;
4. the scale, likewise;
5. `size=` and `optim=` on the command line, which count like the options in their files;
6. the other arguments, first those about these tables.

A preset may choose the protocol that it is made for. One that the user names takes its place.

Hydra takes a tenth of a second for a configuration, and a sweep may have ten thousand. So Hydra is
asked once for its own part, and once for the order of files for each choice of files that bring
others along. A file that only sets values is then put in the place of another one. Files and
arguments are merged as plain dictionaries, and by OmegaConf where they refer to one another.
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
from lra.composition.pattern_name import record
from lra.composition.placement import is_plain, put
from lra.errors import ConfigError, unknown
from lra.runners.records import Memo

BUNDLES = ("size", "optim")
"""Groups whose files hold only values: where the user names one, it wins over presets."""
OWN_FILES = "If the name is in a YAML file of yours, add --config-dir DIR."


class Composer:
    """Composes the runs of one command.

    Args:
        files: The files that arguments choose from. Hydra is started on them.
        of_hydra: Arguments for Hydra itself.
    """

    def __init__(self, files: Files, of_hydra: Sequence[str] = ()) -> None:
        files.start_hydra()
        self.files, self.of_hydra = files, tuple(of_hydra)
        self.notes: dict[str, None] = {}
        """Sentences to print about the configurations composed so far, each once and in order."""
        self.memo = Memo()
        """Equal parts of configurations are one object: later work is done once for each."""
        self._parser = OverridesParser.create(GlobalHydra.instance().config_loader())
        # Caches: parsed arguments, what each file sets, and configurations before single values.
        self._words: dict[str, Override] = {}
        self._layers: dict[tuple[str | None, str | None], Tree] = {}
        self._bases: dict[tuple[str, ...], Tree] = {}

    def parse(self, word: str) -> Override:
        """Return an argument as Hydra parses it."""
        if word not in self._words:
            (self._words[word],) = self._parser.parse_overrides([word])
        return self._words[word]

    def own_part(self, words: Sequence[str]) -> DictConfig:
        """Return the part `hydra` of a configuration: of one run, or of a sweep with all values."""
        parsed = [self.parse(word) for word in self.in_place(words)]
        single = [word for word in parsed if not word.is_sweep_override()]
        # `asked` goes to Hydra; the names in `plain`, by group, are only noted in its list below.
        asked, plain = self._split_choices([word for word in single if self._chooses_file(word)])
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
        # Hydra names folders of runs after the arguments, for `${hydra:job.override_dirname}`.
        names = config.hydra.job.config.override_dirname
        lines = [str(w.input_line) for w in parsed if w.key_or_group not in names.exclude_keys]
        joined = names.item_sep.join(sorted(lines))
        config.hydra.job.override_dirname = joined.replace("=", names.kv_sep)
        return config

    def compose(self, words: Sequence[str]) -> Tree:
        """Return the configuration of one run, with references `${...}` as they are.

        Other configurations may share its parts: nothing may change them.

        Args:
            words: The arguments of the run without those for Hydra; each has a single value.
        """
        words = self.in_place(words)
        early, values = list[Override](), list[Override]()  # `early`: for files and tables
        for word in map(self.parse, words):
            is_value = not self._chooses_file(word) and not _is_about_table(word)
            (values if is_value else early).append(word)
        base = tuple(str(word.input_line) for word in early)
        if base not in self._bases:
            self._bases[base] = self._compose_files(early)
        return self._settle(reduce(partial(put, self.memo), values, self._bases[base]), words)

    def resolved(self, words: Sequence[str], number: int) -> Tree:
        """Return the configuration of one run with all references `${...}` resolved.

        Args:
            words: The arguments of the run.
            number: Its place in the sweep, for `${hydra:job.num}`.
        """
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
        """Return a configuration together with its part `hydra`, which `${hydra:...}` refers to."""
        config = self.own_part(words)
        config.hydra.mode = config.hydra.mode or RunMode.RUN
        with open_dict(config):
            config.merge_with(tree)
        return config

    def _chooses_file(self, word: Override) -> bool:
        """Return whether an argument chooses a file of a group, as model=linear does."""
        is_group = bool(self.files.names(word.key_or_group)) or word.package is not None
        return is_group and not isinstance(word.value(), dict)

    def in_place(self, words: Sequence[str]) -> Sequence[str]:
        """Return the arguments, with `protocol=` for `+protocol=` where a preset chooses one.

        Hydra refuses `+` for a group that has a choice already.
        """
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
        """Return the files of a run as the arguments that choose them; later ones win."""
        parsed = [self.parse(word) for word in self.in_place(words)]
        chosen = [word for word in parsed if self._chooses_file(word)]
        return [source_of(file) for file in self._ordered_files(chosen)]

    def _ordered_files(self, words: Sequence[Override]) -> list[ResultDefault]:
        """Return all files of a configuration but Hydra's; later ones win.

        Args:
            words: The arguments that choose files.
        """
        asked, plain = self._split_choices(words)
        files = [file for file in self._ask_hydra(asked).files if group_of(file) != "hydra"]
        return [
            replace(file, config_path=f"{group}/{plain[group]}") if group in plain else file
            for file in _sort_files(files, words)
            for group in (_folder_of(file),)
        ]

    def _split_choices(self, words: Sequence[Override]) -> tuple[list[str], dict[str, str]]:
        """Split arguments that choose files: (those for Hydra, the other names by group).

        Where a file that only sets values is chosen in place of another such file, only its name
        changes in Hydra's list, so that Hydra need not be asked again. Every other choice may
        bring further files along, and goes to Hydra.
        """
        for word in words:
            group, name = word.key_or_group, word.value()
            if existing := self.files.names(group):
                if not isinstance(name, str):
                    name = str(word.input_line).partition("=")[2]
                elif self.files.find(f"{group}/{name}"):
                    continue
                way_out = OWN_FILES
                if group == "model" and name in self.files.names("pattern"):
                    way_out = f"{name} is a pattern of layers: write +pattern={name}."
                raise ConfigError(unknown(group, name, existing, way_out=way_out))
        chosen = {word.key_or_group: str(word.value()) for word in words}
        if {"pattern", "model"} <= chosen.keys():
            raise ConfigError(
                f"model={chosen['model']}: +pattern={chosen['pattern']} already chooses a model; "
                "omit model=, or set model.layers to change the layers of the pattern"
            )
        swaps = [word for word in words if self._only_sets_values(word)]
        plain = {word.key_or_group: str(word.value()) for word in swaps}
        everything = [str(word.input_line) for word in words]
        asked = [str(word.input_line) for word in words if word not in swaps]
        if len(asked) + len(plain) < len(everything):  # two choices of one group: Hydra decides
            return everything, {}
        packages = self._ask_hydra(asked).packages
        for group, name in plain.items():
            file = self.files.find(f"{group}/{name}")
            if file is None or packages.get(group, "none") != file.header["package"]:
                return everything, {}
        return asked, plain

    def _only_sets_values(self, word: Override) -> bool:
        """Return whether an argument chooses a file that only sets values and brings no others."""
        simple = word.type is OverrideType.CHANGE and word.package is None
        if not simple or not isinstance(word.value(), str) or word.is_sweep_override():
            return False
        file = self.files.find(f"{word.key_or_group}/{word.value()}")
        return file is not None and file.alone

    def _ask_hydra(self, words: Sequence[str]) -> Listed:
        """Return Hydra's list of files for these choices, and which of them can be swapped."""
        key = (*self.of_hydra, *words)
        if key not in self.files.lists:
            loader = GlobalHydra.instance().config_loader()
            files = loader.compute_defaults_list("config", [*key], RunMode.RUN).defaults
            folders = Counter(map(_folder_of, files))
            found = {_folder_of(file): self.files.find(str(file.config_path)) for file in files}
            # A list of files can name a choice, as in ${task}: a swap would change the file there.
            named = any("${" in repr(file.brings) for file in found.values() if file)
            packages = {
                folder: file.header["package"]
                for folder, file in found.items()
                if file and file.alone and folders[folder] == 1 and not named
            }
            self.files.lists[key] = Listed(files, packages)
        return self.files.lists[key]

    def _compose_files(self, words: Sequence[Override]) -> Tree:
        """Return the configuration that files give, before arguments set single values.

        Args:
            words: The arguments that choose files, and those about tables such as `for_task`.
        """
        of_tables = [word for word in words if _is_about_table(word)]
        deleted = [word.key_or_group.split(".") for word in of_tables if word.is_delete()]
        files = self._ordered_files([word for word in words if word not in of_tables])
        layers = [
            (source_of(file), reduce(without, deleted, self._read_layer(file))) for file in files
        ]
        chosen = chosen_names([layer for _, layer in layers])
        layers = [(s, merge_trees(part, self._apply_tables(part, chosen, s))) for s, part in layers]
        tree = self._merge_layers([part for _, part in layers])
        if of_pattern := [(s, part) for s, part in layers if s.startswith("+pattern=")]:
            name = of_pattern[-1][0].removeprefix("+pattern=")
            pattern = self._merge_layers([part for _, part in of_pattern])
            tree = {**tree, "pattern": record(name, pattern)}
        if of_tables:
            before = self._merge_layers([self._read_layer(file) for file in files])
            reduce(partial(put, self.memo), of_tables, before)  # only to refuse unknown keys
            added = OmegaConf.create({})
            for word in of_tables:
                if not word.is_delete():
                    key, value = word.key_or_group, word.value()
                    OmegaConf.update(added, key, value, merge=True, force_add=True)
            options = cast(Tree, OmegaConf.to_container(added, resolve=False))
            tree = self._merge_layers([tree, self._apply_tables(options, chosen, "")])
        # The tables have been applied: they stay as empty mappings.
        tables = {word.key_or_group.partition(".")[0] for word in of_tables} | tree.keys()
        return {**tree, **{table: {} for table in TABLES if table in tables}}

    def _apply_tables(self, layer: Tree, chosen: Mapping[str, str], source: str) -> Tree:
        """Return what the tables of a layer set for the chosen task, model and runner."""
        return matching_options(layer, chosen, self.files.names, source)

    def _read_layer(self, file: ResultDefault) -> Tree:
        """Return what a file sets, at its place in the configuration, without the part `hydra`."""
        place = (file.config_path, file.package)
        if place not in self._layers:
            read = self.files.find(str(file.config_path))
            # The text of a file is shared by all commands of a process, and callers may change
            # the configuration that they get: hence a copy.
            values = {} if read is None else copy.deepcopy(read.values)
            layer = tree_at(file.package, values) if file.package else values
            self._layers[place] = {key: node for key, node in layer.items() if key != "hydra"}
        return self._layers[place]

    def _merge_layers(self, layers: Sequence[Tree]) -> Tree:
        """Return layers merged into one as OmegaConf does it; later ones win."""
        if all(map(is_plain, layers)):
            return reduce(merge_trees, layers, {})
        return cast(Tree, OmegaConf.to_container(OmegaConf.merge(*layers)))

    def _settle(self, tree: Tree, words: Sequence[str]) -> Tree:
        """Return a configuration after the two steps that depend on all values.

        Each deviation of a protocol becomes the sentence for the chosen options (see
        `lra.composition.own_options`), and a warm-up ends with the last step at the latest (see
        `lra.composition.warm_up`).
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
                parts = {path: _resolve_part(config, path) for path in parts}
            except OmegaConfBaseException:  # resolving the whole reports it, with its key
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
            with_warmup = partial(merge_trees, tree[head], tree_at(rest, warmup))
            tree = {**tree, head: self.memo.of((path, warmup), (tree[head],), with_warmup)}
        return tree


def _sort_files(files: Sequence[ResultDefault], words: Sequence[Override]) -> list[ResultDefault]:
    """Return files in the order of this module's list: later ones win.

    Protocols come before experiments. The scale comes last, with the `BUNDLES` that `words` name.
    """
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


def _is_about_table(word: Override) -> bool:
    """Return whether an argument sets something in `for_task`, `for_model` or `for_runner`."""
    return word.key_or_group.partition(".")[0] in TABLES


def _resolve_part(config: DictConfig, path: str) -> Any:
    """Return the value at a dotted key as plain values, with references resolved."""
    node = OmegaConf.select(config, path)
    return OmegaConf.to_container(node, resolve=True) if OmegaConf.is_config(node) else node


def _folder_of(file: ResultDefault) -> str:
    """Return the folder of a file: protocol/mine of protocol/mine/a."""
    return str(file.config_path).rpartition("/")[0]


def group_of(file: ResultDefault) -> str:
    """Return the group of a file: protocol of protocol/nystrom and of protocol/mine/a."""
    return str(file.config_path).partition("/")[0]


def source_of(file: ResultDefault) -> str:
    """Return the argument that chooses a file, such as model=linear."""
    group, _, name = str(file.config_path).partition("/")
    if not name:
        return f"{group}.yaml"
    return (
        f"+{group}={name}" if group in ("protocol", "experiment", "pattern") else f"{group}={name}"
    )


def chosen_names(layers: Sequence[Tree]) -> dict[str, str]:
    """Return the chosen task, model and runner, which pick the entries of tables.

    Of several layers that give a name, the last one counts.
    """
    return {
        group: node["name"]
        for layer in layers
        for group in TABLES.values()
        if isinstance(node := layer.get(group), dict) and isinstance(node.get("name"), str)
    }
