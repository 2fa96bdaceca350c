"""A small honest mixer, with which the tests of the frame fill it."""

import pytest
import torch
from torch import Tensor, nn

from lra.models.mixer import Flow, Layout, Site, State, Traits


class Averaging(nn.Module):
    """The mean of all projected values, or of those so far where the site is causal."""

    def __init__(self, site: Site) -> None:
        super().__init__()
        self.value = nn.Linear(site.width, site.width)
        self.out = nn.Linear(site.width, site.width)
        self.traits = Traits(causal=site.causal, sees_order=site.causal)

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        value = self.value(x)
        if layout.keep is None:
            weight = torch.ones_like(x[..., :1])
        else:
            weight = layout.keep[..., None].to(x.dtype)
        if self.traits.causal:
            total, count = (value * weight).cumsum(1), weight.cumsum(1)
        else:
            total, count = (value * weight).sum(1, True), weight.sum(1, True)
        return self.out((total / count.clamp(min=1)).expand_as(x))

    def extend(self, flow: Flow, layout: Layout) -> Flow:
        if flow.state is None:
            return flow._replace(x=self.forward(flow.x, layout))
        before, seen = flow.state
        total = before[:, None] + self.value(flow.x).cumsum(1)
        count = seen[:, None] + torch.arange(1, flow.x.shape[1] + 1)[None, :, None]
        state = (total[:, -1].clone(), count[:, -1].to(seen.dtype, copy=True))
        return flow._replace(x=self.out(total / count), state=state)

    def initial_state(self, batch_size: int, memory: int) -> State:
        like = self.value.weight
        return like.new_zeros(batch_size, like.shape[0]), like.new_zeros(batch_size, 1)


@pytest.fixture
def averaging() -> type[Averaging]:
    return Averaging
