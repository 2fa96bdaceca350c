"""Weights that a layer draws by a seed of its own are named; no family of ours has any."""

import pytest
import torch
from torch import nn

from lra.composition.catalogue import names
from lra.composition.compose import build_model, typed
from lra.composition.hydra_entry import entries
from lra.composition.selection import CAUSAL, sets
from lra.models.mixer import Traits
from tests.models.backbone.small_backbones import build


class Drawn(nn.Module):
    """Draws its weights as `draw` does; has constants, and a table that no seed changes."""

    traits = Traits(causal=False)

    def __init__(self, site, *, draw):
        super().__init__()
        self.zeros = nn.Parameter(torch.zeros(4))
        self.table = nn.Parameter(torch.arange(4.0))
        self.weight = nn.Parameter(draw(site))

    def forward(self, x, layout):
        return x


def globally(site):
    torch.manual_seed(23)
    return torch.randn(3, 5)


def in_a_fork(site):
    with torch.random.fork_rng():
        torch.manual_seed(23)
        return 0.02 * torch.randn(3, 5)


def by_its_own(site):
    return nn.init.normal_(torch.empty(3, 5), generator=torch.Generator().manual_seed(23))


def by_a_drawn_seed(site):
    seed = int(torch.randint(2**31, (), generator=site.generator))
    return torch.randn(3, 5, generator=torch.Generator().manual_seed(seed))


CASES = {
    globally: True, in_a_fork: True, by_its_own: True, by_a_drawn_seed: False,
    lambda _: torch.randn(3, 5): False,
    lambda site: torch.randn(3, 5, generator=site.generator): False,
}  # fmt: skip


@pytest.mark.parametrize(("draw", "fixed"), CASES.items())
def test_what_no_seed_changes_is_named(draw, fixed):
    model = build(lambda site: Drawn(site, draw=draw), depth=2)
    assert [*model.seedless] == ["mixer 0: weight", "mixer 1: weight"] * fixed
    start = "30 parameters (mixer 0: weight, mixer 1: weight) start equal at every seed"
    assert model.seed_remark.startswith(start) if fixed else not model.seed_remark
    one, other = (build(lambda site: Drawn(site, draw=draw), seed=n) for n in range(2))
    first, second = (model.stack.blocks[0].mixer.weight for model in (one, other))
    assert torch.equal(first, second) is fixed


def test_no_family_has_any():
    for name in names("model"):
        task = "task=mqar" if name in sets()[CAUSAL] else "task=image"
        task = "task=reversal" if name == "rnnsearch" else task
        (entry,) = entries([f"model={name}", task, "model.backbone.depth=2", "logger=none"])
        assert not build_model(typed(entry.config)).seedless, name
