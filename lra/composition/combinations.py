"""The arguments of every combination of a sweep, in Hydra's order, and which ones are skipped."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain, product
from typing import Any

from hydra.core.override_parser.types import ChoiceSweep, Glob, IntervalSweep, Override, RangeSweep

from lra.composition.composer import Composer
from lra.composition.runner_class import runner_class
from lra.conf.short_values import number_of
from lra.errors import ConfigError

MOST = 100_000
"""Combinations of one command at most. More are a mistake, and their list would fill the memory."""
OF_MIXERS = "model.mixer."
NEEDS_SEARCH = "an interval can only be searched: add search=halton"
FAITHFUL = ("variant", "faithful")
"""The value of `variant` that a family without variants has anyway."""


def expand(overrides: Sequence[Override]) -> list[list[str]]:
    """Return the arguments of every combination, in Hydra's order.

    Raises:
        ConfigError: there are none or more than `MOST`, or a range has no end.
    """
    sizes = {override.get_key_element(): value_count(override) for override in overrides}
    total = math.prod(sizes.values())
    if total > MOST:
        longest = max(sizes, key=lambda key: sizes[key])
        raise ConfigError(
            f"this sweep has {total:,.0f} combinations; wanted at most {MOST:,}: {longest} alone "
            f"has {sizes[longest]:,.0f} values. Split it into several commands"
        )
    for key, size in sizes.items():
        if not size:
            raise ConfigError(
                f"{key} has no values, so that this sweep is empty; give at least one value"
            )
    words = dict[str, list[str]]()
    for word in overrides:
        key, several = word.get_key_element(), word.is_sweep_override()
        values = word.sweep_string_iterator() if several else [word.get_value_element_as_str()]
        words[key] = [f"{key}={value}" for value in values]
    return [[*each] for each in product(*words.values())]


def is_range(override: Override) -> bool:
    """Return whether an argument gives a range, as interval(...) does, for a search to draw from.

    The values of a list, or of a glob, are not drawn from: each of them is an arm of the search.
    """
    value = override.value()
    if isinstance(value, IntervalSweep | RangeSweep):
        return True
    return isinstance(value, ChoiceSweep) and not value.simple_form


def value_count(override: Override) -> float:
    """Return how many values an argument has, without listing them.

    Raises ConfigError for a range without an end, and for an interval.
    """
    value = override.value()
    if isinstance(value, ChoiceSweep):
        return len(value.list)
    if isinstance(value, Glob):
        return len([*override.sweep_iterator()])
    if isinstance(value, IntervalSweep):
        raise ConfigError(f"{override.input_line}: {NEEDS_SEARCH}")
    if not isinstance(value, RangeSweep):
        return 1
    if not value.step or value.start is None or value.stop is None:
        raise ConfigError(f"{override.input_line}: wanted range(start,stop,step), step not 0")
    try:
        size = (float(value.stop) - float(value.start)) / float(value.step)
    except OverflowError:  # of a whole number that no float holds
        size = math.inf
    if not math.isfinite(size):
        raise ConfigError(f"{override.input_line}: wanted a range that ends")
    return max(0, math.ceil(size))


def with_settings(combinations: list[list[str]], composer: Composer) -> list[list[str]]:
    """Return the combinations whose task has settings in their protocol; if none has, all.

    This is for a preset that lists tasks, together with a protocol that an argument chooses.
    """
    kept, skipped = list[list[str]](), Counter[tuple[str, str]]()
    for words in combinations:
        protocol, task = _chosen(words, "protocol"), _chosen(words, "task")
        tasks = _in_file(f"protocol/{protocol}", "for_task", composer) if protocol else None
        if tasks and task and task not in tasks:
            skipped[protocol, task] += 1
        else:
            kept.append(words)
    if not kept:
        return combinations
    for (protocol, task), runs in skipped.items():
        note = f"+protocol={protocol} has no settings for task={task}"
        composer.notes[f"{note}: skipped ({number_of(runs, 'run')})"] = None
    return kept


def with_trained(combinations: list[list[str]], composer: Composer) -> list[list[str]]:
    """Return the combinations of a protocol and a model that its paper has trained.

    This is for a preset that lists both protocols and models, and does not mean their product.
    """
    trained = dict[str, Any]()
    for protocol in {_chosen(words, "protocol") for words in combinations} - {""}:
        file = composer.files.find(f"protocol/{protocol}")
        trained[protocol] = (file and file.values.get("published_models")) or ()
    return [
        words
        for words in combinations
        if (protocol := _chosen(words, "protocol")) not in trained
        or _chosen(words, "model") in trained[protocol]
    ]


def with_first_seed(combinations: list[list[str]]) -> list[list[str]]:
    """Return the combinations, those of a timed runner with only the first seed.

    The seeds of a preset are meant for its trainings, and a time does not depend on them.
    """
    first = _chosen(combinations[0], "seed")
    timed = {
        runner: bool(runner) and runner_class({"name": runner}).timed
        for runner in {_chosen(words, "runner") for words in combinations}
    }
    return [
        words
        for words in combinations
        if not timed[_chosen(words, "runner")] or _chosen(words, "seed") == first
    ]


def with_options(combinations: list[list[str]], composer: Composer) -> list[list[str]]:
    """Return the combinations whose models have the options of mixers that arguments set.

    For example, `-m model=cosformer,linformer model.mixer.variant=faithful,lra` gives three runs:
    both variants of Linformer, and cosFormer once, as it has no variants and is always faithful.
    An option that no model of the sweep has stays, and is refused later with a message.
    """
    if not any(word.lstrip("+").startswith(OF_MIXERS) for word in chain(*combinations[:1])):
        return combinations
    options = {
        model: _in_file(f"model/{model}", "mixer", composer)
        for model in {_chosen(words, "model") for words in combinations}
    }
    existing = frozenset(chain(*(names or () for names in options.values())))
    kept, skipped = dict[tuple[str, ...], None](), Counter[tuple[str, str]]()
    for words in combinations:
        model = _chosen(words, "model")
        names, foreign = options[model], dict[str, tuple[str, str]]()
        for word in words:
            key, _, value = word.lstrip("+").partition("=")
            name = key.removeprefix(OF_MIXERS).partition(".")[0]
            if key.startswith(OF_MIXERS) and name in existing and name not in (names or existing):
                foreign[word] = name, value
        lacking = [word.lstrip("+") for word, option in foreign.items() if option != FAITHFUL]
        if lacking:
            skipped[model, lacking[0]] += 1
        else:
            kept[tuple(word for word in words if word not in foreign)] = None
    for (model, word), runs in skipped.items():
        note = f"{word} is no option of model={model}"
        composer.notes[f"{note}: skipped ({runs} of the combinations)"] = None
    return [[*words] for words in kept]


def _chosen(words: Sequence[str], group: str) -> str:
    """Return the last choice of a group; "" where there is none."""
    choices = (word.lstrip("+").partition("=") for word in reversed(words))
    return next((name for key, _, name in choices if key == group), "")


def _in_file(path: str, key: str, composer: Composer) -> Mapping[str, Any] | None:
    """Return a mapping in one of the files; None where there is none."""
    file = composer.files.find(path)
    node = None if file is None else file.values.get(key)
    return node if isinstance(node, Mapping) else None
