"""Refuse options that have no effect, if they differ from their default.

An option is idle if no code reads it with the other options, the direction or the task that you
chose. Families and the backbone declare what each such option needs. The error names the value that
you set, the default, and the choice with which the option has an effect.
"""

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache
from types import MappingProxyType, SimpleNamespace
from typing import Any

FACTS: Mapping[tuple[str, bool], str] = MappingProxyType({
    ("causal", True): "a causal model",
    ("causal", False): "a model that attends to both earlier and later tokens",
    ("cls", True): "a CLS vector (model.backbone.pooling=cls)",
})  # fmt: skip
"""Facts of the site that options may need, with their texts in messages."""


class Need:
    """A condition without which some options have no effect.

    `Need("iterations", inverse=Inverse.iterative)`: `iterations` needs this value of `inverse`
    (a tuple lists several values). `Need("chunk", causal=True)`: `chunk` needs this fact of the
    site. `Need("rank", words="more than one", holds=...)` has a text and a test of its own.

    Args:
        options: Names of the options that need the condition.
        words: The condition, as messages call it.
        holds: Returns whether the condition holds, given the site (or facts of the task) and the
            options.
        owner: One option or fact with its needed value or values, in place of `words` and `holds`.
    """

    def __init__(
        self,
        *options: str,
        words: str = "",
        holds: Callable[[Any, Any], bool] | None = None,
        **owner: Any,
    ) -> None:
        """Store the text and the test, or derive both from the one entry of `owner`.

        `self.owner` is the name of the option that the condition is about; None if it is about a
        fact of the site, or has a test of its own.
        """
        self.options, self.owner = options, None
        if holds is not None:
            self.words, self.holds = words, holds
            return
        ((name, wanted),) = owner.items()
        fact = FACTS.get((name, wanted)) if isinstance(wanted, bool) else None
        if fact is not None:  # a fact of the site; anything else is an option
            self.words, self.holds = fact, lambda site, _: getattr(site, name) == wanted
            return
        values = wanted if isinstance(wanted, tuple) else (wanted,)
        self.owner, self.words = name, f"{name}={' or '.join(map(format_value, values))}"
        self.holds = lambda _, chosen: getattr(chosen, name) in values

    def sentence(self, name: str, chosen: Any, default: object) -> str:
        """Return the message that refuses the option `name`.

        `chosen` has all options as attributes; `default` is the default of `name`.
        """
        reason = f"without {self.words}"
        if self.owner is not None:
            reason = f"under {self.owner}={format_value(getattr(chosen, self.owner))}"
        return (
            f"{name} has no effect {reason}: got {format_value(getattr(chosen, name))}; leave it "
            f"at {format_value(default)}, or choose {self.words}"
        )


def idle(
    needs: Collection[Need],
    options: Mapping[str, Any],
    defaults: Mapping[str, Any],
    site: object = None,
) -> dict[str, str]:
    """Return the options that differ from their defaults but have no effect, each with a message.

    Args:
        needs: Conditions of options.
        options: The value of every option, by name.
        defaults: The default of every option, by name.
        site: The site of the mixer, or the facts of the task, which `needs` test.
    """
    chosen, reasons = SimpleNamespace(**options), dict[str, str]()
    for need in needs:
        if need.holds(site, chosen):
            continue
        for name in need.options:
            if options[name] != defaults[name] and name not in reasons:
                reasons[name] = need.sentence(name, chosen, defaults[name])
    return reasons


def idle_in(family: Callable[..., Any], site: object, given: Mapping[str, Any]) -> dict[str, str]:
    """Return the options of a family that have no effect at a site, each with a message.

    Args:
        family: A constructor, perhaps with `needs` and `fixed` (see `lra.models.mixer.Family`).
        site: Where the mixer is built.
        given: The options that are set, by name; all others have their defaults.
    """
    needs, fixed = getattr(family, "needs", ()), fixed_in(family, given)
    if not (needs or fixed):
        return {}
    default_of = defaults(family)
    options, reasons = {**default_of, **given}, dict[str, str]()
    for name, value in fixed.items():
        if options[name] not in (default_of[name], value):
            rule = f"fixes {name} at {format_value(value)}"
            if value is None:
                rule = f"has no use for {name}"
            reasons[name] = (
                f"variant=lra {rule}: got {format_value(options[name])}; leave it at "
                f"{format_value(default_of[name])}, or choose variant=faithful"
            )
    # A fixed option counts as a default here, so that only the other options are judged.
    others = idle(needs, {**options, **fixed}, {**default_of, **fixed}, site)
    return {**reasons, **{name: text for name, text in others.items() if name not in fixed}}


def fixed_in(family: Callable[..., Any], given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the options that a family's `variant` fixes, and their values: see `Family.fixed`."""
    if not hasattr(family, "fixed"):
        return {}
    return dict(family.fixed(SimpleNamespace(**{**defaults(family), **given})))


@cache
def defaults(family: Callable[..., Any]) -> Mapping[str, Any]:
    """Return the defaults, by name, of a dataclass or a constructor's keyword-only parameters."""
    if is_dataclass(family):
        return {
            entry.name: (
                entry.default if entry.default_factory is MISSING else entry.default_factory()
            )
            for entry in fields(family)
        }
    parameters = inspect.signature(family).parameters.values()
    return {
        option.name: option.default for option in parameters if option.kind is option.KEYWORD_ONLY
    }


def format_value(value: object) -> str:
    """Return `value` as a YAML file would write it, for example true, null or [1, 2]."""
    if isinstance(value, list):
        return f"[{', '.join(map(format_value, value))}]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Enum):
        return str(value.value)
    return "null" if value is None else str(value)
