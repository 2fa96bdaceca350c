"""A prefix beside every encoding that adds to scores, against dense loops."""

import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lra.composition.catalogue import choices
from lra.composition.compose import core_of
from lra.composition.yaml_text import load
from lra.models.families.sdpa import SDPA
from lra.models.mixer import INSIDE, Layout, Positions, Site
from lra.models.positions import alibi_slopes
from tests.attention import compare, drawn
from tests.contracts.choices_of_configs import STACKS

LENGTH, WIDTH, HEADS, REACH = 11, 16, 2, 4
PREFIX = torch.tensor([0, 5, LENGTH])
PAGE = (Path(__file__).parents[2] / "docs" / "masks.md").read_text()
DOCUMENTED = re.findall(r"^- `prefix`: (.*)$", PAGE, re.MULTILINE)[0].split(", ")
FAMILIES = [name for name in DOCUMENTED if name not in STACKS]


def built(name: str, positions: Positions) -> Any:
    """Return a causal mixer of a family with its options at their defaults."""
    (file,) = (file for file in choices("model", []) if file.stem == name)
    (make, *_), _, _ = core_of(load(file), [], name)
    torch.manual_seed(0)
    site = Site(
        width=WIDTH, heads=HEADS, max_length=LENGTH, causal=True, positions=positions,
        relative_distance=REACH,
    )  # fmt: skip
    mixer: Any = make(site)
    return mixer.double().eval()


def cases() -> list[Any]:
    """Return every family with every encoding that it applies itself."""
    found = []
    for name in FAMILIES:
        offered = built(name, Positions.none).traits.positions
        found += [(name, each) for each in (Positions.none, *sorted(INSIDE)) if each in offered]
    return found


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "positions" in metafunc.fixturenames:
        metafunc.parametrize(("name", "positions"), cases())


def added(mixer: nn.Module, q: Tensor, positions: Positions, t: int) -> Tensor | float:
    """What a key at distance `t` adds to the scores of the queries, [b h], by the definitions."""
    relative: Any = getattr(mixer.core, "relative", None)
    if positions == Positions.alibi:
        return -alibi_slopes(HEADS).double() * abs(t)
    if positions == Positions.t5:
        assert LENGTH < 16, "longer distances share buckets"
        return relative.weight[max(t, 0)]
    scale = math.sqrt(WIDTH // HEADS)
    if positions == Positions.shaw:
        return q @ relative.weight[min(max(t, 0), REACH)] / scale
    if positions == Positions.transformer_xl:
        angles = [t * 10_000.0 ** (-2 * p / WIDTH) for p in range(WIDTH // 2)]
        r = [math.sin(a) for a in angles] + [math.cos(a) for a in angles]
        keys = (relative.r_proj.weight @ torch.tensor(r, dtype=q.dtype)).view(HEADS, -1)
        return ((q + relative.biases.position) * keys).sum(-1) / scale
    return 0.0


def literal(mixer: Any, name: str, positions: Positions, x: Tensor) -> Tensor:
    """Attend with all scores written out, one query and one key at a time."""
    if name == "latent_attention":
        place = mixer.placed(x, None)
        q, (k, v) = mixer.queries(x, place), mixer.heads_of(*mixer.latents(x, place))
    else:
        q, k, v = mixer.project(x, Layout())
    if name == "forgetting":
        k, gates = k[..., :-1], k[..., -1]
    met = q
    if positions == Positions.transformer_xl:
        met = q + mixer.core.relative.biases.content[:, None]
    width = mixer.key_width / HEADS if name == "collaborative" else q.shape[-1]
    k, v = (part.repeat_interleave(-(-HEADS // part.shape[1]), 1) for part in (k, v))
    scores = met @ k.mT / math.sqrt(width)
    if name == "talking_heads":
        scores = torch.einsum("ha,bals->bhls", mixer.core.logits_map, scores)
    rows = []
    for b, prefix in enumerate(PREFIX.tolist()):
        for i in range(LENGTH):
            seen = [j for j in range(LENGTH) if j <= i or (i < prefix and j < prefix)]
            parts = [scores[b, :, i, j] + added(mixer, q[b, :, i], positions, i - j) for j in seen]
            if name == "forgetting":
                for place, j in enumerate(seen):
                    between = gates[b, :, min(i, j) + 1 : max(i, j) + 1]
                    parts[place] = parts[place] + between.sum(-1)
            weights = torch.stack(parts, -1).softmax(-1)
            if name == "talking_heads":
                weights = mixer.core.weights_map @ weights
            if name == "differential":
                first, second = mixer.core.attend.vectors.prod(1).sum(-1).exp()
                weights = weights[0::2] - (first - second + 0.2) * weights[1::2]
            o = (weights[:, None] @ v[b][:, seen])[:, 0]
            if name == "differential":
                size = o.square().mean(-1, keepdim=True) + mixer.core.attend.norm.epsilon
                o = (1 - 0.2) * mixer.core.attend.norm.weight * o / size.sqrt()
            rows.append(o.flatten())
    mixed: Tensor = mixer.out_proj(torch.stack(rows).view(len(x), LENGTH, -1))
    return mixed


def test_a_prefix_is_attended_to_as_the_definitions_say(name: str, positions: Positions) -> None:
    mixer, x = built(name, positions), drawn(len(PREFIX), LENGTH, WIDTH).requires_grad_()
    found = mixer(x, Layout(prefix=PREFIX))
    leaves = [x, *mixer.parameters()]
    compare(found, literal(mixer, name, positions, x), leaves, atol=1e-12, looser=10)


@pytest.mark.parametrize("encoding", [Positions.shaw, Positions.transformer_xl, Positions.t5])
def test_scores_of_any_distances_are_those_of_keys_in_order(encoding: Positions) -> None:
    site = Site(
        width=WIDTH, heads=HEADS, max_length=LENGTH, causal=True, positions=encoding,
        relative_distance=REACH,
    )  # fmt: skip
    relative: Any = SDPA(site).double().core.relative
    q = drawn(2, HEADS, LENGTH, WIDTH // HEADS)
    distance = torch.arange(LENGTH)[:, None] - torch.arange(LENGTH)
    here = relative(q, distance[None], later=True)
    torch.testing.assert_close(here, relative.in_order(q, LENGTH, later=True), atol=1e-13, rtol=0)
    before = relative.in_order(q, LENGTH, later=False)
    torch.testing.assert_close(here.tril(), before.tril(), atol=1e-13, rtol=0)
