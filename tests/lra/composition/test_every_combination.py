"""Every protocol, task, model, variant and runner: built without weights, or refused in a sentence.

Every model is built in every way in which runners ask for one, without a protocol on one task, and
under the protocols whose sources trained it on theirs. All else takes turns at the ways, and the
other models at the protocols, of which most are like a neighbour by name. A model is built
once for all combinations that make the same one; data are not touched.
"""

from dataclasses import replace
from importlib.resources import files

import pytest
import torch

from lra.composition.binding import defaults
from lra.composition.compose import build_model, facts, group_file, locate, typed
from lra.composition.hydra_entry import entries
from lra.composition.runner_class import our_runners
from lra.composition.yaml_text import load
from lra.models.backbone.config import TOKEN_HEADS, Head, Softmax
from lra.runners.records import Memo


def nodes(group):
    found = (files("lra.conf") / group).iterdir()
    found = sorted(found, key=lambda file: file.name)
    return {file.name[:-5]: load(file) for file in found}


PROTOCOLS = {None: {"for_task": nodes("task")}, **nodes("protocol")}
MODELS, RUNNERS = nodes("model"), our_runners()
STREAMS = {"enwik8", "text8", "wikitext103", "wikitext2", "pg19", "corpus"}
IN_NOISE = {"needle", "passkey", "facts"}
"""Tasks whose sources are books, which they read with haystack=text alone."""
BESIDE = ("softmax", "linear", "fnet", "tlb")
"""Models that are tried beside its own under a protocol."""
PARTS = 4
"""Of all models, of which a protocol is tried with one."""
LENGTH, DEPTH = 256, 1
"""The longest input and the most layers: more of either is more of the same."""


def shape(found):
    """Return what a task says, with numbers that are small."""
    length = min(found.max_length, LENGTH)
    return replace(found, vocabulary=11, classes=3, max_length=length)


def own_words(task):
    """Return the words that stand for data that are not here."""
    words = []
    kind = locate(group_file("task", task)["class_path"])
    if "source" in defaults(kind) and task not in IN_NOISE:
        words.append("task.source=sample" if task != "listops" else "task.source=generated")
    if task == "table":
        # nothing is read before a cell runs
        words += ["task.dataset=owner/name", "task.labels=[a,b]"]
    if task in ("text_pairs", "corpus"):
        words.append("task.train=mine.tsv")
    return tuple(words)


def configs(protocol, tasks, models):
    """Yield each configuration; tasks of the same words are composed as one sweep."""
    alike = {}
    for task in tasks:
        alike.setdefault(own_words(task), []).append(task)
    for own, several in alike.items():
        words = [f"task={','.join(several)}", f"model={','.join(models)}", "logger=none", *own]
        words += [f"+protocol={protocol}"] if protocol else []
        for entry in entries(["-m", *words]):
            yield entry.config


def runs(protocol, tasks):
    """Yield a run for each task, model and variant.

    A protocol is tried with its own models and a few beside them, and on its first task with a part
    of all others, since without a protocol every model meets every task.
    """
    if protocol is None:
        yield from runs_of(protocol, tasks, MODELS)
        return
    few = dict.fromkeys((*PROTOCOLS[protocol]["published_models"], *BESIDE))
    yield from runs_of(protocol, tasks, few)
    if not STREAMS.issuperset(tasks):
        part = [*MODELS][[*PROTOCOLS].index(protocol) % PARTS :: PARTS]
        yield from runs_of(protocol, tasks[:1], [model for model in part if model not in few])


def runs_of(protocol, tasks, models):
    known, memo = {}, Memo()
    for config in configs(protocol, tasks, models):
        yield typed(config, known, memo)
        model = config["model"]
        if "variant" in model.get("mixer", {}):
            other = {**model, "mixer": {**model["mixer"], "variant": "lra"}}
            yield typed({**config, "model": other}, known, memo)


def tasks_of(protocol):
    """Return the tasks to try: without a protocol nothing but its shape reaches a model."""
    tasks = [*PROTOCOLS[protocol]["for_task"]]
    if protocol is not None:
        return tasks
    found = {}
    for config in configs(protocol, tasks, ["softmax"]):
        found.setdefault(repr(shape(facts(typed(config)))), config["task"]["name"])
    return [*found.values()]


def ways():
    """Return a runner for each way in which runners ask for a model: direction and length."""
    found = {}
    for kind in RUNNERS.values():
        for way in ("task", "bidirectional", "causal"):
            if not kind.models:
                continue
            runner = kind(direction=way) if "direction" in defaults(kind) else kind()
            found[runner.facing, runner.by_length] = runner
    return found.values()


WAYS = (*ways(),)


@pytest.mark.share(6)
@pytest.mark.parametrize("protocol", PROTOCOLS, ids=str)
def test_every_combination_is_built_or_refused(protocol):
    seen, refused, built, tasks = set(), {}, [], tasks_of(protocol)
    turn = [*PROTOCOLS].index(protocol)
    published = PROTOCOLS[protocol].get("published_models", ())
    for number, plain in enumerate(runs(protocol, tasks), turn):
        listed = [len(each) for each in plain.mixer_options.values() if isinstance(each, list)]
        depth = min(plain.backbone.depth, max(DEPTH, *listed, 0))  # lists may be by layer
        adaptive = plain.backbone.softmax == Softmax.adaptive
        groups = {"softmax_cutoffs": [4, 8], "softmax_shrink": 1.0} if adaptive else {}
        shallow = replace(plain.backbone, depth=depth, **groups)
        whole = plain.model in published or (protocol is None and plain.task_name == tasks[0])
        for runner in WAYS if whole else (WAYS[number % len(WAYS)],):
            run = replace(plain, backbone=shallow, runner=runner)
            known = shape(facts(run, LENGTH if runner.by_length else None))
            model = (run.model, run.mixer_options, run.backbone, known, run.runner.facing)
            if (key := repr(model)) in seen:
                continue
            seen.add(key)
            try:
                with torch.device("meta"):
                    model = build_model(run, given_facts=known)
            except ValueError as refusal:
                refused.setdefault(str(refusal), []).append(run.model)
                continue
            built.append(run.model)
            devices = {each.device.type for each in model.parameters()}
            assert devices == {"meta"}, run.model
            width = run.backbone.width
            if adaptive:
                assert model.embedding.weight.shape == (4, width)
                assert model.head.groups.shape == (2, width)
                continue
            assert model.embedding.weight.shape in {(11, width), (width, known.channels)}
            answers = model.head.weight if known.head in TOKEN_HEADS else model.head.out.weight
            numbers = 1 if known.head is Head.regression else 3
            assert answers.shape[0] == (11 if known.head in TOKEN_HEADS else numbers)
    assert {*built}.issuperset(published)
    assert len(built) > len(MODELS) / (2 if protocol is None else 6) or STREAMS.issuperset(tasks)
    for sentence in refused:
        assert len(sentence) > 30, sentence
        assert ":" in sentence, sentence
        assert "Traceback" not in sentence
