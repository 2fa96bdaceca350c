"""Options of a family, declared as annotated attributes of its class; the constructor is made.

    @options
    class MyMixer(Family):
        features: Count = 64
        \"\"\"Channels of a feature map.\"\"\"

        def build(self, site: Site) -> None: ...       # reads self.features

is `MyMixer(site, *, features: Count = 64)`, which refuses a number that is out of its bound. What
decorated bases declare are options too; what others annotate are attributes alone.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, get_origin

from torch import nn


def declared_options(family: type) -> Mapping[str, inspect.Parameter]:
    """Return the options of a class, those of its bases first."""
    found = dict[str, inspect.Parameter]()
    for base in reversed(family.__mro__):
        own = vars(base)
        for name, kind in inspect.get_annotations(base).items() if "declares" in own else ():
            origin: Any = get_origin(kind)
            if name in own and origin is not ClassVar:
                found[name] = inspect.Parameter(
                    name, inspect.Parameter.KEYWORD_ONLY, annotation=kind, default=own[name]
                )
    return found


def constructor(family: type[nn.Module], site_type: type) -> Callable[..., None]:
    """Return `__init__(self, site, *, options)`, which sets the options and calls `build(site)`."""
    options = declared_options(family)

    def construct(self: Any, site: Any, **given: Any) -> None:
        for name in given.keys() - options.keys():
            raise TypeError(f"{family.__name__}.__init__() got an unexpected argument {name!r}")
        nn.Module.__init__(self)
        for name, option in options.items():
            setattr(self, name, given.get(name, option.default))
        self.build(site)

    first = [
        inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=kind)
        for name, kind in (("self", inspect.Parameter.empty), ("site", site_type))
    ]
    construct.__signature__ = inspect.Signature([*first, *options.values()])  # type: ignore[attr-defined]
    hints = {name: each.annotation for name, each in options.items()}
    construct.__annotations__ = {"site": site_type, **hints, "return": None}
    construct.__name__, construct.__module__ = "__init__", family.__module__
    construct.__qualname__ = f"{family.__qualname__}.__init__"
    return construct
