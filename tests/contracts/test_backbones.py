"""Every family that a YAML offers, inside the whole model."""

import re
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import pytest
import torch

from lra import conf
from lra.composition.binding import make
from lra.composition.compose import core_of, group_file
from lra.composition.yaml_text import load
from lra.models.backbone.config import TOKEN_HEADS
from lra.models.backbone.model import (
    Backbone,
    BackboneConfig,
    Head,
    Padding,
    Positions,
    Residual,
    TaskFacts,
)
from lra.models.mixer import Layout, State, Unsupported
from lra.models.multi_head import MultiHead
from tests.contracts.choices_of_configs import CAUSAL_ALONE

(FOLDER,) = [Path(entry) / "model" for entry in conf.__path__]
FAMILIES = sorted(path.stem for path in FOLDER.glob("*.yaml"))
LENGTH, VOCABULARY = 40, 11


@cache
def core(family: str):
    """Return the mixers and the stack, with what the family needs of the backbone."""
    node = load(FOLDER / f"{family}.yaml")
    mixers, stack, _ = core_of(node, ())
    return mixers, stack, node.get("backbone", {})


def facts_of(family: str, max_length: int = LENGTH) -> TaskFacts:
    """Return the facts of a task that the family can be built for."""
    head = Head.language_modelling if family in CAUSAL_ALONE else Head.classification
    facts = TaskFacts(head=head, vocabulary=9, classes=2, max_length=max_length)
    return with_source(facts) if family == "rnnsearch" else facts


def with_source(facts: TaskFacts) -> TaskFacts:
    """Return the facts of a task with a source and a target of equal lengths."""
    half, head = facts.max_length // 2, Head.sequence_to_sequence
    masks = frozenset({"prefix"})
    return replace(facts, head=head, masks=masks, source_length=half, target_length=half)


def build(family: str, head: Head, *, padded: bool = False, **changes: object) -> Backbone:
    mixers, stack, needs = core(family)
    options = {"width": 16, "feed_forward_width": 32, **needs, **changes}
    config = make(BackboneConfig, options, "model.backbone")
    masks = frozenset({"order"} if head is Head.permutation_modelling else ())
    facts = TaskFacts(
        head=head, vocabulary=VOCABULARY, classes=3, max_length=LENGTH, padded=padded, masks=masks
    )
    try:
        return Backbone(config, facts, mixers, stack=stack, seed=0).double().eval()
    except Unsupported as refusal:
        if padded and "cannot exclude padding" in str(refusal) and "padding" not in changes:
            return build(family, head, padded=padded, padding=Padding.zeroed, **changes)
        pytest.skip(f"refused: {refusal}")


def tokens(parts: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(parts)
    return torch.randint(0, VOCABULARY, (3, parts, LENGTH), generator=generator)


@pytest.mark.share(4)
@pytest.mark.parametrize("positions", [Positions.learned, Positions.rotary])
@pytest.mark.parametrize("family", FAMILIES)
def test_prefill_segments_and_steps_equal_one_pass(family, positions):
    """Encodings outside and inside mixers; the contract streams each one inside, and none."""
    model = build(family, Head.language_modelling, positions=positions)
    try:
        fresh = model.initial_state(3, LENGTH)
    except Unsupported as refusal:
        pytest.skip(f"no state: {refusal}")
    whole, _ = model.predict(tokens())
    torch.testing.assert_close(streamed(model, fresh, [1, 22, 1, 1, 15]), whole)


def streamed(model: Backbone, state: State, cuts: list[int]) -> torch.Tensor:
    """Return the logits of a text in parts."""
    pieces = []
    for piece in tokens()[..., : sum(cuts)].split(cuts, dim=-1):
        logits, state = model.predict(piece, state=state)
        pieces.append(logits)
    return torch.cat(pieces, 1)


SHORT, TEXT = 9, 20
"""Tokens of a memory, and of a text that does not fit into it twice."""
ENDLESS = {
    "cosformer", "identity", "linear", "local", "longformer", "luna", "performer", "sdpa",
    "sliding_window", "softmax", "sparse_transformer",
}  # fmt: skip
"""Families whose memory is a window, or no matter; others may end where it is full, and say so."""


@pytest.mark.share(4)
@pytest.mark.parametrize("positions", [Positions.none, Positions.rotary, Positions.t5])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_short_memory_is_the_same_function_in_any_partition(family, positions):
    model = build(family, Head.language_modelling, positions=positions, depth=1)
    try:
        fresh = model.initial_state(3, SHORT)
    except Unsupported as refusal:
        pytest.skip(f"no state: {refusal}")
    if model.traits[0].by_segment:
        pytest.skip("its tokens see the memory as it was before their segment")

    try:
        one_by_one = streamed(model, fresh, [1] * TEXT)
    except ValueError:
        assert family not in ENDLESS
        with pytest.raises(ValueError, match="make the state with a larger memory"):
            streamed(model, fresh, [TEXT])
        return
    for cuts in ([12, 1, 7], [8, 1, 1, 10], [2] * 3 + [14]):
        torch.testing.assert_close(streamed(model, fresh, cuts), one_by_one)


def refuses(family: str, option: str, value: object) -> bool:
    """Return whether a family has no use for an option of the backbone, and says so."""
    mixers, stack, needs = core(family)
    config = BackboneConfig(**{"width": 16, **needs, option: value})
    try:
        Backbone(config, facts_of(family), mixers, stack=stack, seed=0)
    except Unsupported as refusal:
        reason = str(refusal)
    else:
        return False
    assert re.search(f"no use for {option} .* set it to null", reason)
    blocks = getattr(build(family, facts_of(family).head, depth=1).stack, "blocks", ())
    assert not any(isinstance(block.mixer, MultiHead) for block in blocks)
    return True


def size(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.share(4)
@pytest.mark.parametrize("head", [Head.classification, Head.language_modelling])
@pytest.mark.parametrize("family", FAMILIES)
def test_heads_have_the_width_they_are_given_or_the_family_refuses(family, head):
    """12 instead of 8: counted, with gradients, and in any partition the same function."""
    if refuses(family, "head_width", 12):
        return
    model, plain = build(family, head, head_width=12, depth=1), build(family, head, depth=1)
    assert size(model.stack) > size(plain.stack)
    blocks = (getattr(each.stack, "blocks", ()) for each in (model, plain))
    for block, narrow in zip(*blocks, strict=True):
        assert size(block.mixer) > size(narrow.mixer)
        if hasattr(block.mixer, "v_proj"):
            heads = narrow.mixer.v_proj.out_features // 8  # those of values may be fewer
            assert block.mixer.v_proj.weight.shape == (heads * 12, 16)
            wide = getattr(narrow.mixer, "value_expansion", 1)  # values wider than keys
            assert block.mixer.out_proj.weight.shape == (16, 24 * wide)
            assert narrow.mixer.out_proj.weight.shape == (16, 16 * wide)
    target = tokens()[:, 0] if head in TOKEN_HEADS else torch.tensor([0, 1, 2])
    model(tokens(), target).nll.sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
    if head in TOKEN_HEADS:
        try:
            state = model.initial_state(3, LENGTH)
        except Unsupported:
            return
        seen = streamed(model, state, [23, 1, 1, 15])
        torch.testing.assert_close(seen, model.predict(tokens())[0])


NO_BIAS = {"qkv_bias": False, "output_bias": False}
UNBIASED = {"collaborative": ("q_proj", "k_proj")}
"""Projections that another parameter stands in for, which the size of the mixer shows."""


@pytest.mark.share(4)
@pytest.mark.parametrize("qkv", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_biases_are_where_the_backbone_wants_them_or_the_family_refuses(family, qkv):
    """One of the two has biases, and it is the one that was said."""
    changes = {"qkv_bias": qkv, "output_bias": not qkv, "feed_forward_bias": False, "depth": 1}
    if refuses(family, "qkv_bias", qkv):
        return
    model = build(family, Head.classification, **changes)
    bare = build(family, Head.classification, **{**changes, **NO_BIAS})
    for block, without in zip(model.stack.blocks, bare.stack.blocks, strict=True):
        assert size(block.mixer) > size(without.mixer)
        linear = dict(block.mixer.named_children())
        if "out_proj" in linear:
            into = [name for name in linear if name.endswith("_proj") and name != "out_proj"]
            into = [name for name in into if name not in UNBIASED.get(family, ())]
            assert into
            assert {name for name in into if linear[name].bias is None} == (
                {*()} if qkv else {*into}
            )
            assert (linear["out_proj"].bias is not None) is not qkv
        assert [part.bias for part in (block.network[0], block.network[3])] == [None, None]
    model(tokens(), torch.tensor([0, 1, 2])).nll.sum().backward()


@pytest.mark.share(4)
@pytest.mark.parametrize("head", [Head.pair, Head.language_modelling, Head.permutation_modelling])
@pytest.mark.parametrize("family", FAMILIES)
def test_recomputation_gives_identical_gradients_under_dropout(family, head):
    parts = 2 if head is Head.pair else 1
    keep = torch.arange(LENGTH) < torch.tensor([LENGTH, 17, 1])[:, None]
    target = tokens()[:, 0] if head in TOKEN_HEADS else torch.tensor([0, 1, 2])
    depth = 2 if head is Head.language_modelling else 1  # some hand on to the next layer

    def gradients(recompute: bool) -> tuple[Backbone, dict[str, torch.Tensor]]:
        model = build(
            family, head, padded=True, dropout=0.2, attention_dropout=0.2, depth=depth,
            activation_checkpointing=recompute,
        ).train()  # fmt: skip
        torch.manual_seed(3)
        layout = Layout(order=tokens()[:, 0] if model.facts.masks else None)
        outcome = model(tokens(parts), target, keep[:, None].expand(-1, parts, -1), layout=layout)
        (outcome.nll.sum() + sum(outcome.penalties.values())).backward()
        return model, {name: parameter.grad for name, parameter in model.named_parameters()}

    (model, plain), (_, recomputed) = gradients(False), gradients(True)
    for name, gradient in plain.items():
        if any(name.endswith(f".{own}") for own in model.traits[0].in_streams):
            continue
        assert gradient is not None, name
        assert gradient.isfinite().all(), name
        torch.testing.assert_close(recomputed[name], gradient, rtol=0, atol=1e-15)


@pytest.mark.parametrize("family", FAMILIES)
def test_padding_changes_nothing_in_the_whole_model(family):
    model = build(family, Head.classification, padded=True, depth=1)
    if model.config.padding is Padding.zeroed:
        pytest.skip("it cannot leave padding out: zeros in its place still count")
    padded = tokens()
    keep = (torch.arange(LENGTH) < 17).expand(3, 1, LENGTH)
    short, _ = model.predict(padded[..., :17])
    logits, _ = model.predict(padded, keep)
    torch.testing.assert_close(logits, short)


@pytest.mark.parametrize("family", FAMILIES)
def test_builds_on_meta(family):
    with torch.device("meta"):
        mixers, stack, needs = core(family)
        config = make(BackboneConfig, needs, "model.backbone")
        model = Backbone(config, facts_of(family, 2**16), mixers, stack=stack, seed=0)
    assert {parameter.device.type for parameter in model.parameters()} == {"meta"}


@pytest.mark.parametrize("family", FAMILIES)
def test_reversible_residuals_give_the_gradients_of_ordinary_autograd(family):
    """With dropout, padding and a chunked network; once through the blocks by plain autograd."""
    changes = {"residual": Residual.reversible, "dropout": 0.2, "feed_forward_chunks": 3}
    model = build(family, Head.classification, padded=True, **changes).train()
    keep = (torch.arange(LENGTH) < torch.tensor([LENGTH, 17, 1])[:, None])[:, None]

    def gradients() -> dict[str, torch.Tensor]:
        model.zero_grad()
        torch.manual_seed(3)
        model(tokens(), torch.tensor([0, 1, 2]), keep).nll.sum().backward()
        return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}

    reversed_ = gradients()
    model.stack.forward = partial(plainly, model.stack)
    for name, gradient in gradients().items():
        torch.testing.assert_close(reversed_[name], gradient, rtol=0, atol=1e-9)


def plainly(stack, flow, layout):
    """The two streams without any recomputation."""
    layout, blank = stack.checked(layout)
    x1 = x2 = flow.x
    for block in stack.blocks:
        x1 = x1 + block.mixed(flow._replace(x=x2), layout, blank).x
        x2 = x2 + torch.cat([block.transformed(part) for part in block.pieces(x1)], dim=1)
    return flow._replace(x=stack.norm((x1 + x2) / 2), state=None)


def test_a_model_whose_layers_are_all_of_another_family_is_that_family():
    node = group_file("model", "fnet") | {"layers": ["sdpa", "sdpa"]}
    mixers, _, options = core_of(node, ())
    assert options["layers"] == ["sdpa", "sdpa"]
    options = {"width": 16, "feed_forward_width": 32}
    config = make(BackboneConfig, options, "model.backbone")
    facts = TaskFacts(head=Head.classification, vocabulary=VOCABULARY, classes=3, max_length=LENGTH)
    hybrid = Backbone(config, facts, mixers, seed=0).eval()
    torch.testing.assert_close(
        hybrid.predict(tokens())[0],
        build("sdpa", Head.classification).float().predict(tokens())[0],
        rtol=0,
        atol=0,
    )
