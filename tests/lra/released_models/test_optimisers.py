"""What decays and how fast each parameter learns, beside what the trainers of the S4 code do.

`optimisers.py` has stored what their own `configure_optimizers` makes. Names are those of
`test_frames.py`.
"""

import json
import math
from pathlib import Path

import pytest
import torch

from lra.composition.compose import build_model, facts, typed
from lra.composition.hydra_entry import entries
from lra.runners.training.optimisers.groups import parameter_groups
from lra.runners.training.schedules import learning_rate
from tests.lra.released_models.test_frames import DIAGONAL, MODELS, released_name

STORED = json.loads((Path(__file__).parent / "optimisers.json").read_text())
ELSEWHERE = {
    ".kernel_list.": "parts of a kernel, which have numbers there",
    ".layer.decay": "has no gradient there, and is no parameter here",
    ".kernel.kernel.A": "is read nowhere",
    ".krylov.": "of the first S4, which is not here",
}


def run_of(protocol, task, more):
    words = [f"+protocol={protocol}", f"task={task}", f"model={MODELS[protocol]}", "logger=none"]
    words += ["runner=train", *(DIAGONAL[protocol] if more else [])]
    words += ["task.source=sample"] if task in ("text", "retrieval", "image") else []
    (entry,) = entries(words)
    entry.config["model"]["backbone"]["order_blind"] = protocol == "s4_v1"
    return typed(entry.config)


@pytest.mark.parametrize("case", STORED)
def test_parameters_learn_and_decay_as_in_the_source(case):
    protocol, task, *more = case.split(" ")
    run = run_of(protocol, task, more)
    with torch.device("meta"):
        model = build_model(run, given_facts=facts(run))
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    found = {}
    for group in parameter_groups(model, run.optim):
        for parameter in group["params"]:
            name = names[id(parameter)]
            if ".kernel." in name or (protocol == "s4_v1" and ".mixer." in name):
                continue
            theirs = released_name(
                " ".join([protocol, *more]), task, name, run.backbone.head_hidden_layers
            )
            found[theirs] = [group["scale"], group["weight_decay"]]
    wanted = {
        name: values for name, values in STORED[case]["parameters"].items()
        if not any(part in name and name.endswith((part, part[-1:])) or part in name and part.endswith(".")
                   for part in ELSEWHERE)
    }  # fmt: skip
    for name, (rate, decay) in wanted.items():
        assert math.isclose(found[name][0], rate), name
        assert found[name][1] == decay, name


@pytest.mark.parametrize("case", [case for case in STORED if "rates" in STORED[case]])
def test_rates_are_those_of_the_source_at_every_update(case):
    protocol, task, *more = case.split(" ")
    optim = run_of(protocol, task, more).optim
    for update, rate in STORED[case]["rates"].items():
        if int(update) < optim.steps:
            here = learning_rate(optim, int(update)) / optim.peak_learning_rate
            assert here == pytest.approx(rate, abs=1e-12), update
