"""Whatever moves the weights: stopped and continued to the bit; averages, plateaus, smoothing."""

import os
import signal
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from lra.models.backbone.model import Backbone, BackboneConfig, Head, Softmax, TaskFacts
from lra.models.families.linear import LinearAttention
from lra.runners.records import Interrupted, Measurement, Outcomes
from lra.runners.training.averaging import WeightAverage
from lra.runners.training.checkpoint import RESUME, WEIGHTS, Checkpoints
from lra.runners.training.config import Keep
from lra.runners.training.evaluate import evaluate
from lra.runners.training.loop import Item, Trainer, identity
from lra.runners.training.optim import OptimConfig
from lra.runners.training.optimisers.groups import parameter_groups
from lra.runners.training.updates import WeightUpdates
from lra.tasks.task import Batch
from tests.runners.tiny_task import TIMES, Tiny, model, same, trainer_of, training

STEPS = 8


def optim(**options: Any) -> OptimConfig:
    return OptimConfig(
        **{"steps": STEPS, "batch_size": 8, "peak_learning_rate": 1e-2, "schedule": "constant"}
        | options
    )


def run(
    net: Backbone,
    config: OptimConfig,
    folder: Path | None = None,
    task: Tiny | None = None,
    **options: Any,
) -> list[Item]:
    stream = training(net, task, folder, optim=config, **{"evaluate_every_steps": 2} | options)
    return [
        item for item in stream if not isinstance(item, Measurement) or item.metric not in TIMES
    ]


def rows(items: list[Item]) -> list[Measurement]:
    return [item for item in items if isinstance(item, Measurement)]


EMA = {"ema_decay": 0.6}
PLATEAU = {"schedule": "plateau", "plateau_patience": 0, "plateau_factor": 0.5}
CYCLE = {"schedule": "one_cycle", "warmup_steps": 3, "momentum_range": [0.8, 0.95]}
RESUMED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "adafactor": ({"optimiser": "adafactor", "weight_decay": 0.1}, {}),
    "sgd in a cycle": ({"optimiser": "sgd", **CYCLE}, {}),
    "best average": ({**EMA, "ema_warmup": True}, {"keep": Keep.best}),
    "plateau": ({**PLATEAU, "plateau_threshold": 0.5}, {}),
    "all": (
        {**PLATEAU, **EMA, "label_smoothing": 0.1, "clip_value": 0.01, "weight_decay": 0.1,
         "decayed_weights": "matrices"},
        {"keep": Keep.best},
    ),
}  # fmt: skip
"""States of single optimisers go through a checkpoint in `optimisers/test_build.py`."""


class Stopping(Tiny):
    """Has the run stopped at the so-manyth reading of a split."""

    def __init__(self, split: str, times: int) -> None:
        super().__init__()
        self.split, self.left = split, times

    def batches(self, split: str, **options: Any) -> Iterator[Batch]:
        for batch in super().batches(split, **options):
            if split == self.split:
                self.left -= 1
                if self.left == 0:
                    os.kill(os.getpid(), signal.SIGTERM)
            yield batch


STOPS = [
    (name, split, at)
    for name, (options, _) in RESUMED.items()
    for split, at in (("train", 5), ("validation", 2), ("test", 1))
    # an optimiser alone knows no evaluation
    if split == "train" or not options.keys().isdisjoint({"ema_decay", "plateau_factor"})
]


@cache
def whole(name: str) -> tuple[Backbone, list[Measurement]]:
    """Return a model after a training that nobody stops, and its rows."""
    options, more = RESUMED[name]
    net = model(dropout=0.2)
    return net, rows(run(net, optim(**options), **more))


@pytest.mark.parametrize(("name", "split", "at"), STOPS)
def test_a_stopped_run_goes_on_to_the_bit(name: str, split: str, at: int, tmp_path: Path) -> None:
    """Stopped between steps, within a validation, and within the final evaluation."""
    options, more = RESUMED[name]
    config, resumed = optim(**options), model(dropout=0.2, seed=9)
    trained, expected = whole(name)
    handler = signal.getsignal(signal.SIGTERM)
    where = "after step" if split == "train" else "while evaluating after step"
    with pytest.raises(Interrupted, match=f"^stopped {where}"):
        run(model(dropout=0.2), config, tmp_path, Stopping(split, at), **more)
    assert signal.getsignal(signal.SIGTERM) == handler
    assert torch.load(tmp_path / RESUME, weights_only=True)["step"] > 0
    found = run(resumed, config, tmp_path, **more)
    assert same(trained, resumed)
    assert rows(found) == expected
    assert [path.name for path in tmp_path.iterdir()] == [WEIGHTS]


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Backbone, list[Measurement]]:
    """The state of a training that was stopped; model and rows of one that was not."""
    folder, fresh, config = tmp_path_factory.mktemp("half"), model(), optim(**PLATEAU, **EMA)
    with pytest.raises(Interrupted):
        run(model(), config, folder, Stopping("train", 4), keep=Keep.best)
    return folder / RESUME, fresh, rows(run(fresh, config, keep=Keep.best))


NAN = "not a number in place of the first"


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("plateau", {"reduction": 0.5, "best": "high", "unimproved": 0, "cooling": 0}),
        ("plateau", {"reduction": 0.5, "best": 0.0, "unimproved": 0}),
        ("plateau", None),
        ("average", {}),
        ("average", {"head.out.weight": torch.ones(3)}),
        *((part, NAN) for part in ("model", "average", "best", "optimiser")),
    ],
)
def test_a_wrong_part_of_a_state_means_training_anew(
    part: str,
    value: Any,
    half: tuple[Path, Backbone, list[Measurement]],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    path, fresh, expected = half
    state = torch.load(path, weights_only=True)
    if value is NAN:
        inner = {"best": state["best"].get("weights"), "optimiser": state["optimiser"]["state"][0]}
        next(iter(inner.get(part, state[part]).values())).view(-1)[0] = torch.nan
    else:
        state[part] = value
    torch.save(state, tmp_path / RESUME)
    found = model()
    assert rows(run(found, optim(**PLATEAU, **EMA), tmp_path, keep=Keep.best)) == expected
    assert same(found, fresh)
    assert "training starts from the beginning" in caplog.text
    assert (value is NAN) == ("contains numbers that are not finite" in caplog.text)


def test_a_state_of_before_the_new_options_keeps_its_identity() -> None:
    """The hash as it was when there were eleven options of optimisation."""
    assert identity(trainer_of(model(), optim=OptimConfig())) == "b6e2c510d78d4381"
    assert identity(trainer_of(model(), optim=OptimConfig(clip_value=1.0))) != "b6e2c510d78d4381"
    assert {*trainer_of(model(), optim=OptimConfig()).updates.state()} == {"optimiser", "scaler"}


# -- the average of the weights -------------------------------------------------------------------


def test_the_average_is_that_of_torch() -> None:
    net = model(redraw_every=2, dropout=0.1)
    made = trainer_of(net, optim=optim(**EMA))
    theirs = AveragedModel(model(redraw_every=2), multi_avg_fn=get_ema_multi_avg_fn(0.6))
    for batch in list(Tiny().batches("train", batch_size=8, seed=0)):
        made.advance(batch)
        theirs.update_parameters(net)
    trained = {name: value.clone() for name, value in net.state_dict().items()}
    with made.updates.evaluated():
        for name, value in net.state_dict().items():
            torch.testing.assert_close(value, theirs.module.state_dict()[name])
        assert not torch.equal(net.head.out.weight, trained["head.out.weight"])
    assert all(torch.equal(value, trained[name]) for name, value in net.state_dict().items())


def test_the_decay_warms_up() -> None:
    weight = torch.nn.Linear(1, 1, bias=False)
    average = WeightAverage(weight, 0.3, warmup=True)
    wanted = 0.0
    for update in range(9):
        torch.nn.init.constant_(weight.weight, float(update**2))
        decay = 0.0 if update == 0 else min(0.3, (1 + update) / (10 + update))
        wanted = decay * wanted + (1 - decay) * update**2
        average.update()
    assert float(average.averages["weight"]) == pytest.approx(wanted)


@pytest.mark.parametrize("keep", Keep)
def test_what_is_judged_and_saved_is_the_average(
    keep: Keep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    averaged = AveragedModel(model(), multi_avg_fn=get_ema_multi_avg_fn(0.6))
    after: dict[int, dict[str, torch.Tensor]] = {}
    advance = Trainer.advance

    def beside(self: Trainer, batch: Batch) -> torch.Tensor:
        loss = advance(self, batch)
        averaged.update_parameters(self.model)
        state = averaged.module.state_dict()
        after[self.step] = {name: value.clone() for name, value in state.items()}
        return loss

    def judged(weights: dict[str, torch.Tensor], split: str) -> dict[str, float]:
        net = model(seed=5)
        net.load_state_dict(weights)
        found = evaluate(net, Tiny(), split, batch_size=64, device=torch.device("cpu"))
        return found.measured

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "advance", beside)
        items = rows(run(model(), optim(**EMA), tmp_path, keep=keep))
    for step in range(2, STEPS + 1, 2):
        along = {r.metric: r.value for r in items if r.step == step and "split" in r.labels}
        assert along == pytest.approx(judged(after[step], "validation"))
    final = [row for row in items if row.step is None and row.labels.get("split") == "test"]
    (label,) = {row.labels["weights"] for row in final}
    what, _, step = label.partition(", best validation, step ")
    assert (what, bool(step)) == ("average", keep is Keep.best)
    saved = Checkpoints(tmp_path).weights()
    wanted = after[int(step or STEPS)]
    assert {row.metric: row.value for row in final} == pytest.approx(judged(saved, "test"))
    for name, value in saved.items():
        torch.testing.assert_close(value, wanted[name])
    curves = [[row for row in found if row.metric == "train_loss"]
              for found in (items, rows(run(model(), optim())))]  # fmt: skip
    assert curves[0] == curves[1]  # the average moves no training


# -- the plateau ----------------------------------------------------------------------------------


def test_the_rate_falls_when_validation_does_not_improve(monkeypatch: pytest.MonkeyPatch) -> None:
    made = trainer_of(model(), optim=optim(**PLATEAU, steps=40), evaluate_every_steps=1)
    seen = []
    for score in (0.5, 0.6, 0.6, 0.7, 0.1, 0.2):
        made.updates.judged(score)
        seen.append(made.updates.rate(1))
    assert seen == pytest.approx([1e-2, 1e-2, 5e-3, 5e-3, 2.5e-3, 1.25e-3])
    monkeypatch.setattr("lra.runners.training.loop.goodness", lambda *_: 0.5)
    net = model()
    run(net, optim(**PLATEAU))
    rate_free = model()
    run(rate_free, optim())
    assert not same(net, rate_free)


def test_a_plateau_without_validation_is_refused() -> None:
    with pytest.raises(ValueError, match=r"evaluate_every_steps is 0; type runner\.evaluate_"):
        trainer_of(model(), optim=optim(**PLATEAU))


# -- the loss -------------------------------------------------------------------------------------


def test_labels_are_smoothed_in_training_alone() -> None:
    net = model()
    batch = next(Tiny().batches("train", batch_size=8, seed=0))
    with torch.no_grad():
        logits, _ = net.predict(batch.tokens, batch.keep)
    smooth = F.cross_entropy(logits, batch.target, label_smoothing=0.3)
    made = trainer_of(model(), optim=optim(label_smoothing=0.3))
    assert float(made.advance(batch)) == pytest.approx(float(smooth))
    plain = F.cross_entropy(logits, batch.target)
    assert float(trainer_of(model(), optim=optim()).advance(batch)) == pytest.approx(float(plain))
    judged = [item for item in run(net, optim(label_smoothing=0.3)) if isinstance(item, Outcomes)]
    for outcomes in judged:
        (rest,) = Tiny().batches(outcomes.split, batch_size=64, seed=0)
        with torch.no_grad():
            nll = F.cross_entropy(
                net.predict(rest.tokens, rest.keep)[0], rest.target, reduction="none"
            )
        torch.testing.assert_close(torch.as_tensor(outcomes.nll), nll)


FACTS = TaskFacts(head=Head.language_modelling, vocabulary=50, classes=0, max_length=12)


def language_model(softmax: Softmax) -> Backbone:
    cutoffs = {} if softmax is Softmax.full else {"softmax_cutoffs": [20]}
    config = BackboneConfig(
        depth=1, width=8, heads=2, feed_forward_width=8, softmax=softmax, tied_embeddings=False,
        **cutoffs,
    )  # fmt: skip
    return Backbone(config, FACTS, [LinearAttention], seed=0)


@pytest.mark.parametrize("elements", [2**24, 50 * 3])
def test_labels_of_tokens_are_smoothed(elements: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the head judges piece by piece."""
    monkeypatch.setattr("lra.models.backbone.heads.CHUNK_ELEMENTS", elements)
    net = language_model(Softmax.full).eval()
    tokens = torch.arange(24).view(2, 1, 12)
    target = tokens[:, 0] + 1
    logits, _ = net.predict(tokens)
    wanted = F.cross_entropy(
        logits.flatten(0, 1), target.flatten(), reduction="none", label_smoothing=0.2
    )
    found = net(tokens, target, label_smoothing=0.2)
    torch.testing.assert_close(found.nll.flatten(), wanted)
    torch.testing.assert_close(found.hit, logits.argmax(-1) == target)


def test_groups_of_words_cannot_be_smoothed() -> None:
    net = language_model(Softmax.adaptive)
    with pytest.raises(
        ValueError, match=r"set label_smoothing=0, or model\.backbone\.softmax=full"
    ):
        trainer_of(net, optim=optim(label_smoothing=0.2))
    with pytest.raises(ValueError, match=r"got optim\.label_smoothing=0\.2; set it to 0, or"):
        net(torch.zeros(1, 1, 12, dtype=torch.long), torch.ones(1, 12).long(), label_smoothing=0.2)


# -- gradients and decay --------------------------------------------------------------------------


def test_entries_are_clipped_before_the_whole() -> None:
    layer = torch.nn.Linear(2, 1)
    updates = WeightUpdates(
        layer, OptimConfig(optimiser="sgd", clip_value=3.0, clip=2.5), half=False
    )
    updates.begin(0)
    before = [p.detach().clone() for p in layer.parameters()]
    layer.weight.grad, layer.bias.grad = torch.tensor([[9.0, -1.0]]), torch.tensor([-40.0])
    updates.apply()
    cut = torch.tensor([3.0, -1.0, -3.0])
    cut = cut * 2.5 / cut.norm()
    moved = torch.cat([(b - p).flatten() for b, p in zip(before, layer.parameters(), strict=True)])
    torch.testing.assert_close(moved, 1e-3 * cut, rtol=1e-4, atol=1e-7)
    assert layer.weight.grad is None


@pytest.mark.parametrize("tied", [True, False])
def test_what_has_no_decay(tied: bool) -> None:
    """Matrices of maps decay; biases, norms and embeddings do not, the tied head's included."""
    config = BackboneConfig(
        depth=1, width=8, heads=2, feed_forward_width=8, tied_embeddings=tied, positions="learned"
    )
    net = Backbone(config, FACTS, [LinearAttention], seed=0)

    def decayed(which: str) -> set[str]:
        names = {id(p): name for name, p in net.named_parameters()}
        groups = parameter_groups(net, OptimConfig(weight_decay=0.2, decayed_weights=which))
        assert sorted(id(p) for group in groups for p in group["params"]) == sorted(names)
        return {names[id(p)] for g in groups for p in g["params"] if g["weight_decay"] == 0.2}

    every = {name for name, _ in net.named_parameters()}
    assert decayed("all") == every
    vectors = {name for name, p in net.named_parameters() if p.dim() < 2}
    tables = {"embedding.weight", "positions.table"}
    assert tables <= every
    assert decayed("matrices") == every - vectors - tables
    assert ("head.weight" in decayed("matrices")) is not tied
    in_stack = {name for name in vectors if name.startswith("stack.")}
    assert in_stack
    assert decayed("all_but_biases") == every - in_stack
