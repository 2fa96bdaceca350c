"""One policy for options that do not apply: refused where they differ from their default.

An option is idle where nothing reads it next to what else is chosen: other options, the direction,
the task. Whoever has such options declares what each of them needs; the refusal says the value
seen, the value wanted and the way out. A value equal to the default is never refused.
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
    ("causal", False): "a model that attends to both sides",
    ("cls", True): "a CLS vector (model.backbone.pooling=cls)",
})  # fmt: skip
"""Facts of the site that options may need, as messages call them."""


class Need:
    """Options that act only where something holds.

    `Need("iterations", inverse=Inverse.iterative)` needs an option, of which a tuple lists several
    values; `Need("chunk", causal=True)` needs a fact of the site; and what is neither has
    words and a test of its own: `Need("rank", words="more than one", holds=...)`.

    Args:
        options: Their names.
        words: What is needed, as messages call it.
        holds: Whether it is there, from the site (or what the task says) and the options.
        owner: One option, or one fact, with its value or values.
    """

    def __init__(
        self,
        *options: str,
        words: str = "",
        holds: Callable[[Any, Any], bool] | None = None,
        **owner: Any,
    ) -> None:
        self.options, self.owner = options, None
        if holds is not None:
            self.words, self.holds = words, holds
            return
        ((name, wanted),) = owner.items()
        fact = FACTS.get((name, wanted)) if isinstance(wanted, bool) else None
        if fact is not None:
            self.words, self.holds = fact, lambda site, _: getattr(site, name) == wanted
            return
        values = wanted if isinstance(wanted, tuple) else (wanted,)
        self.owner, self.words = name, f"{name}={' or '.join(map(format_value, values))}"
        self.holds = lambda _, chosen: getattr(chosen, name) in values

    def sentence(self, name: str, chosen: Any, default: object) -> str:
        """Return why one of the options is refused."""
        lack = f"without {self.words}"
        if self.owner is not None:
            lack = f"under {self.owner}={format_value(getattr(chosen, self.owner))}"
        return (
            f"{name} has no effect {lack}: got {format_value(getattr(chosen, name))}; leave it at "
            f"{format_value(default)}, or choose {self.words}"
        )


def idle(
    needs: Collection[Need],
    options: Mapping[str, Any],
    defaults: Mapping[str, Any],
    site: object = None,
) -> dict[str, str]:
    """Return the options that differ from their defaults and do not act, each with a sentence.

    Args:
        needs: What options need.
        options: Every option.
        defaults: Of every option.
        site: Where they are to act, with the facts that are needed.
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
    """Return the options of a family that do not act at a site, each with a sentence.

    Args:
        family: With `needs` and `fixed`, as `lra.models.mixer.Family` has them; others have none.
        site: Where it is built.
        given: Options that are not left at their defaults.
    """
    needs, fixed = getattr(family, "needs", ()), fixed_in(family, given)
    if not (needs or fixed):
        return {}
    usual = defaults(family)
    options, reasons = {**usual, **given}, dict[str, str]()
    for name, value in fixed.items():
        if options[name] not in (usual[name], value):
            how = "has no use for" if value is None else "fixes"
            at = "" if value is None else f" at {format_value(value)}"
            reasons[name] = (
                f"variant=lra {how} {name}{at}: got {format_value(options[name])}; leave it at "
                f"{format_value(usual[name])}, or choose variant=faithful"
            )
    rest = idle(needs, {**options, **fixed}, {**usual, **fixed}, site)
    return {**reasons, **{name: why for name, why in rest.items() if name not in fixed}}


def fixed_in(family: Callable[..., Any], given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what the variant of a family fixes, by option: see `lra.models.mixer.Family.fixed`."""
    if not hasattr(family, "fixed"):
        return {}
    return dict(family.fixed(SimpleNamespace(**{**defaults(family), **given})))


@cache
def defaults(family: Callable[..., Any]) -> Mapping[str, Any]:
    """Return the defaults of the keyword-only parameters of a constructor, or of a dataclass."""
    if is_dataclass(family):
        return {
            each.name: each.default if each.default_factory is MISSING else each.default_factory()
            for each in fields(family)
        }
    parameters = inspect.signature(family).parameters.values()
    return {each.name: each.default for each in parameters if each.kind is each.KEYWORD_ONLY}


def format_value(value: object) -> str:
    """Return a value as YAML spells it."""
    if isinstance(value, list):
        return f"[{', '.join(map(format_value, value))}]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Enum):
        return str(value.value)
    return "null" if value is None else str(value)
