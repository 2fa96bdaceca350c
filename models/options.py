"""Options of a family, declared as annotated attributes of its class; the constructor is made.

    @options
    class MyMixer(Family):
        features: Count = 64
        \"\"\"Channels of a feature map.\"\"\"

        def build(self, site: Site) -> None: ...       # reads self.features

makes the constructor `MyMixer(site, *, features: Count = 64)`, which refuses a number out of
bounds. Options of decorated base classes are options here, too; annotated attributes of other
classes are plain attributes.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, get_origin

from torch import nn


def declared_options(family: type) -> Mapping[str, inspect.Parameter]:
    """Return the options of a family by name, as keyword parameters; options of bases come first.

    An option is an annotated attribute with a default, in a class that `@options` has marked.
    """
    parameters = dict[str, inspect.Parameter]()
    for base in reversed(family.__mro__):
        attributes = vars(base)
        if "declares" not in attributes:
            continue
        for name, kind in inspect.get_annotations(base).items():
            origin: Any = get_origin(kind)
            if name in attributes and origin is not ClassVar:
                parameters[name] = inspect.Parameter(
                    name, inspect.Parameter.KEYWORD_ONLY, annotation=kind, default=attributes[name]
                )
    return parameters


def constructor(family: type[nn.Module], site_type: type) -> Callable[..., None]:
    """Return `__init__(self, site, *, options)`, which sets the options and calls `build(site)`.

    It also gets the signature that a hand-written constructor with these options would have.
    """
    options = declared_options(family)

    def construct(self: Any, site: Any, **given: Any) -> None:
        for name in given.keys() - options.keys():
            raise TypeError(
                f"{family.__name__} has no option {name!r}: it has {', '.join(options) or 'none'}"
            )
        nn.Module.__init__(self)
        for name, option in options.items():
            setattr(self, name, given.get(name, option.default))
        self.build(site)

    positional = [
        inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=kind)
        for name, kind in (("self", inspect.Parameter.empty), ("site", site_type))
    ]
    signature = inspect.Signature([*positional, *options.values()])
    construct.__signature__ = signature  # type: ignore[attr-defined]
    hints = {name: option.annotation for name, option in options.items()}
    construct.__annotations__ = {"site": site_type, **hints, "return": None}
    construct.__name__, construct.__module__ = "__init__", family.__module__
    construct.__qualname__ = f"{family.__qualname__}.__init__"
    return construct
