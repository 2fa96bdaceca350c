"""Protocols: the published settings of a task in one word, beaten by the command line alone."""

from importlib.resources import files

import pytest
import torch

from lra.composition.compose import typed
from lra.composition.hydra_entry import entries
from lra.composition.yaml_text import load
from lra.errors import ConfigError
from lra.models.backbone.config import Positions
from lra.models.backbone.heads import Interaction, Pooling
from lra.runners.training.optim import Schedule
from lra.runners.training.schedules import learning_rate

PROTOCOLS = sorted(p.name[:-5] for p in (files("lra.conf") / "protocol").iterdir())
GENERATED = ("listops", "pathfinder64", "pathx", "path256")
"""Tasks without a sample, of which those of pictures are one family."""


def config(*words: str):
    (entry,) = entries(list(words))
    return entry.config


def run(*words: str):
    """Return the typed run; the sample stands in for data that are not here."""
    sample = [] if "task=listops" in words else ["task.source=sample"]
    return typed(config(*words, *sample))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_protocol_says_what_each_task_asks(protocol):
    own = load(files("lra.conf") / "protocol" / f"{protocol}.yaml")["for_task"]
    tasks = [task for task in own if task not in GENERATED]
    words = ["-m", f"+protocol={protocol}", f"task={','.join(tasks)}", "task.source=sample"]
    of_lists = entries([*words[:2], "task=listops"]) if "listops" in own else []
    for entry in [*entries(words), *of_lists]:
        found = typed(entry.config)
        assert found.config["protocol"] == protocol
        assert found.config["for_task"] == {}
        assert learning_rate(found.optim, found.optim.steps // 2) > 0


def test_the_long_range_arena_code():
    found = run("+protocol=lra_code", "task=text")
    backbone, optim = found.backbone, found.optim
    assert (backbone.depth, backbone.width, backbone.heads) == (4, 256, 4)
    assert (backbone.positions, backbone.pooling) == (Positions.sinusoidal, Pooling.cls)
    assert (optim.schedule, optim.warmup_steps, optim.steps) == (Schedule.rsqrt, 8000, 20000)
    assert found.mixer_options == {**run("task=text").mixer_options, "variant": "lra"}
    assert max(learning_rate(optim, step) for step in (7999, 8000, 8001)) == pytest.approx(
        5.59e-4, rel=1e-3
    )
    assert found.task_options["validation"] == "test"
    paired = run("+protocol=lra_code", "task=retrieval")
    assert paired.backbone.interaction is Interaction.concat
    assert (paired.backbone.pooling, paired.backbone.head_hidden_layers) == (Pooling.first, 2)
    assert learning_rate(paired.optim, 4999) == pytest.approx(3.5e-4, rel=1e-2)
    image = run("+protocol=lra_code", "task=image")
    assert image.task.spec.padded
    assert image.backbone.positions is Positions.learned
    assert (image.backbone.heads, image.backbone.head_width) == (8, 8)


def test_settings_belong_to_task_and_model_together():
    found = run("+protocol=lra_code", "task=image", "model=sinkhorn")
    assert (found.optim.weight_decay, found.backbone.width, found.backbone.heads) == (0.7, 32, 1)
    assert found.mixer_options["variant"] == "lra"
    found = run("+protocol=lra_code", "task=listops", "model=performer")
    assert (found.mixer_options["kernel"], found.mixer_options["features"]) == ("softmax", 2)
    found = run("+protocol=lra_code", "task=text", "model=performer")
    assert found.mixer_options["kernel"] == "relu"
    found = run("+protocol=lra_code", "task=pathx")
    assert (found.backbone.depth, found.optim.steps, found.optim.clip) == (1, 500_000, 1.0)


def test_the_last_rates_are_those_of_the_code():
    """At update 4,999, 19,999 and so on: base / sqrt(step), and a cosine that is not stretched."""
    for task, last in (("listops", 7.07e-4), ("text", 3.54e-4), ("retrieval", 3.49e-4)):
        optim = run("+protocol=lra_code", f"task={task}").optim
        assert learning_rate(optim, optim.steps - 1) == pytest.approx(last, rel=2e-3)
    optim = run("+protocol=lra_code", "task=image").optim
    assert learning_rate(optim, 34_999) / optim.peak_learning_rate == pytest.approx(
        6.2e-5, rel=0.02
    )


def test_the_command_line_beats_a_protocol():
    found = run("+protocol=lra_code", "task=text", "optim.steps=7", "model.backbone.depth=1")
    assert (found.optim.steps, found.backbone.depth, found.backbone.width) == (7, 1, 256)


def test_a_family_keeps_its_own_options_in_it():
    found = run("+protocol=nystrom", "task=listops", "model=performer")
    assert (found.mixer_options["kernel"], found.backbone.width) == ("softmax", 64)


def test_a_task_that_a_protocol_does_not_know():
    with pytest.raises(ConfigError, match="no settings for task=mnist; it has them for listops"):
        config("+protocol=nystrom", "task=mnist")
    with pytest.raises(ConfigError, match="unknown task 'listop'"):
        config("++for_task={listop: {}}")


@pytest.mark.parametrize(
    ("words", "made"),
    [(("task=pathfinder", f"task.side={side}"), made)
     for side, made in ((64, "pathfinder64"), (128, "pathx"), (256, "path256"))],
)  # fmt: skip
def test_options_that_make_another_task_than_the_one_a_protocol_knows(words, made):
    with pytest.raises(ConfigError, match=f"options of it make {made}: choose task={made}"):
        run("+protocol=mega", *words)
    assert run(*words).task.spec.name == made  # without a protocol it is the user's own choice


@pytest.mark.parametrize("runner", ["scaling", "certify", "decode", "transfer"])
def test_a_protocol_fits_every_runner(runner):
    found = run("+protocol=mega", "task=text", f"runner={runner}", "model=local")
    assert getattr(found.runner, "evaluate_every_steps", 500) == 500
    assert found.backbone.width == 128


def test_one_cycle_is_that_of_the_nystromformer_repository():
    """Its scheduler: 1e-4 at update 999 of 5,000, from 4e-6 to 4e-10; beta1 from 0.95 to 0.85."""
    optim = run("+protocol=nystrom", "task=listops").optim
    beside = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=1e-4, betas=(0.9, 0.999))
    cycle = torch.optim.lr_scheduler.OneCycleLR(
        beside, max_lr=1e-4, total_steps=5000, pct_start=0.2, anneal_strategy="linear"
    )
    for step in range(4999):
        if step in (0, 500, 998, 999, 1000, 4000, 4998):
            assert learning_rate(optim, step) == pytest.approx(cycle.get_last_lr()[0], rel=1e-9)
        beside.step()
        cycle.step()
    assert optim.momentum_range == [0.85, 0.95]
