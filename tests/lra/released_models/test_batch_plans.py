"""What a default of a task or a runner decides under a protocol, beside what its source does.

Which rows share a batch, in training and in evaluation; over which rows a model computes at once;
which examples are left out; where long texts are cut; how pixels are scaled. Sizes of batches are
those that `small_models.py` and `settings.py` have stored; the rest was read in the loader named
at each protocol. Streams of text have other options: `language_rules.py` compares them.
"""

import math
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import pytest
import torch

from lra.composition.catalogue import choices
from lra.composition.compose import build_model, typed
from lra.composition.hydra_entry import entries
from lra.composition.yaml_text import load
from lra.tasks.diagnostics.base import DiagnosticTask
from lra.tasks.task import WindowedTask
from tests.lra.released_models.setting_rules import TRAINING, Ours
from tests.lra.released_models.test_settings import SAMPLES, stored

JUDGED = {"listops": (2_000, 2_000), "text": (25_000,), "retrieval": (18_090, 17_437),
          "image": (5_000, 10_000), "pathfinder": (20_000,), "pathx": (20_000,)}  # fmt: skip
"""Examples of validation and test, where they differ."""
IDS, INK = ("symbols", False), ("symbols", True)
"""A pixel is an id; a black one is padding, or is not."""
CIFAR, HALVES, PLAIN = (0.4808, 0.2392), (0.5, 0.5), (0.0, 1.0)
"""A pixel is a number: what is taken off it, and what it is divided by then."""


class Source(NamedTuple):
    """What the code of a protocol does with a split."""

    pixels: tuple[Any, ...]
    """Of images, Pathfinder and Path-X."""
    rows: Callable[[dict[str, Any], Ours], int]
    """Over which a model computes at once in evaluation: by settings and what is composed."""
    together: Callable[[dict[str, Any], Ours], int] | None = None
    """The same in training; None: as in evaluation."""
    rest: str = "left out"
    """What an epoch does with examples that fill no batch: left out | trained | filled."""
    scored: str = "all"
    """Which examples are: all | whole batches."""
    gpus: Callable[[dict[str, Any]], int] = lambda _: 1
    """That share the examples of a split."""
    partition: str = "each epoch"
    """When a split is divided into batches: each epoch | once."""
    cut: tuple[tuple[str, str], ...] = ()
    """Where texts are not cut at their start, by task."""


def loader(given, _):
    return given["loader.batch_size"]


def chosen(_, ours):
    return ours.optim["batch_size"]


def parts(given, ours):
    """`torch.chunk` of a batch in `step`: by memory in one code, by `bz_rate` in the other."""
    rows, model = given["training"]["batch_size"], ours.config["model"]["name"]
    at_most = given["passes"].get(model, rows)
    return min(rows, at_most) // given["attention"].get(model, {}).get("bz_rate", 1)


def of_fairseq(given, _):
    command = given["command"]
    return int(command.get("max-sentences-valid", command["batch-size"]))


def synchronised(given, ours):
    return int(given["command"]["batch-size"]) * (8 if ours.name == "pathx" else 1)


def arena(given, _):
    return given["base"]["batch_size"]


S4 = Source((CIFAR, PLAIN, PLAIN), loader, scored="whole batches")  # SequenceDataset, base.py
SOURCES = {
    "s4": S4,
    # SequenceDataset, datasets.py
    **dict.fromkeys(("s4_v3", "s4d", "s4_v1"), S4._replace(pixels=(CIFAR, HALVES, HALVES))),
    "sgconv": S4._replace(pixels=(CIFAR, HALVES, HALVES),
                          gpus=lambda given: given.get("trainer.gpus", 1)),
    "self_pretraining": S4._replace(
        pixels=(CIFAR, HALVES), rows=lambda given, _: given["scratch"]["loader.batch_size"]),
    "s5": Source((CIFAR, HALVES, HALVES), lambda given, _: given["bsz"]),  # make_data_loader
    "lru": Source((CIFAR, HALVES, HALVES), chosen),  # no code: as in that of S5
    "mega": Source(  # EpochBatchIterator, SortDataset
        ((0.48, 0.24), HALVES, HALVES), of_fairseq, together=synchronised, rest="trained",
        partition="once"),
    "rotary": Source(  # the data modules and their collators
        (IDS, IDS), lambda given, _: given["data_module_params.params.batch_size"],
        rest="trained", cut=(("text", "random"), ("retrieval", "random_in_training"))),
    "nystrom": Source((INK, INK), parts, rest="filled", scored="whole batches"),  # LRADataset
    "skyformer": Source((INK, INK), parts, rest="filled", scored="whole batches"),
    "lra_code": Source((INK, INK, INK), arena, rest="trained", scored="whole batches"),
    "lra_paper": Source((INK, INK, INK), chosen, rest="trained", scored="whole batches"),
}  # fmt: skip
DECLARED_ELSEWHERE = {  # by another name, or by a sentence without numbers
    "lra_code": ("last_batch", "last_batch"), "lra_paper": ("order", "order"),
    "nystrom": ("last_batch", "scored"), "skyformer": ("last_batch", "scored"),
}  # fmt: skip
STREAMS = {
    "adaptive_span", "awd_lstm", "baevski_auli", "compressive", "lite_transformer", "longformer_lm",
    "reformer", "shortformer", "transformer_xl",
}  # fmt: skip
GENERATED = {"based", "mad", "mamba_synthetics", "zoology"}
"""Protocols of generated rows, which have one length in a batch and are all trained and scored."""
FILES = {file.stem: load(file) for file in choices("protocol")}
CELLS = [(name, task) for name in SOURCES for task in FILES[name]["for_task"]]


@cache
def composed(protocol, task):
    """Return what is composed for every model that the source trained, and the models."""
    models = FILES[protocol]["published_models"] or ["s4"]
    words = ["-m", f"+protocol={protocol}", f"task={task}", "logger=none"]
    words += [f"model={','.join(models)}", *(["task.source=sample"] if task in SAMPLES else [])]
    with torch.device("meta"):
        return [(Ours(each.config), build_model(typed(each.config))) for each in entries(words)]


def given(protocol, task):
    return {} if protocol in ("lru", "lra_paper") else stored(protocol)[task]


def test_every_protocol_says_how_its_source_reads_a_split():
    assert {*SOURCES, *STREAMS, *GENERATED} == {*FILES}
    for name in GENERATED:
        for task in FILES[name]["for_task"]:
            (entry,) = entries([f"+protocol={name}", f"task={task}", "logger=none", "model=sdpa"])
            assert isinstance(typed(entry.config).task, DiagnosticTask)
    for name in STREAMS:
        words = [f"+protocol={name}", f"task={next(iter(FILES[name]['for_task']))}", "logger=none"]
        (entry,) = entries([*words, f"model={FILES[name]['published_models'][0]}"])
        assert isinstance(typed(entry.config).task, WindowedTask)


@pytest.mark.share(4)
@pytest.mark.parametrize(("protocol", "task"), CELLS)
def test_batches_are_those_of_the_source(protocol, task):
    source, settings = SOURCES[protocol], given(protocol, task)
    for ours, model in composed(protocol, task):
        groups = "bucket_batches" in ours.task
        assert ours.task.get("bucket_batches") in (None, 1)
        beside = any(traits.by_batch for traits in model.traits)  # computes over rows of a batch
        padded = groups and ours["padding"] != "masked" and ours.task["padded_length"] is None
        rows = source.rows(settings, ours)
        if beside or padded:
            assert ours.runner["evaluation_batch_size"] == rows, ours.config["model"]["name"]
            assert not groups or ours.task["bucket_batches"] is None
        if model.by_batch:  # batch norm, too
            together = (source.together or source.rows)(settings, ours)
            found = ours.optim["micro_batch_size"] or ours.optim["batch_size"]
            declared = {"halves", "quarters", "statistics"} & {*ours.deviations}
            assert found == together or declared, ours.config["model"]["name"]
        assert ("partition" in ours.deviations) == (source.partition == "once")


@pytest.mark.parametrize(("protocol", "task"), CELLS)
def test_examples_that_are_left_out_are_those_of_the_source_or_declared(protocol, task):
    if task not in TRAINING:
        pytest.skip("no source has settings for its longer pictures")
    source, settings = SOURCES[protocol], given(protocol, task)
    for ours, _ in composed(protocol, task):
        named = DECLARED_ELSEWHERE.get(protocol)
        rest = TRAINING[task] % ours.optim["batch_size"]
        if named:
            assert {*named} <= {*ours.deviations}
            continue
        declared = ours.deviations.get("last_batch") or ""
        assert bool(declared) == (rest > 0 and source.rest == "trained")
        assert not declared or f"the {rest} " in declared
        gpus, rows = source.gpus(settings), source.rows(settings, ours)
        unscored = [math.ceil(number / gpus) % rows * gpus for number in JUDGED[task]]
        sentence = ours.deviations.get("scored") or ""
        if source.scored == "all":
            assert "not scored" not in sentence
            continue
        assert bool(sentence) == any(unscored)
        for number, size in zip(unscored, JUDGED[task], strict=True):
            assert not number or f"{number} of {size:,} " in sentence


@pytest.mark.share(4)
@pytest.mark.parametrize(("protocol", "task"), CELLS)
def test_texts_are_cut_and_pixels_scaled_as_in_the_source(protocol, task):
    source = SOURCES[protocol]
    for ours, _ in composed(protocol, task):
        assert ours.task.get("cut", "first") == dict(source.cut).get(task, "first")
        pictures = ("image", "pathfinder", "pathx")
        if "encoding" not in ours.task:
            continue
        wanted = source.pixels[pictures.index(task) if task in pictures else -1]
        found = ours.task["encoding"], ours.task["black_is_padding"]
        if found[0] == "scalars":
            found = ours.task["mean"], ours.task["deviation"]
            wanted = pytest.approx(wanted, abs=1e-4)  # as many digits as papers print
        assert found == wanted


@pytest.mark.parametrize("task", FILES["mega"]["for_task"])
def test_mega_is_evaluated_after_each_epoch_of_its_source(task):
    (ours, _), *_ = composed("mega", task)
    batches = math.ceil(TRAINING[task] / synchronised(given("mega", task), ours))
    updates = math.ceil(batches / int(given("mega", task)["command"]["update-freq"]))
    assert ours.runner["evaluate_every_steps"] == updates
    assert ours.optim["steps"] % updates == 0
