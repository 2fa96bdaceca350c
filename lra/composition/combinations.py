"""List the arguments of every combination of a sweep, in Hydra's order; skip senseless ones."""

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
"""The most combinations of one command. More are a mistake, and would fill the memory."""
OF_MIXERS = "model.mixer."
NEEDS_SEARCH = "lra can only search an interval, so add search=halton"
FAITHFUL = ("variant", "faithful")
"""The one value of `variant` that also suits a family without variants."""


def expand(overrides: Sequence[Override]) -> list[list[str]]:
    """Return the arguments of every combination of the values in `overrides`, in Hydra's order.

    Raises:
        ConfigError: There is no combination, or more than `MOST`, or a range has no end.
    """
    sizes = {override.get_key_element(): value_count(override) for override in overrides}
    total = math.prod(sizes.values())
    if total > MOST:
        longest = max(sizes, key=lambda key: sizes[key])
        raise ConfigError(
            f"this sweep has {total:,.0f} combinations, but at most {MOST:,} are allowed: "
            f"{longest} alone has {sizes[longest]:,.0f} values. Split it into several commands"
        )
    for key, size in sizes.items():
        if not size:
            raise ConfigError(
                f"{key} has no values, so this sweep has no runs; give at least one value"
            )
    words = dict[str, list[str]]()
    for word in overrides:
        key, is_sweep = word.get_key_element(), word.is_sweep_override()
        values = word.sweep_string_iterator() if is_sweep else [word.get_value_element_as_str()]
        words[key] = [f"{key}={value}" for value in values]
    return [[*combination] for combination in product(*words.values())]


def is_range(override: Override) -> bool:
    """Return whether an argument gives a range, such as interval(...), for a search to draw from.

    A search does not draw from the values of a list or a glob; each of them makes an arm.
    """
    value = override.value()
    if isinstance(value, IntervalSweep | RangeSweep):
        return True
    return isinstance(value, ChoiceSweep) and not value.simple_form


def value_count(override: Override) -> float:
    """Return the number of values of an argument, without making a list of them.

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
        raise ConfigError(
            f"{override.input_line}: wanted range(start,stop,step) with a step other than 0"
        )
    try:
        size = (float(value.stop) - float(value.start)) / float(value.step)
    except OverflowError:  # a whole number can be too large for a float
        size = math.inf
    if not math.isfinite(size):
        raise ConfigError(f"{override.input_line}: wanted a range with a finite number of values")
    return max(0, math.ceil(size))


def with_settings(combinations: list[list[str]], composer: Composer) -> list[list[str]]:
    """Return the combinations without tasks that their protocol has no settings for.

    If no combination is left, all are returned, and lra refuses them later. This is for a preset
    that lists tasks, together with a protocol that an argument chooses.
    """
    remaining, skipped = list[list[str]](), Counter[tuple[str, str]]()
    for words in combinations:
        protocol, task = _find_choice(words, "protocol"), _find_choice(words, "task")
        tasks = _read_mapping(f"protocol/{protocol}", "for_task", composer) if protocol else None
        if tasks and task and task not in tasks:
            skipped[protocol, task] += 1
        else:
            remaining.append(words)
    if not remaining:
        return combinations
    for (protocol, task), runs in skipped.items():
        reason = f"+protocol={protocol} has no settings for task={task}"
        composer.notes[f"{number_of(runs, 'run')} skipped, because {reason}"] = None
    return remaining


def with_trained(combinations: list[list[str]], composer: Composer) -> list[list[str]]:
    """Return the combinations whose model the paper of their protocol has trained.

    This is for a preset that lists protocols and models, but wants only some pairs of them.
    """
    trained = dict[str, Any]()
    for protocol in {_find_choice(words, "protocol") for words in combinations} - {""}:
        file = composer.files.find(f"protocol/{protocol}")
        trained[protocol] = (file and file.values.get("published_models")) or ()
    return [
        words
        for words in combinations
        if (protocol := _find_choice(words, "protocol")) not in trained
        or _find_choice(words, "model") in trained[protocol]
    ]


def with_first_seed(combinations: list[list[str]]) -> list[list[str]]:
    """Return the combinations, but with only the first seed for a runner that measures time.

    The seeds of a preset are meant for its trainings; a time does not depend on the seed.
    """
    first = _find_choice(combinations[0], "seed")
    timed = {
        runner: bool(runner) and runner_class({"name": runner}).timed
        for runner in {_find_choice(words, "runner") for words in combinations}
    }
    return [
        words
        for words in combinations
        if not timed[_find_choice(words, "runner")] or _find_choice(words, "seed") == first
    ]


def with_options(combinations: list[list[str]], composer: Composer) -> list[list[str]]:
    """Return the combinations without those that set an option which their mixer lacks.

    For example, `-m model=cosformer,linformer model.mixer.variant=faithful,lra` gives three runs:
    both variants of Linformer, and cosFormer once, as it has no variants and is always faithful.
    If no model of the sweep has an option, its combinations stay, and lra refuses them later.
    """
    # All combinations have the same keys, so the first one shows whether a mixer's option is set.
    if not any(word.lstrip("+").startswith(OF_MIXERS) for word in chain(*combinations[:1])):
        return combinations
    options = {
        model: _read_mapping(f"model/{model}", "mixer", composer)
        for model in {_find_choice(words, "model") for words in combinations}
    }
    existing = frozenset(chain(*(names or () for names in options.values())))
    remaining, skipped = dict[tuple[str, ...], None](), Counter[tuple[str, str]]()
    for words in combinations:
        model = _find_choice(words, "model")
        names, foreign = options[model], dict[str, tuple[str, str]]()
        for word in words:
            key, _, value = word.lstrip("+").partition("=")
            name = key.removeprefix(OF_MIXERS).partition(".")[0]
            # The options of a model without a file or a mixer are not known: it keeps all.
            if key.startswith(OF_MIXERS) and name in existing and name not in (names or existing):
                foreign[word] = name, value
        lacking = [word.lstrip("+") for word, option in foreign.items() if option != FAITHFUL]
        if lacking:
            skipped[model, lacking[0]] += 1
        else:
            remaining[tuple(word for word in words if word not in foreign)] = None
    for (model, word), runs in skipped.items():
        note = f"{number_of(runs, 'combination')} skipped, because model={model} has no option"
        composer.notes[f"{note} {word.partition('=')[0]}"] = None
    return [[*words] for words in remaining]


def _find_choice(words: Sequence[str], group: str) -> str:
    """Return the last choice of `group` among arguments; "" if they choose none."""
    choices = (word.lstrip("+").partition("=") for word in reversed(words))
    return next((name for key, _, name in choices if key == group), "")


def _read_mapping(path: str, key: str, composer: Composer) -> Mapping[str, Any] | None:
    """Return the mapping at `key` of the file `path`; None if there is no such file or mapping."""
    file = composer.files.find(path)
    node = None if file is None else file.values.get(key)
    return node if isinstance(node, Mapping) else None
