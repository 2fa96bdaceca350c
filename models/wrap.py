"""Turn a module that maps hidden states [batch, length, width] into a mixer.

    Mine = wrap(MyLayer, causal=False, mask="padding", operations="n^2", sees_order=False)

makes a family like those of lra. The site passes the constructor of `MyLayer` the parameters that
`OF_SITE` lists, such as the width; its other parameters become options. The arguments of `wrap`
claim how `MyLayer` behaves, and `lra verify` checks these claims.
"""

import inspect
import math
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from enum import StrEnum, auto
from typing import Any, ClassVar

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
"""Facts of a site, each with the names of constructor parameters that receive it."""
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
    """Return a function that builds a mixer around your module.

    Pass the result to `lra.verify`, or name it as the `class_path` of a YAML file. The module's
    weights are drawn from the seed of the model and the layer, like those of other families.

    Args:
        module: A class of `nn.Module` whose constructor takes the width (see `OF_SITE`), or a
            function of `site` that returns a module; other parameters become options.
        causal: Whether an output depends only on its own and earlier tokens. None: the site
            decides; the module reads it from a parameter `causal` or `is_causal`, or from `site`.
        mask: Form in which the module takes a padding mask. None: derived from the name of the
            mask parameter, or from the package that the module comes from.
        mask_argument: Parameter of its `forward` that takes the mask; None: the first that is one
            of `MASK_NAMES`.
        operations: How the number of operations grows with the length n: 1, n, n log n, n^1.5 or
            n^2.
        memory: How the activations that autograd saves grow, in the same notation.
        sees_order: False if a bidirectional module treats tokens as a set, like attention without
            positions: permuting the tokens permutes the outputs in the same way.
        positions: Encodings that a function of `site` applies if `site.positions` names them.
        any_length: Whether sequences may be longer than `site.max_length`.
        training_noise: Whether the module draws random numbers in training, other than dropout.

    Returns:
        A function of `(site, *, option=default)` that builds the mixer.

    Raises:
        ValueError: The constructor needs more than a site provides, lra cannot find out whether
            the module is causal or which mask it takes, or a growth is not understood.

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
            f"got {short_repr(module)}; wanted a subclass of nn.Module, or a function that takes "
            "`site` and returns a module"
        )
    if isinstance(module, nn.Module):
        raise ValueError(
            f"got an instance of {name}, whose weights all layers and seeds would share; wanted "
            "the class itself, or a function that takes `site` and builds an instance"
        )
    from_site, options = _sort_parameters(module, name)
    unknown_facts = []
    if causal is None and "causal" not in from_site.values() and "site" not in from_site:
        unknown_facts.append(
            f"lra cannot find out whether {name} attends to later tokens, because its constructor "
            f"has no parameter {' or '.join(OF_SITE['causal'])}: set causal=true if it never "
            "attends to later tokens, otherwise causal=false"
        )
    if inspect.isclass(module) and issubclass(module, nn.Module):
        try:
            _find_mask(module, _list_inputs(module.forward)[1:], name, mask, mask_argument)
        except ValueError as error:
            unknown_facts.append(str(error))
    if unknown_facts:
        raise ValueError("; and ".join(unknown_facts))
    claims = Traits(
        operations=_parse_growth("operations", operations),
        memory=_parse_growth("memory", memory),
        positions=frozenset(positions or ()),
        training_noise=training_noise,
    )

    def build(site: Site, **chosen: Any) -> WrappedModule:
        """Build the module with facts of `site` and the `chosen` options, and wrap it."""
        is_causal = site.causal if causal is None else causal
        if site.causal and not is_causal:
            raise Unsupported(
                f"{name} attends to later tokens (causal=false), and this task needs a causal "
                "model: choose a task that reads the whole sequence"
            )
        facts = {"site": site, "causal": is_causal}
        arguments = {
            key: facts[fact] if fact in facts else getattr(site, fact)
            for key, fact in from_site.items()
        }
        with _seed_other_generators():
            inner = module(**arguments, **chosen)
        if not isinstance(inner, nn.Module) or isinstance(getattr(inner, "traits", None), Traits):
            raise TypeError(
                f"{name} already is a mixer, because it has `traits`: use it without lra.wrap"
                if isinstance(inner, nn.Module)
                else f"{name} returned {short_repr(inner)}; wanted an instance of nn.Module"
            )
        max_length = None if any_length else site.max_length
        depends_on_order = sees_order or is_causal
        traits = replace(
            claims, causal=is_causal, max_length=max_length, sees_order=depends_on_order
        )
        return WrappedModule(inner, name, traits, mask, mask_argument)

    build.__name__ = build.__qualname__ = name.rpartition(".")[2]
    build.__module__, build.__doc__ = str(module.__module__), module.__doc__
    site = inspect.Parameter("site", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=Site)
    build.__signature__ = inspect.Signature([site, *options])  # type: ignore[attr-defined]
    build.__annotations__ = {parameter.name: parameter.annotation for parameter in (site, *options)}
    return build


class WrappedModule(Family):
    """A mixer around a module, without a state along time.

    Args:
        inner: The module.
        name: Its name in messages.
        claims: Traits of the module, except whether it supports a padding mask.
        mask: Form of the padding mask; None: derived as in `wrap`.
        mask_argument: Parameter that takes the mask; None: derived as in `wrap`.
    """

    order_hint = "set sees_order=false (with --wrap, or as an argument of lra.wrap)"
    may_round: ClassVar[bool] = True
    """Whether it may compute in float32 inside, as the softmax of most language models does."""

    def __init__(
        self,
        inner: nn.Module,
        name: str,
        claims: Traits,
        mask: MaskForm | None,
        mask_argument: str | None,
    ) -> None:
        """Find out how `inner` takes a mask, and check that it needs no other argument."""
        super().__init__()
        self.inner, self.name = inner, name
        parameters = _list_inputs(inner.forward)
        self.mask, mask_argument = _find_mask(type(inner), parameters, name, mask, mask_argument)
        self.mask_argument = mask_argument or ""
        variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        required = [
            parameter.name
            for parameter in parameters[1:]
            if parameter.default is parameter.empty and parameter.kind not in variadic
        ]
        if unknown := [argument for argument in required if argument != mask_argument]:
            raise ValueError(
                f"{name}.forward needs {short_list(unknown)}, which lra does not provide: wanted "
                "hidden states, a mask, and defaults for all other arguments; wrap a module whose "
                "forward computes these arguments, or set mask_argument if one is the mask"
            )
        self.required = mask_argument in required  # whether to pass a mask without padding, too
        self.padding_hint = (
            f"; {name} receives its padding mask as {mask_argument}, in the form "
            f"mask={self.mask.name}: set another form of the mask, or mask=none if the module "
            "reads padding like other tokens"
        )
        supports = frozenset[str]() if self.mask == MaskForm.none else frozenset({"keep"})
        self.traits = replace(claims, supports=supports)

    def forward(self, x: Float[Tensor, "b l d"], layout: Layout) -> Float[Tensor, "b l d"]:
        """Call the module on `x` (with zeros at padding) and the padding mask in its form.

        Raises:
            Unsupported: The batch is padded, and the module takes no mask.
            ValueError: The module returns no hidden states of the same shape as `x`.
        """
        if layout.keep is not None and self.mask == MaskForm.none:
            raise Unsupported(
                f"{self.name} takes no padding mask, but this batch is padded: choose a task "
                "without padding, or model.backbone.padding=attended, with which the model reads "
                "padding like other tokens"
            )
        arguments = {}
        if self.mask != MaskForm.none:
            mask = self._make_mask(x, layout.keep)
            if mask is not None:
                arguments[self.mask_argument] = mask
        # Contiguous: GPT-2's attention, among others, takes views of its input.
        y = self.inner(blanked(x, layout, self.traits).contiguous(), **arguments)
        result = y
        # Hidden states may be the first entry of a tuple, a list or a mapping.
        while isinstance(y, tuple | list | Mapping) and y:
            y = next(iter(y.values() if isinstance(y, Mapping) else y))
        if not isinstance(y, Tensor) or y.shape != x.shape:
            value = f"shape {[*y.shape]}" if isinstance(y, Tensor) else short_repr(y)
            container = "" if y is result else f" (in a {type(result).__name__})"
            raise ValueError(
                f"{self.name} returned {value}{container} for "
                f"hidden states of shape {[*x.shape]} [batch, length, width]; wanted a tensor of "
                "the same shape, or a tuple whose first entry is one: write a module whose forward "
                "returns one of these"
            )
        # float32 among half precision would make all later layers compute in float32.
        return y if _in_autocast(x) else y.to(x.dtype)

    def _make_mask(
        self, x: Float[Tensor, "b l d"], keep: Bool[Tensor, "b l"] | None
    ) -> Tensor | None:
        """Return the padding mask in the module's form; None: no mask has to be passed."""
        hides_later = self.mask == MaskForm.additive and self.traits.causal
        if keep is None:
            if not (self.required or hides_later):
                return None
            keep = x.new_ones(x.shape[:2], dtype=torch.bool)
        # A softmax over no token is NaN, so in a row without real tokens the first one counts.
        keep = torch.cat((keep[:, :1] | ~keep.any(1, keepdim=True), keep[:, 1:]), dim=1)
        match self.mask:
            case MaskForm.ones:
                return keep.long()
            case MaskForm.keep:
                return keep
            case MaskForm.padding:
                return ~keep
        visible = keep[:, None, None]
        if hides_later:
            length = x.shape[1]
            visible = visible & torch.ones(length, length, dtype=torch.bool, device=x.device).tril()
        # The lowest number must not overflow in the type that autocast gives to scores.
        score_dtype = torch.get_autocast_dtype(x.device.type) if _in_autocast(x) else x.dtype
        return x.new_zeros(()).where(visible, torch.finfo(score_dtype).min)


def _in_autocast(x: Tensor) -> bool:
    """Tell whether autocast is on where `x` is computed."""
    kind = x.device.type
    return torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)


def _sort_parameters(
    module: Callable[..., nn.Module], name: str
) -> tuple[dict[str, str], list[inspect.Parameter]]:
    """Return the constructor parameters that the site fills, each with its fact, and the options.

    Plain numbers or texts become options, except for those with an infinite default.

    Raises:
        ValueError: There is another parameter without a default, and it is no plain number or text.
    """
    from_site, options, unknown = dict[str, str](), [], []
    facts = {parameter: fact for fact, names in OF_SITE.items() for parameter in names}
    parameters = inspect.signature(module).parameters
    for parameter in parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        default = parameter.default
        required, plain = default is parameter.empty, parameter.annotation in SCALARS
        if parameter.name == "site" or ("site" not in parameters and parameter.name in facts):
            from_site[parameter.name] = facts.get(parameter.name, "site")
        elif required and (not plain or parameter.kind is parameter.POSITIONAL_ONLY):
            unknown.append(parameter.name)
        elif required or type(default) in SCALARS:
            finite = not isinstance(default, float) or math.isfinite(default)
            # An annotation is kept only if it is a plain type, and that of the default.
            typed = plain and (required or type(default) is parameter.annotation)
            annotation = parameter.annotation if typed else Any
            if finite:
                kind = parameter.KEYWORD_ONLY
                options.append(parameter.replace(kind=kind, annotation=annotation))
    if unknown:
        raise ValueError(
            f"{name} cannot be built from width and heads alone: its constructor needs "
            f"{short_list(unknown)}; wrap a function that builds it from site.width and "
            f"site.heads, for example def make(site): return {name}(…)"
        )
    return from_site, options


def _list_inputs(forward: Callable[..., Any]) -> list[inspect.Parameter]:
    """Return the parameters of a bound or unbound `forward`, in order."""
    return [*inspect.signature(forward).parameters.values()]


def _find_mask(
    kind: type[nn.Module],
    parameters: Sequence[inspect.Parameter],
    name: str,
    mask: MaskForm | None,
    argument: str | None,
) -> tuple[MaskForm, str | None]:
    """Return the form of a module's padding mask, and the parameter of its forward that takes it.

    `mask` and `argument` are what the user sets. If `argument` is None, it is the first parameter
    in `MASK_NAMES`; if `mask` is None, it follows from that name or from the package of `kind`.

    Raises:
        ValueError: The form is unknown, or a form is set but no parameter can take the mask.
    """
    if argument is None and mask != MaskForm.none:
        names = {parameter.name for parameter in parameters[1:]}
        argument = next((candidate for candidate in MASK_NAMES if candidate in names), None)
    if argument is None:
        if mask in (None, MaskForm.none):
            return MaskForm.none, None
        raise ValueError(
            f"{name}.forward has no parameter {' or '.join(MASK_NAMES)}, so lra cannot pass it the "
            f"mask (mask={mask.name}): set mask_argument to the parameter's name, or mask=none"
        )
    package = str(kind.forward.__module__).partition(".")[0]
    form = mask or FORM_OF_NAME.get(argument) or FORM_OF_PACKAGE.get(package)
    if form is None:
        raise ValueError(
            f"{name}.forward takes {argument!r}, but lra cannot find out the form of this mask: "
            "set mask to ones ([batch, length], 1 = real), keep (boolean, True = real), padding "
            "(boolean, True = padding), additive ([batch, 1, 1, length], 0 or the lowest "
            "number), or none"
        )
    return form, argument


def _parse_growth(key: str, text: str) -> Growth:
    """Return the growth that `text` describes, for example "n^2"; `key` names it in messages."""
    power, log = text.removesuffix(" log n"), text.endswith(" log n")
    match = re.fullmatch(r"1|n(?:\^(\d+(?:\.\d+)?))?", power.replace("²", "^2"))
    if match is None:
        raise ValueError(
            f"{key}: got {short_repr(text)}; wanted the growth with the length n, such as 1, n, "
            "n log n, n^1.5 or n^2"
        )
    return Growth(0.0 if power == "1" else float(match[1] or 1.0), log=log)


@contextmanager
def _seed_other_generators() -> Iterator[None]:
    """Seed the generators of Python and NumPy with PyTorch's seed; restore them at the end."""
    seed, python, arrays = torch.initial_seed(), random.getstate(), np.random.get_state()
    random.seed(seed)
    np.random.seed(seed % 2**32)
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(arrays)
