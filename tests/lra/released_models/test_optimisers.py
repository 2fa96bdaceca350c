"""What decays and how fast each parameter learns, beside what the trainers of the S4 code do.

`optimisers.py` has stored what their own `configure_optimizers` makes. Names are those of
`test_frames.py`.
"""

import json
import re
from pathlib import Path

import pytest
import torch

from lra.composition.compose import build_model, facts, typed
from lra.composition.hydra_entry import entries
from lra.runners.training.optimisers.groups import parameter_groups
from lra.runners.training.schedules import learning_rate
from tests.lra.released_models import cases
from tests.lra.released_models.test_frames import DIAGONAL, MODELS, released_name

STORED = json.loads((Path(__file__).parent / "optimisers.json").read_text())
MODELS = {**MODELS, "s4_v1": "s4"}  # the nearest that is here, with what its layers share
VERSION_1 = {
    r".*\.mixer\.out_proj\.(\w+)": "model.layers.0.layer.output_linear.{0}",
    r".*\.mixer\.skip": "model.layers.0.layer.D",
    r".*\.mixer\.readout": "model.layers.0.layer.kernel.krylov.C",
    r".*\.mixer\.dynamics\.entry": "model.layers.0.layer.kernel.krylov.B",
    r".*\.mixer\.dynamics\.(log_decay|frequency)": "model.layers.0.layer.kernel.krylov.w",
    r".*\.mixer\.dynamics\.log_step": "model.layers.0.layer.kernel.krylov.log_dt",
}
NOT_HERE = re.compile(r"decay|kernel\.kernel\.A")
"""What has no gradient there, or is read nowhere."""


def run_of(protocol, task, *more):
    words = [f"+protocol={protocol}", f"task={task}", f"model={MODELS[protocol]}", "logger=none"]
    words += ["runner=train", *(DIAGONAL[protocol] if more else [])]
    words += ["task.source=sample"] if task in ("text", "retrieval", "image") else []
    (entry,) = entries(words)
    return entry.config, typed(entry.config)


def theirs(name, case, hidden_layers):
    """Return the released name of a parameter of ours; None of P, which version 1 has otherwise."""
    protocol, task, *more = case.split(" ")
    if protocol == "s4_v1" and ".mixer." in name:
        return None if "low_rank" in name else cases.renamed(name, VERSION_1)
    return released_name(" ".join([protocol, *more]), task, name, hidden_layers)


@pytest.mark.share(2)
@pytest.mark.parametrize("case", STORED)
def test_parameters_learn_and_decay_as_in_the_source(case):
    _, run = run_of(*case.split(" "))
    with torch.device("meta"):
        model = build_model(run, given_facts=facts(run))
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    found = {
        theirs(names[id(p)], case, run.backbone.head_hidden_layers): [
            pytest.approx(group["scale"]), group["weight_decay"],
        ]
        for group in parameter_groups(model, run.optim) for p in group["params"]
    }  # fmt: skip
    wanted = {
        re.sub(r"(kernel_list)\.\d+", r"\1", name): values  # one parameter here
        for name, values in STORED[case]["parameters"].items()
    }
    there = {name for name in wanted if not NOT_HERE.fullmatch(name.partition(".layer.")[2])}
    assert {name: found.get(name) for name in there} == {name: wanted[name] for name in there}


@pytest.mark.share(2)
@pytest.mark.parametrize("case", [case for case in STORED if "rates" in STORED[case]])
def test_rates_are_those_of_the_source_at_every_update(case):
    config, run = run_of(*case.split(" "))
    late = "warm_up" in config["deviations"]  # by an update, until the peak
    assert late == case.startswith("self_pretraining")
    apart = [
        abs(learning_rate(run.optim, int(update)) / run.optim.peak_learning_rate - rate)
        for update, rate in STORED[case]["rates"].items() if int(update) < run.optim.steps
    ]  # fmt: skip
    assert max(apart) == pytest.approx(1 / run.optim.warmup_steps if late else 0, abs=1e-12)
