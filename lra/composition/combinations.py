"""The words of a sweep, combined and composed as Hydra's basic sweeper does, in less time.

Hydra composes every combination twice: the configuration files, and the words on top. Here
each choice of files is merged once, of files that are read once (`lra.composition.layers`); a value
is then put in its place in a copy. That is the same wherever the tree is plain data (no
interpolations) and the value replaces another, which is what sweeps over models, tasks, seeds and
rates do; anything else goes through Hydra in full.
"""

import copy
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import (
    ChoiceSweep,
    Glob,
    IntervalSweep,
    Override,
    OverrideType,
    RangeSweep,
    ValueType,
)
from omegaconf import DictConfig, OmegaConf, open_dict

from lra.composition.layers import Layers, is_plain
from lra.composition.loader import Loader
from lra.errors import ConfigError
from runners.records import Memo

MOST = 100_000
"""Combinations of one command; more is a slip, and their list alone would fill the memory."""
_NUMBER = re.compile(r"-?(0|[1-9][0-9]{0,17})")
_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


def expand(overrides: Sequence[Override], max_batch_size: int | None) -> list[list[str]]:
    """Return the words of every combination, in Hydra's order.

    Raises:
        ConfigError: there are none or more than `MOST`, or a range has no end.
    """
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper

    sizes = {override.get_key_element(): _size(override) for override in overrides}
    total = math.prod(sizes.values())
    if total > MOST:
        longest = max(sizes, key=lambda key: sizes[key])
        raise ConfigError(
            f"this sweep has {total:,.0f} combinations; wanted at most {MOST:,}: {longest} alone "
            f"has {sizes[longest]:,.0f} values. Split it into several commands"
        )
    for key, size in sizes.items():
        if not size:
            raise ConfigError(f"{key} has no values: this sweep is empty; give it at least one")
    batches = BasicSweeper.split_arguments(list(overrides), max_batch_size)
    return [words for batch in batches for words in batch]


def _size(override: Override) -> float:
    """Return how many values a word has, without listing them."""
    value = override.value()
    if isinstance(value, ChoiceSweep):
        return len(value.list)
    if isinstance(value, Glob):
        return len([*override.sweep_iterator()])
    if isinstance(value, IntervalSweep):
        raise ConfigError(f"{override.input_line}: an interval is endless; wanted range or choice")
    if not isinstance(value, RangeSweep):
        return 1
    if not value.step or value.start is None or value.stop is None:
        raise ConfigError(f"{override.input_line}: wanted range(start,stop,step), step not 0")
    size = (float(value.stop) - float(value.start)) / float(value.step)
    if not math.isfinite(size):
        raise ConfigError(f"{override.input_line}: wanted a range that ends")
    return max(0, math.ceil(size))


def with_settings(combinations: list[list[str]], loader: Loader) -> list[list[str]]:
    """Return the combinations whose tasks the protocol has settings for, or all if none is.

    For a preset's own list of tasks, beside a protocol that a word chooses. What is left out is
    noted.
    """
    kept, gone = [], dict[tuple[str, str], int]()
    for words in combinations:
        chosen = dict(word.lstrip("+").partition("=")[::2] for word in words)
        protocol, task = chosen.get("protocol", ""), chosen.get("task", "")
        loaded = loader.repository.load_config(f"protocol/{protocol}") if protocol else None
        tasks = None if loaded is None else OmegaConf.select(loaded.config, "for_task")
        if tasks and task and task not in tasks:
            gone[protocol, task] = gone.get((protocol, task), 0) + 1
        else:
            kept.append(words)
    if not kept:
        return combinations
    for (protocol, task), runs in gone.items():
        note = (
            f"+protocol={protocol} has no settings for task={task}: its {runs:,} runs are left out"
        )
        loader.notes[note] = None
    return kept


class Composer:
    """Composes the combinations of a sweep one after another, from what they share."""

    def __init__(self, loader: Loader, master: DictConfig, overrides: Sequence[Override]) -> None:
        """Begin a sweep.

        Args:
            loader: Hydra's.
            master: The configuration of the sweep as a whole, with Hydra's own part.
            overrides: The words of the sweep.
        """
        self.loader, self.master = loader, master
        self.swept = {word.get_key_element() for word in overrides if word.is_sweep_override()}
        self.layers = Layers(loader, master)
        self.parser = OverridesParser.create(loader)
        self.parsed: dict[str, Override] = {}
        self.bases: dict[tuple[str, ...], dict[str, Any] | None] = {}
        self.groups: dict[str, bool] = {}
        self.overlaps: dict[tuple[Any, ...], bool] = {}
        """Whether the order matters, for the keys put off and the words that are not."""
        self.numbers: dict[str, Override] = {}
        """For each key, a word whose value is a whole number."""
        self.memo = Memo()
        self.composed = 0

    def compose(self, words: Sequence[str]) -> dict[str, Any]:
        """Return the resolved configuration of one combination. Its parts may be shared."""
        number, self.composed = self.composed, self.composed + 1
        late = [self._parse(word) for word in words if word.partition("=")[0] in self.swept]
        late = [override for override in late if self._replaces(override)]
        lines = {override.input_line for override in late}
        early = tuple(word for word in words if word not in lines)
        if self._overlap(late, early):
            return self._through_hydra(words, number)
        if early not in self.bases:
            self.bases[early] = self._base(early)
        tree = self._with(self.bases[early], late)
        if tree is None:
            return self._through_hydra(words, number)
        return self.loader.settled(tree, words, self.memo)

    def _with(
        self, tree: dict[str, Any] | None, values: Sequence[Override]
    ) -> dict[str, Any] | None:
        """Return a copy with values in their places; None where one has no place.

        Equal values in one place give one object: later on, most of the work is done by object.
        """
        for override in values:
            if tree is None or not _has_leaf(tree, override.key_or_group):
                return None
            head, *rest = override.key_or_group.split(".")
            put, part = override.value(), tree[head]
            if rest:
                what = (*rest, type(put), repr(put))
                put = self.memo.of(what, (part,), partial(_replaced, part, rest, put))
            tree = {**tree, head: put}
        return tree

    def _parse(self, word: str) -> Override:
        if word not in self.parsed:
            self.parsed[word] = self._parsed(word)
        return self.parsed[word]

    def _parsed(self, word: str) -> Override:
        """Return a word as Hydra reads it, which takes half a millisecond: one of each key does."""
        key, _, value = word.partition("=")
        is_number = _NUMBER.fullmatch(value) is not None
        if is_number and key in self.numbers:
            return replace(self.numbers[key], _value=int(value), input_line=word)
        (override,) = self.parser.parse_overrides([word])
        if is_number and type(override.value()) is int:
            self.numbers[key] = override
        return override

    def _replaces(self, override: Override) -> bool:
        """Return whether a word puts a plain value in the place of another."""
        value = override.value()
        return (
            override.type is OverrideType.CHANGE
            and override.package is None
            and override.value_type is ValueType.ELEMENT
            and _PATH.fullmatch(override.key_or_group) is not None
            and not override.is_hydra_override()
            and not isinstance(value, dict)
            and is_plain(value)
            and not self._is_group(override)
        )

    def _is_group(self, override: Override) -> bool:
        """Return whether a word chooses a file; Hydra reads those before it applies values."""
        key = override.key_or_group
        if key not in self.groups:
            self.groups[key] = bool(self.loader.get_group_options(key))
        return self.groups[key] and not isinstance(override.value(), dict)

    def _overlap(self, late: Sequence[Override], early: tuple[str, ...]) -> bool:
        """Return whether a word is about a part of what another is about: their order matters."""
        what = (tuple(word.key_or_group for word in late), early)
        if what not in self.overlaps:
            before = [word for word in map(self._parse, early) if not self._is_group(word)]
            keys = [f"{word.key_or_group}." for word in (*late, *before)]
            self.overlaps[what] = any(
                one.startswith(other)
                for index, one in enumerate(keys)
                for at, other in enumerate(keys)
                if at != index and min(at, index) < len(late)
            )
        return self.overlaps[what]

    def _base(self, early: Sequence[str]) -> dict[str, Any] | None:
        """Return what the words that are not put off compose to; None where not plain data."""
        parsed = [self._parse(word) for word in early]
        files = [override for override in parsed if self._is_group(override)]
        values = [override for override in parsed if not self._is_group(override)]
        chosen = {
            override.key_or_group: str(override.value())
            for override in files
            if override.get_key_element().lstrip("+") in {key.lstrip("+") for key in self.swept}
        }
        if all(map(_chooses, files)) and all(map(self._replaces, values)):
            words = [str(override.input_line) for override in files]
            tree = self._with(self.layers.merged(words, chosen), values)
            if tree is not None:
                return tree
        with self.loader.unsettled():
            config = self.loader.load_sweep_config(self.master, [*early])
        tree = cast(dict[str, Any], OmegaConf.to_container(config, resolve=False))
        del tree["hydra"]
        return tree if is_plain(tree) else None

    def _through_hydra(self, words: Sequence[str], number: int) -> dict[str, Any]:
        config = self.loader.load_sweep_config(self.master, [*words])
        with open_dict(config):
            config.hydra.job.id = config.hydra.job.num = number
        return resolved(config)


def resolved(config: DictConfig) -> dict[str, Any]:
    """Return a composed configuration as a job of Hydra's gets it, as plain values."""
    HydraConfig.instance().set_config(config)  # what `${hydra:...}` refers to
    tree = copy.deepcopy(config)
    OmegaConf.set_struct(tree, False)
    OmegaConf.set_readonly(tree, False)
    del tree["hydra"]
    return cast(dict[str, Any], OmegaConf.to_container(tree, resolve=True))


def _chooses(override: Override) -> bool:
    """Return whether a word chooses one file of a group, in the group's own place."""
    return (
        override.type in {OverrideType.CHANGE, OverrideType.ADD}
        and override.package is None
        and override.value_type is ValueType.ELEMENT
        and isinstance(override.value(), str)
        and not override.is_hydra_override()
    )


def _has_leaf(tree: dict[str, Any], key: str) -> bool:
    node: Any = tree
    for part in key.split("."):
        if not isinstance(node, dict) or part not in node:
            return False
        node = node[part]
    return not isinstance(node, dict)


def _replaced(tree: dict[str, Any], path: Sequence[str], value: Any) -> dict[str, Any]:
    """Return a copy with another value at `path`; what lies outside the path is shared."""
    head, *rest = path
    return {**tree, head: _replaced(tree[head], rest, value) if rest else value}
