"""Every protocol, task, model, variant and runner: built without weights, or refused in a sentence.

A model is built once for all combinations that make the same one; data are not touched.
"""

import copy
from dataclasses import replace
from importlib.resources import files

import pytest
import torch
import yaml

from lra.binding import defaults
from lra.compose import build_model, facts, group_file, locate, typed
from lra.composition.hydra_entry import entries
from lra.runner_class import bundled
from models.backbone.config import TOKEN_HEADS
from models.mixer import Unsupported


def nodes(group):
    found = (files("conf") / group).iterdir()
    return {file.name[:-5]: yaml.safe_load(file.read_text()) for file in found}


PROTOCOLS = {None: {"for_task": nodes("task")}, **nodes("protocol")}
MODELS, RUNNERS = nodes("model"), bundled()
LENGTH = 256
"""Of the measurements of cost."""


def runs(protocol, task):
    """Yield a run for each model and variant."""
    words = [f"task={task}", f"model={','.join(MODELS)}", "logger=none"]
    words += [f"+protocol={protocol}"] if protocol else []
    if "source" in defaults(locate(group_file("task", task)["class_path"])):
        words.append("task.source=sample" if task != "listops" else "task.source=generated")
    tasks = {}
    for entry in entries(["-m", *words], execute=list):
        yield typed(entry.config, tasks)
        if "variant" in entry.config["model"].get("mixer", {}):
            config = copy.deepcopy(entry.config)
            config["model"]["mixer"]["variant"] = "lra"
            yield typed(config, tasks)


def with_runners(run):
    """Yield a run for each runner that measures a model, and the length that it builds for."""
    for kind in RUNNERS.values():
        if not kind.models:
            continue
        changes = [{"direction": way} for way in ("task", "bidirectional", "causal")]
        for change in changes if "direction" in defaults(kind) else [{}]:
            if change.get("direction") == "task" and kind is RUNNERS["peers"]:
                continue  # which asks for one
            found = replace(run, runner=kind(**change))
            yield found, LENGTH if kind.by_length else None


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=str)
def test_every_combination_is_built_or_refused(protocol):
    seen, refused, built = {}, {}, 0
    for task in PROTOCOLS[protocol]["for_task"]:
        for plain in runs(protocol, task):
            for run, length in with_runners(plain):
                known = replace(facts(run, length), vocabulary=11, classes=3)
                model = (run.model, run.mixer_options, run.backbone, known, run.runner.facing)
                if (key := repr(model)) in seen:
                    continue
                seen[key] = True
                try:
                    with torch.device("meta"):
                        model = build_model(run, own_facts=known)
                except Unsupported as refusal:
                    refused.setdefault(str(refusal), []).append(run.model)
                    continue
                built += 1
                devices = {each.device.type for each in model.parameters()}
                assert devices == {"meta"}, run.model
                width = run.backbone.width
                assert model.embedding.weight.shape in {(11, width), (width, 1)}
                answers = model.head.weight if known.head in TOKEN_HEADS else model.head.out.weight
                assert answers.shape[0] == (11 if known.head in TOKEN_HEADS else 3)
    assert built > len(MODELS)
    for sentence in refused:
        assert len(sentence) > 30, sentence
        assert ":" in sentence, sentence
        assert "Traceback" not in sentence
