"""Modules written for other libraries become mixers that the contract kit accepts, or are refused.

The layers here have the signatures and the results of what they stand for; the real ones of
transformers and of x-transformers are in tests/parity/test_wrapped_layers.py.
"""

import inspect
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lra.composition.binding import defaults
from lra.models.contract import check_mixer
from lra.models.mixer import Growth, Layout, Site, Traits, Unsupported
from lra.models.wrap import MaskForm, WrappedModule, wrap

SMALL = {"max_length": 64, "width": 16}
SQUARE = {"operations": "n^2", "memory": "n^2", "sees_order": False}


def heads_of(projected: Tensor, heads: int) -> list[Tensor]:
    """Return queries, keys and values, (batch, head, length, width)."""
    return [part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in projected.chunk(3, -1)]


class Attention(nn.Module):
    """As PyTorch's: `key_padding_mask` is True at padding, and a tuple comes back."""

    def __init__(self, embed_dim, num_heads, bias: bool = True, causal=False) -> None:
        super().__init__()
        self.heads, self.causal = num_heads, causal
        self.qkv = nn.Linear(embed_dim, 3 * embed_dim, bias=bias)

    def forward(self, x, key_padding_mask=None):
        length = x.shape[1]
        q, k, v = heads_of(self.qkv(x), self.heads)
        seen = x.new_ones(length, length, dtype=torch.bool)
        if self.causal:
            seen = seen.tril()
        if key_padding_mask is not None:
            seen = seen & ~key_padding_mask[:, None, None]
        o = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        return o.transpose(1, 2).flatten(-2), None


class HuggingFaceAttention(nn.Module):
    """As a layer of transformers: a config, and a mask that is added to the scores."""

    def __init__(self, config: dict[str, int], layer_idx=None) -> None:
        super().__init__()
        self.heads, self.layer = config["heads"], layer_idx
        self.qkv = nn.Linear(config["width"], 3 * config["width"])

    def forward(self, hidden_states, attention_mask=None, past_key_values=None, **kwargs):
        q, k, v = heads_of(self.qkv(hidden_states), self.heads)
        scores = q @ k.mT / q.shape[-1] ** 0.5
        if attention_mask is not None:
            scores = scores + attention_mask
        o = (scores.softmax(-1) @ v).transpose(1, 2).flatten(-2)
        return OrderedDict(last_hidden_state=o, attentions=None)


def hugging_face(site: Site) -> nn.Module:
    return HuggingFaceAttention({"width": site.width, "heads": site.heads}, site.layer)


IDENTITY = nn.Identity()


class FlashLinearAttention(nn.Module):
    """As a layer of fla: 1 at real tokens, and (o, attentions, past_key_values) comes back."""

    def __init__(
        self,
        mode: str = "chunk",
        hidden_size: int = 1024,
        num_heads: int = 4,
        layer_idx: int = None,  # noqa: RUF013 - as there
        norm: Any = IDENTITY,
    ) -> None:
        super().__init__()
        if mode != "chunk":
            raise ValueError(f"mode: got {mode}")
        self.heads = num_heads
        self.qkv = nn.Linear(hidden_size, 3 * hidden_size)

    def forward(
        self, hidden_states, attention_mask=None, past_key_values=None, use_cache=False, **kwargs
    ):
        q, k, v = heads_of(self.qkv(hidden_states), self.heads)
        if attention_mask is not None:
            assert attention_mask.dtype == torch.long
            assert attention_mask.shape == hidden_states.shape[:2]
            v = v * attention_mask[:, None, :, None]
        state = torch.einsum("bhlk,bhlv->bhlkv", k, v).cumsum(2)
        o = torch.einsum("bhlk,bhlkv->bhlv", q, state)
        return o.transpose(1, 2).flatten(-2), None, past_key_values


class XAttention(Attention):
    """As that of x-transformers: `mask` is True at real tokens, a tensor comes back."""

    def __init__(self, dim, dim_head=64, heads=8, causal=False) -> None:
        super().__init__(dim, heads, causal=causal)

    def forward(self, x, context=None, mask=None, attn_mask=None):
        return super().forward(x, None if mask is None else ~mask)[0]


GOOD = {
    "pytorch": wrap(Attention, **SQUARE),
    "hugging_face": wrap(hugging_face, mask="additive", **SQUARE),
    "fla": wrap(FlashLinearAttention, causal=True, mask="ones"),
    "x_transformers": wrap(XAttention, mask="keep", **SQUARE),
}


@pytest.mark.share(4)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", GOOD)
@pytest.mark.usefixtures("short_counts")
def test_layers_of_other_libraries_pass_every_check(name: str, causal: bool) -> None:
    findings = check_mixer(GOOD[name], causal=causal, **SMALL)
    assert [finding for finding in findings if not finding.passed] == []
    padding = next(finding for finding in findings if finding.check.endswith(".padding"))
    assert padding.applies


def test_the_whole_function_is_the_modules() -> None:
    site = Site(width=16, heads=2, max_length=8)
    mixer = GOOD["pytorch"](site)
    x, keep = torch.randn(3, 8, 16), torch.arange(8) < torch.tensor([[8], [5], [1]])
    blank = x * keep[..., None]
    torch.testing.assert_close(mixer(x, Layout()), mixer.inner(x)[0])
    torch.testing.assert_close(mixer(x, Layout(keep=keep)), mixer.inner(blank, ~keep)[0])
    assert set(mixer.state_dict()) == {"inner.qkv.weight", "inner.qkv.bias"}


# --- masks ----------------------------------------------------------------------------------


class Seen(nn.Module):
    """Keeps the mask that it was given."""

    def __init__(self, dim) -> None:
        super().__init__()

    def forward(self, x, mask=None):
        self.mask = mask
        return x


SITE = Site(width=4, heads=1, max_length=3)
KEEP = torch.tensor([[True, True, False], [False, False, False]])


@pytest.mark.parametrize(
    ("form", "wanted"),
    [
        ("ones", torch.tensor([[1, 1, 0], [1, 0, 0]])),
        ("keep", torch.tensor([[True, True, False], [True, False, False]])),
        ("padding", torch.tensor([[False, False, True], [False, True, True]])),
    ],
)
def test_a_mask_has_the_form_that_is_asked_for(form: str, wanted: Tensor) -> None:
    """A row of padding alone sees its first token."""
    mixer = wrap(Seen, causal=False, mask=form)(SITE)
    mixer(torch.randn(2, 3, 4), Layout(keep=KEEP))
    assert mixer.inner.mask.dtype == wanted.dtype
    assert torch.equal(mixer.inner.mask, wanted)
    mixer(torch.randn(2, 3, 4), Layout())
    assert mixer.inner.mask is None


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("autocast", [False, True])
def test_an_additive_mask_holds_causality_too(causal: bool, autocast: bool) -> None:
    site = Site(width=4, heads=1, max_length=3, causal=causal)
    mixer = wrap(Seen, causal=causal, mask="additive")(site)
    low = torch.finfo(torch.bfloat16 if autocast else torch.float32).min
    o = 0.0
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        mixer(torch.randn(2, 3, 4), Layout(keep=KEEP))
        rows = [[o, o, low], [o, low, low]]
        wanted = torch.tensor(rows)[:, None, None]
        triangle = torch.tensor([[o, low, low], [o, o, low], [o, o, o]])
        wanted = torch.minimum(wanted, triangle) if causal else wanted
        assert torch.equal(mixer.inner.mask, wanted)
        assert mixer.inner.mask.bfloat16().isfinite().all() == autocast
        mixer(torch.randn(2, 3, 4), Layout())
        plain = mixer.inner.mask
    assert torch.equal(plain[0, 0], triangle) if causal else plain is None


def test_an_additive_mask_has_a_shape_alone_on_the_meta_device() -> None:
    site = Site(width=4, heads=1, max_length=3, causal=True)
    with torch.device("meta"):
        mixer = wrap(Seen, causal=True, mask="additive")(site)
        mixer(torch.zeros(2, 3, 4), Layout())
    assert mixer.inner.mask.is_meta
    assert mixer.inner.mask.shape == (2, 1, 3, 3)


def test_the_form_is_told_by_name_and_by_package(monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(width=16, heads=2, max_length=8)
    assert wrap(Attention, causal=False)(site).mask is MaskForm.padding
    for package, form in (("transformers.models.x", "additive"), ("fla.layers.gla", "ones")):
        monkeypatch.setattr(HuggingFaceAttention.forward, "__module__", package)
        assert wrap(hugging_face)(site).mask == form
    monkeypatch.setattr(XAttention.forward, "__module__", "x_transformers.x_transformers")
    assert wrap(XAttention)(site).mask is MaskForm.keep


def test_a_module_that_takes_views_of_its_input_gets_one_that_allows_it() -> None:
    class Viewing(nn.Module):
        def __init__(self, dim: int) -> None:
            super().__init__()
            self.linear = nn.Linear(dim, dim)

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x.view(-1, x.shape[-1])).view(x.shape)

    mixer = wrap(Viewing, causal=True, mask="none")(Site(width=4, heads=1, max_length=8))
    x = torch.randn(3, 8, 4)
    strided = x.transpose(0, 1).contiguous().transpose(0, 1)
    assert torch.equal(mixer(strided, Layout()), mixer(x, Layout()))


def test_a_mask_that_must_be_given_is_given() -> None:
    class Strict(Seen):
        def forward(self, x, real):
            return x * real[..., None]

    mixer = wrap(Strict, causal=False, mask="ones", mask_argument="real")(SITE)
    x = torch.randn(2, 3, 4)
    assert torch.equal(mixer(x, Layout()), x)
    assert torch.equal(mixer(x, Layout(keep=KEEP)), x * KEEP[..., None])


def test_padding_is_refused_where_there_is_no_mask() -> None:
    class Blind(nn.Module):
        def forward(self, x):
            return x

    mixer = wrap(Blind, causal=False)(SITE)
    assert "keep" not in mixer.traits.supports
    with pytest.raises(Unsupported, match="Blind takes no padding mask, but this batch is padded"):
        mixer(torch.randn(2, 3, 4), Layout(keep=KEEP))


@pytest.mark.usefixtures("short_counts")
def test_a_module_that_ignores_its_mask_fails_with_the_way_out() -> None:
    class Ignores(Attention):
        def forward(self, x, key_padding_mask=None):
            return super().forward(x)

    findings = check_mixer(wrap(Ignores, **SQUARE), causal=False, **SMALL)
    failed, *_ = [finding for finding in findings if not finding.passed]
    assert failed.check == "bidirectional.padding"
    assert "Ignores receives its padding mask as key_padding_mask, in the form" in failed.detail


# --- options, claims, draws -----------------------------------------------------------------


def test_options_are_those_of_the_constructor_that_a_site_does_not_give() -> None:
    assert list(inspect.signature(GOOD["pytorch"]).parameters) == ["site", "bias"]
    assert defaults(GOOD["pytorch"]) == {"bias": True}
    assert defaults(GOOD["fla"]) == {"mode": "chunk"}  # a module is no option
    site = Site(width=16, heads=2, max_length=8, layer=3)
    assert GOOD["pytorch"](site, bias=False).inner.qkv.bias is None
    assert GOOD["hugging_face"](site).inner.layer == 3


def test_claims_become_traits() -> None:
    claims = {"operations": "n log n", "memory": "n^1.5", "training_noise": True}
    made = wrap(Attention, **claims, positions=["rotary"], any_length=False, sees_order=False)
    traits = made(Site(width=16, heads=2, max_length=8)).traits
    assert traits == Traits(
        supports=frozenset({"keep"}), operations=Growth(1.0, log=True), memory=Growth(1.5),
        training_noise=True, positions=frozenset({"rotary"}), max_length=8, sees_order=False,
    )  # fmt: skip
    assert made(Site(width=16, heads=2, max_length=8, causal=True)).traits.sees_order
    for text, wanted in (("1", "1"), ("n", "n"), ("n²", "n²"), ("n^2 log n", "n² log n")):
        assert str(wrap(Attention, operations=text)(SITE).traits.operations) == wanted


def test_draws_of_numpy_follow_the_seed_of_the_layer() -> None:
    class Drawn(Seen):
        def __init__(self, dim) -> None:
            super().__init__(dim)
            self.weight = nn.Parameter(torch.tensor(np.random.rand(dim)))

    made = wrap(Drawn, causal=False, mask="keep")
    before, weights = np.random.get_state()[1].copy(), []
    for seed in (1, 1, 2):
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            weights.append(made(SITE).inner.weight)
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    assert np.array_equal(before, np.random.get_state()[1])


# --- what is refused ------------------------------------------------------------------------


class Returning(Seen):
    """Returns what the test says."""

    result: Any = None

    def forward(self, x):
        return self.result


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (
            torch.zeros(2, 3, 5),
            r"returned shape \[2, 3, 5\] for hidden states of shape \[2, 3, 4\]",
        ),
        ((torch.zeros(2, 4), None), r"returned shape \[2, 4\] \(in a tuple\)"),
        ((None, torch.zeros(2, 3, 4)), r"returned None \(in a tuple\) .*a tuple whose first entry"),
        ((), r"returned \(\)"),
        ("text", "returned 'text' for"),
    ],
)
def test_other_results_are_refused(result: Any, words: str) -> None:
    mixer = wrap(Returning, causal=False)(SITE)
    mixer.inner.result = result
    with pytest.raises(ValueError, match=words):
        mixer(torch.randn(2, 3, 4), Layout())


def needing(x, position_embeddings, mask=None):
    """Stand for the forward of a decoder layer."""


@pytest.mark.parametrize(
    ("module", "claims", "words"),
    [
        (HuggingFaceAttention, {"causal": True}, "constructor needs config; wrap a function"),
        (Attention(16, 2), {}, "got an instance of Attention"),
        (Seen, {}, "lra cannot find out whether Seen attends to later tokens, .*set causal=true"),
        (
            Seen,
            {},
            "causal=true .*; and Seen.forward takes 'mask', but lra .* set mask to ones",
        ),
        (
            Seen,
            {"causal": True},
            "^Seen.forward takes 'mask', but lra cannot find out the form of this mask",
        ),
        (
            Seen,
            {"mask": "keep", "causal": True, "operations": "n2"},
            "operations: got 'n2'; wanted the growth with the length n, such as 1, n, n",
        ),
        (Seen, {"causal": True, "mask": "boolean"}, "mask: got 'boolean'|'boolean'"),
    ],
)
def test_what_cannot_be_wrapped_is_refused(module: Any, claims: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        wrap(module, **claims)


@pytest.mark.parametrize(
    ("forward", "claims", "words"),
    [
        (
            needing,
            {"mask": "keep"},
            "forward needs position_embeddings, which lra does not provide",
        ),
        (
            lambda x, attention_mask=None: x,
            {},
            "'attention_mask', but lra cannot find out the form of this mask",
        ),
        (lambda x: x, {"mask": "ones"}, "no parameter attention_mask or .* set mask_argument"),
    ],
)
def test_what_cannot_be_called_is_refused(forward: Any, claims: Any, words: str) -> None:
    class Calls(nn.Module):
        def __init__(self, dim) -> None:
            super().__init__()
            self.forward = forward

        def forward(self, x, attention_mask=None):
            raise NotImplementedError

    with pytest.raises(ValueError, match=words):
        wrap(Calls, causal=False, **claims)(SITE)


def test_mixers_and_other_things_are_not_wrapped() -> None:
    site = SITE
    with pytest.raises(TypeError, match="already is a mixer"):
        wrap(lambda site: wrap(Seen, causal=False, mask="keep")(site))(SITE)
    with pytest.raises(TypeError, match=r"wanted an instance of nn\.Module"):
        wrap(lambda site: 3)(site)


def test_a_module_that_looks_ahead_has_no_causal_form() -> None:
    with pytest.raises(Unsupported, match="Seen attends to later tokens"):
        wrap(Seen, causal=False, mask="keep")(Site(width=4, heads=1, max_length=3, causal=True))
    assert isinstance(wrap(Seen, causal=True, mask="keep")(SITE), WrappedModule)
