"""The sweep of a command: its combinations, its search, or the options of an earlier search."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lra.composition.hydra_entry import composed
from lra.composition.python_words import word
from lra.composition.run import Composed
from lra.errors import ConfigError
from lra.sweep.agent import agents_sweep
from lra.sweep.cell_list import build
from lra.sweep.model_names import flatten
from lra.sweep.sweep import Sweep
from lra.tuning.advance import finals
from lra.tuning.declaration import ONCE, check_word, declared_search, options_of
from lra.tuning.growing_search import GrowingSearch

_MOST = 3
"""At most so many options are named."""


def plan_sweep(
    entries: Sequence[Composed], *, elsewhere: bool
) -> tuple[Sweep, GrowingSearch | None]:
    """Return the sweep of the cells that are known by now, and its search; None: no search.

    Nothing is written: see `GrowingSearch.keep`.

    Args:
        entries: The configurations that were composed from the command.
        elsewhere: Whether the cells are meant for another machine.

    Raises:
        ConfigError: They cannot be planned.
    """
    searched = entries[0].searched
    if searched is None:
        several = entries[0].several and not agents_sweep()  # an agent's run is one training
        return build(entries, elsewhere=elsewhere, several=several), None

    if (name := searched.options["from"]) is not None:
        trainings = [*_transfer(entries, str(name))]
        return build(trainings, elsewhere=elsewhere, several=True), None
    record, root = declared_search(entries), Path(entries[0].config["results"])
    once = tuple(word for word in entries[0].overrides if word.startswith(ONCE))
    growing = GrowingSearch(record, root, once, elsewhere)
    return growing.sweep(), growing


def _transfer(entries: Sequence[Composed], name: str) -> Iterator[Composed]:
    """Yield trainings with the options that the search `name` chose, and with these arguments."""
    first, options = entries[0], options_of(entries[0])
    where, root = f"search.from={name}", Path(first.config["results"])
    assert first.searched is not None
    of_models = first.searched.options["for_model"]
    if first.searched.ranges or first.searched.options["params"] or of_models:
        raise ConfigError(
            f"{where} trains with the options that this search has chosen, and searches nothing: "
            "remove the ranges"
        )
    if first.config["sweep"] == name:
        raise ConfigError(
            f"{where}: the new trainings need another name than the search: sweep=NAME"
        )
    growing = GrowingSearch.stored(root, name)
    if growing is None:
        raise ConfigError(f"{where}: {root} has no search of this name")
    growing.sweep()  # reads the stored rows, from which the choices follow
    for entry in entries:
        for argument in entry.overrides:
            check_word(argument)
        model = str(entry.config["model"]["name"])
        chosen = [choice for choice in growing.step.choices if choice.arm.model == model]
        arms = {choice.arm.words for choice in chosen}
        if len(arms) != 1 or any(choice.trial is None for choice in chosen):
            why = "the search has not chosen options for this model yet"
            if len(arms) > 1:
                why = "the search compares several versions (arms) of this model"
            raise ConfigError(f"{where}: model={model}: {why}")
        for choice in chosen:
            difference = _differing(entry.config, growing.chosen(choice).config, choice.arm.untuned)
            words = (
                *entry.overrides,
                *([word("runner.transferred", difference)] * bool(difference)),
            )
            of_choice = [*finals(growing.record, choice, words, options)]
            yield from composed(of_choice, growing.record.place)


def _differing(here: Mapping[str, Any], there: Mapping[str, Any], but: Collection[str]) -> str:
    """Return in words where configuration `here` differs from `there`, except options in `but`."""
    ours, theirs = (
        flatten({part: config[part] for part in ("task", "model", "optim")})
        for config in (here, there)
    )
    names = [n for n in ours if ours[n] != theirs.get(n) and n not in but and ".about." not in n]
    if "task.name" in names:
        names = ["task.name", *(n for n in names if not n.startswith("task."))]
    differences = [f"{name}={ours[name]}, not {theirs.get(name)}" for name in names]
    more = f", and {len(differences) - _MOST} more" if len(differences) > _MOST else ""
    return "; ".join(differences[:_MOST]) + more
