"""NT-ASGD beside the code of AWD-LSTM: when it begins, and PyTorch's ASGD from there on."""

import pytest
import torch
from torch import nn

from lra.models.backbone.config import BackboneConfig
from lra.runners.training.averaging import TriggeredAverage
from lra.runners.training.config import TrainConfig, check_together
from lra.runners.training.optim import OptimConfig, Optimiser, Schedule
from lra.runners.training.updates import WeightUpdates

LOSSES = [5.0, 4.0, 3.0, 3.5, 3.2, 3.4, 3.3, 2.0, 2.5]


def switch_of(losses, nonmono):
    """Return the validation at which the released code takes torch.optim.ASGD, from 0."""
    best = []
    for number, loss in enumerate(losses):
        if len(best) > nonmono and loss > min(best[:-nonmono]):
            return number
        best.append(loss)
    return None


@pytest.mark.parametrize(("patience", "wanted"), [(1, 4), (2, 5), (3, 6), (5, None)])
def test_it_begins_where_the_released_code_switches(patience, wanted):
    assert switch_of(LOSSES, patience) == wanted
    average = TriggeredAverage(nn.Linear(2, 2), patience)
    begun = []
    for loss in LOSSES:
        average.see(-loss)
        begun.append(average.taken == 0)
    assert (begun.index(True) if True in begun else None) == wanted


def test_from_there_on_it_is_averaged_sgd():
    """Weights are PyTorch's; its mean leaves the first update out, ours and the paper's do not."""
    torch.manual_seed(0)
    ours, theirs = nn.Linear(4, 3).double(), nn.Linear(4, 3).double()
    theirs.load_state_dict(ours.state_dict())
    decay = 1e-3
    config = OptimConfig(
        optimiser=Optimiser.sgd, peak_learning_rate=0.125, schedule=Schedule.constant,
        weight_decay=decay, average_after=1, clip=None, steps=12,
    )  # fmt: skip
    updates = WeightUpdates(ours, config, half=False)
    other = torch.optim.SGD(theirs.parameters(), lr=0.125, weight_decay=decay)
    inputs = torch.randn(12, 5, 4, dtype=torch.float64)
    seen = []
    judged = {1: 3.0, 3: 2.0, 5: 2.5, 7: 2.6}
    for step, x in enumerate(inputs):
        if step in judged:
            updates.judged(-judged[step])
            if step == 7:  # worse than 2.0, which came more than one validation before
                other = torch.optim.ASGD(
                    theirs.parameters(), lr=0.125, t0=0, lambd=0.0, weight_decay=decay
                )
        updates.begin(step)
        updates.backward(ours(x).square().mean())
        updates.apply()
        updates.average.update()
        assert (updates.begun is not None) == (step >= 7)
        other.zero_grad()
        torch.autograd.backward(theirs(x).square().mean())
        other.step()
        if step >= 7:
            seen.append([weight.detach().clone() for weight in theirs.parameters()])
    for weight, twin in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(weight, twin, rtol=0, atol=1e-12)
    with updates.evaluated():
        for number, twin in enumerate(theirs.parameters()):
            every = torch.stack([weights[number] for weights in seen])
            weight = [*ours.parameters()][number]
            torch.testing.assert_close(weight, every.mean(0), rtol=0, atol=1e-12)
            mean = other.state[twin]["ax"]
            torch.testing.assert_close(every[1:].mean(0), mean, rtol=0, atol=1e-8)


def test_a_restored_one_goes_on_alike():
    torch.manual_seed(0)
    config = OptimConfig(average_after=1, steps=9)
    models = [nn.Linear(2, 2) for _ in range(2)]
    parts = [WeightUpdates(model, config, half=False) for model in models]
    for score in (-3.0, -2.0, -2.5, -2.6):
        parts[0].judged(score)
    parts[0].average.update()
    models[1].load_state_dict(models[0].state_dict())
    parts[1].restore(parts[0].state())
    for each, model in zip(parts, models, strict=True):
        with torch.no_grad():
            model.weight += 1.0
        each.average.update()
    assert parts[0].state()["trigger"] == parts[1].state()["trigger"]
    assert parts[1].average.taken == 2
    for name, mean in parts[0].average.averages.items():
        assert torch.equal(mean, parts[1].average.averages[name])


def test_what_it_needs_is_said():
    with pytest.raises(ValueError, match="average_after has no effect without ema_decay="):
        OptimConfig(average_after=5, ema_decay=0.9)
    with pytest.raises(ValueError, match="average_after must be at least 1: got 0"):
        OptimConfig(average_after=0)
    with pytest.raises(ValueError, match=r"type runner\.evaluate_every_steps=N"):
        check_together(OptimConfig(average_after=5), TrainConfig(), BackboneConfig())
