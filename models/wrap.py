"""Wrap a module of hidden states [batch, length, width] and a padding mask as a mixer.

    Mine = wrap(MyLayer, causal=False, mask="padding", operations="n^2", sees_order=False)

is a family like ours: its options are those of the constructor of `MyLayer`, whose parameters that
a site knows (see `OF_SITE`) the site gives. What `MyLayer` does by itself, the arguments of `wrap`
claim, and the contract kit checks.
"""

import inspect
import math
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from enum import StrEnum, auto
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from lra.conf.choices import by_name
from lra.conf.short_values import short_list, short_repr
from lra.models.mixer import Family, Growth, Layout, Site, Traits, Unsupported, blanked

OF_SITE: Mapping[str, tuple[str, ...]] = {
    "width": ("width", "dim", "d_model", "hidden_size", "embed_dim", "model_dim", "n_embd"),
    "heads": ("heads", "num_heads", "n_heads", "nhead", "n_head", "num_attention_heads"),
    "layer": ("layer", "layer_idx", "layer_index", "layer_id"),
    "causal": ("causal", "is_causal"),
    "max_length": ("max_length", "max_seq_len", "max_seq_length", "max_position_embeddings"),
}
"""Facts of a site, and the constructor parameters that receive them."""
MASK_NAMES = (
    "attention_mask", "mask", "key_padding_mask", "src_key_padding_mask", "padding_mask", "keep",
)  # fmt: skip
"""Names of forward parameters that take a padding mask."""
SCALARS = (bool, int, float, str, type(None))


class MaskForm(StrEnum):
    """The form in which a module expects padding."""

    none = auto()
    """The module takes no mask: tasks that pad are refused."""
    ones = auto()
    """[batch, length], whole numbers: 1 = real, 0 = padding."""
    keep = auto()
    """[batch, length], boolean: True = real."""
    padding = auto()
    """[batch, length], boolean: True = padding, as PyTorch's `key_padding_mask`."""
    additive = auto()
    """[batch, 1, 1, length], added to scores: 0 = visible, the lowest number = hidden; if causal,
    [batch, 1, length, length], which hides later tokens, too."""


FORM_OF_NAME = {"keep": MaskForm.keep} | dict.fromkeys(
    ("key_padding_mask", "src_key_padding_mask", "padding_mask"), MaskForm.padding
)
FORM_OF_PACKAGE = {
    "transformers": MaskForm.additive,
    "fla": MaskForm.ones,
    "x_transformers": MaskForm.keep,
}


@by_name
def wrap(
    module: Callable[..., nn.Module],
    /,
    *,
    causal: bool | None = None,
    mask: MaskForm | None = None,
    mask_argument: str | None = None,
    operations: str = "n",
    memory: str = "n",
    sees_order: bool = True,
    positions: list[str] | None = None,
    any_length: bool = True,
    training_noise: bool = False,
) -> Callable[..., "WrappedModule"]:
    """Return a module's class as a mixer, for `lra.verify` or for the `class_path` of a YAML file.

    Its weights are drawn as those of our families, from the seed of the model and the layer.

    Args:
        module: A class of `nn.Module` whose constructor takes the width (see `OF_SITE`), or a
            function of `site` that returns a module; other parameters become options.
        causal: Whether it looks at the past and the present alone. None: as the site asks, which a
            parameter `causal` or `is_causal`, or the function of `site`, applies.
        mask: How it is told of padding. None: as the name of the parameter, or the package, tells.
        mask_argument: Parameter of its `forward` that takes the mask; None: the first that is one
            of `MASK_NAMES`.
        operations: How the products grow with the length: 1, n, n log n, n^1.5, n^2.
        memory: The same of what autograd keeps.
        sees_order: False: where it sees later tokens, these are a set, as to attention without
            positions: permuted ones give outputs permuted alike.
        positions: Encodings that a function of `site` applies where `site.positions` asks for them.
        any_length: Whether sequences may be longer than the site says.
        training_noise: Whether training draws, as dropout does.

    Returns:
        A function of `(site, *, option=default)` that builds the mixer.

    Raises:
        ValueError: Width and heads do not suffice to build it, nothing tells whether it is causal
            or in which form its class takes a mask, or a growth is none.

    Examples:
        >>> import lra, torch
        >>> def gru(site):
        ...     return torch.nn.GRU(site.width, site.width, batch_first=True)
        >>> lra.verify(lra.wrap(gru, causal=True), max_length=64).passed
        True
    """
    name = getattr(module, "__qualname__", type(module).__name__)
    if not callable(module):
        raise ValueError(
            f"got {short_repr(module)}; wanted a class of nn.Module, or a function of `site`"
        )
    if isinstance(module, nn.Module):
        raise ValueError(
            f"got an instance of {name}, which every layer and seed would share; wanted its class, "
            "or a function of `site` that builds it"
        )
    given, options = _parameters(module, name)
    unsaid = []
    if causal is None and "causal" not in given.values() and "site" not in given:
        unsaid.append(
            f"lra cannot find out whether {name} attends to later tokens, because its constructor "
            f"takes neither {' nor '.join(OF_SITE['causal'])}: set causal=true if it never "
            "does, else causal=false"
        )
    if inspect.isclass(module) and issubclass(module, nn.Module):
        try:
            _form(module, _inputs(module.forward)[1:], name, mask, mask_argument)
        except ValueError as error:
            unsaid.append(str(error))
    if unsaid:
        raise ValueError("; and ".join(unsaid))
    claims = Traits(
        operations=_growth("operations", operations),
        memory=_growth("memory", memory),
        positions=frozenset(positions or ()),
        training_noise=training_noise,
    )

    def build(site: Site, **chosen: Any) -> WrappedModule:
        looks_back = site.causal if causal is None else causal
        if site.causal and not looks_back:
            raise Unsupported(
                f"{name} attends to later tokens (causal=false): choose a task that reads the "
                "whole sequence"
            )
        facts = {"site": site, "causal": looks_back}
        arguments = {
            key: facts[fact] if fact in facts else getattr(site, fact)
            for key, fact in given.items()
        }
        with _seeded():
            inner = module(**arguments, **chosen)
        if not isinstance(inner, nn.Module) or isinstance(getattr(inner, "traits", None), Traits):
            raise TypeError(
                f"{name} is a mixer already (it has traits): use it without wrap"
                if isinstance(inner, nn.Module)
                else f"{name} returned {short_repr(inner)}; wanted an nn.Module"
            )
        limit = None if any_length else site.max_length
        ordered = sees_order or looks_back
        here = replace(claims, causal=looks_back, max_length=limit, sees_order=ordered)
        return WrappedModule(inner, name, here, mask, mask_argument)

    build.__name__ = build.__qualname__ = name.rpartition(".")[2]
    build.__module__, build.__doc__ = str(module.__module__), module.__doc__
    site = inspect.Parameter("site", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=Site)
    build.__signature__ = inspect.Signature([site, *options])  # type: ignore[attr-defined]
    build.__annotations__ = {each.name: each.annotation for each in (site, *options)}
    return build


class WrappedModule(Family):
    """A mixer around a module, without a state along time.

    Args:
        inner: The module.
        name: For messages.
        claims: What it says of itself, but for padding.
        mask: How it is told of padding; None: as `wrap` finds out.
        mask_argument: Parameter that takes the mask; None: as `wrap` finds out.
    """

    order_hint = "set sees_order=false, after --wrap or in lra.wrap"

    def __init__(
        self,
        inner: nn.Module,
        name: str,
        claims: Traits,
        mask: MaskForm | None,
        mask_argument: str | None,
    ) -> None:
        super().__init__()
        self.inner, self.name = inner, name
        parameters = _inputs(inner.forward)
        self.mask, mask_argument = _form(type(inner), parameters, name, mask, mask_argument)
        self.mask_argument = mask_argument or ""
        variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        missing = [
            each.name
            for each in parameters[1:]
            if each.default is each.empty and each.kind not in variadic
        ]
        if unknown := [each for each in missing if each != mask_argument]:
            raise ValueError(
                f"{name}.forward needs {short_list(unknown)}, which lra does not provide: wanted "
                "(hidden states, mask) with defaults for all else; write a module whose forward "
                "makes these and calls it, or name the mask with mask_argument"
            )
        self.required = mask_argument in missing
        self.padding_hint = (
            f"; {name} receives mask={self.mask.name} as {mask_argument}: set another form of the "
            "mask, or mask=none if the module includes padding"
        )
        supports = frozenset[str]() if self.mask == MaskForm.none else frozenset({"keep"})
        self.traits = replace(claims, supports=supports)

    def forward(self, x: Float[Tensor, "b l d"], layout: Layout) -> Float[Tensor, "b l d"]:
        """Mix along the length.

        Raises:
            Unsupported: The batch is padded, and the module takes no mask.
            ValueError: What comes back are no hidden states of the same shape.
        """
        if layout.keep is not None and self.mask == MaskForm.none:
            raise Unsupported(
                f"{self.name} takes no mask, and this batch is padded: choose a task without "
                "padding, or model.backbone.padding=attended, which changes the function"
            )
        arguments = {}
        if self.mask != MaskForm.none:
            hidden = self._mask(x, layout.keep)
            if hidden is not None:
                arguments[self.mask_argument] = hidden
        y = self.inner(blanked(x, layout, self.traits), **arguments)
        whole = y
        while isinstance(y, tuple | list | Mapping) and y:
            y = next(iter(y.values() if isinstance(y, Mapping) else y))
        if not isinstance(y, Tensor) or y.shape != x.shape:
            seen = f"shape {[*y.shape]}" if isinstance(y, Tensor) else short_repr(y)
            within = "" if y is whole else f" (in a {type(whole).__name__})"
            raise ValueError(
                f"{self.name} returned {seen}{within} for "
                f"hidden states of shape {[*x.shape]} [batch, length, width]; wanted the same "
                "shape, alone or first in a tuple: write a module whose forward returns that"
            )
        return y

    def _mask(self, x: Float[Tensor, "b l d"], keep: Bool[Tensor, "b l"] | None) -> Tensor | None:
        """Return the mask in the form that the module wants; None: it may be left out."""
        triangle = self.mask == MaskForm.additive and self.traits.causal
        if keep is None:
            if not (self.required or triangle):
                return None
            keep = x.new_ones(x.shape[:2], dtype=torch.bool)
        # A softmax over nothing is NaN: a row of padding alone sees its first token, zeros.
        keep = torch.cat((keep[:, :1] | ~keep.any(1, keepdim=True), keep[:, 1:]), dim=1)
        match self.mask:
            case MaskForm.ones:
                return keep.long()
            case MaskForm.keep:
                return keep
            case MaskForm.padding:
                return ~keep
        seen = keep[:, None, None]
        if triangle:
            length = x.shape[1]
            seen = seen & torch.ones(length, length, dtype=torch.bool, device=x.device).tril()
        kind, low = x.device.type, x.dtype
        if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
            low = torch.get_autocast_dtype(kind)
        return x.new_zeros(()).where(seen, torch.finfo(low).min)


def _parameters(
    module: Callable[..., nn.Module], name: str
) -> tuple[dict[str, str], list[inspect.Parameter]]:
    """Return the parameters that a site gives, each with its fact, and the options.

    Raises:
        ValueError: There is another parameter without a default, and it is no plain number or text.
    """
    given, options, foreign = dict[str, str](), [], []
    facts = {each: fact for fact, names in OF_SITE.items() for each in names}
    parameters = inspect.signature(module).parameters
    for each in parameters.values():
        if each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD):
            continue
        default = each.default
        plain = each.annotation in SCALARS
        if each.name == "site" or ("site" not in parameters and each.name in facts):
            given[each.name] = facts.get(each.name, "site")
        elif default is each.empty and (not plain or each.kind is each.POSITIONAL_ONLY):
            foreign.append(each.name)
        elif default is each.empty or type(default) in SCALARS:
            finite = not isinstance(default, float) or math.isfinite(default)
            typed = plain and (default is each.empty or type(default) is each.annotation)
            annotation = each.annotation if typed else Any
            if finite:
                options.append(each.replace(kind=each.KEYWORD_ONLY, annotation=annotation))
    if foreign:
        raise ValueError(
            f"{name} cannot be built from width and heads alone: its constructor needs "
            f"{short_list(foreign)}; wrap a function that builds it, for example def "
            f"make(site): return {name}(…), from site.width and site.heads"
        )
    return given, options


def _inputs(forward: Callable[..., Any]) -> list[inspect.Parameter]:
    return [*inspect.signature(forward).parameters.values()]


def _form(
    kind: type[nn.Module],
    parameters: Sequence[inspect.Parameter],
    name: str,
    mask: MaskForm | None,
    argument: str | None,
) -> tuple[MaskForm, str | None]:
    """Return how a module wants to be told of padding, and by which parameter of its forward.

    Raises:
        ValueError: Nothing tells it, or no parameter can take a mask in the form that is claimed.
    """
    if argument is None and mask != MaskForm.none:
        others = {each.name for each in parameters[1:]}
        argument = next((each for each in MASK_NAMES if each in others), None)
    if argument is None:
        if mask in (None, MaskForm.none):
            return MaskForm.none, None
        raise ValueError(
            f"{name}.forward has no parameter {' or '.join(MASK_NAMES)} that could get "
            f"mask={mask.name}: set mask_argument=ITS_NAME, or mask=none"
        )
    package = str(kind.forward.__module__).partition(".")[0]
    form = mask or FORM_OF_NAME.get(argument) or FORM_OF_PACKAGE.get(package)
    if form is None:
        raise ValueError(
            f"{name}.forward takes {argument!r}, but lra cannot find out the form of this mask: "
            "set mask=ones ([batch, length], 1 = real), keep (boolean, True = real), padding "
            "(boolean, True = padding), additive ([batch, 1, 1, length], 0 or the lowest "
            "number), or none"
        )
    return form, argument


def _growth(key: str, text: str) -> Growth:
    """Return the growth that a text such as n^2 or n log n says."""
    power, log = text.removesuffix(" log n"), text.endswith(" log n")
    match = re.fullmatch(r"1|n(?:\^(\d+(?:\.\d+)?))?", power.replace("²", "^2"))
    if match is None:
        raise ValueError(f"{key}: got {short_repr(text)}; wanted 1, n, n log n, n^1.5 or n^2")
    return Growth(0.0 if power == "1" else float(match[1] or 1.0), log=log)


@contextmanager
def _seeded() -> Iterator[None]:
    """Let numpy and Python draw from the seed that PyTorch has here, and restore them."""
    seed, python, arrays = torch.initial_seed(), random.getstate(), np.random.get_state()
    random.seed(seed)
    np.random.seed(seed % 2**32)
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(arrays)
