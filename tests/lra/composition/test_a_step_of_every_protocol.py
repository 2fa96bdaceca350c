"""Every protocol trains a step on every task that it has settings for, and is evaluated."""

import math

import pytest

from lra.composition.catalogue import choices
from lra.composition.compose import typed
from lra.composition.hydra_entry import entries
from lra.composition.yaml_text import load
from lra.sweep.work import CellWork

PROTOCOLS = {file.stem: load(file) for file in choices("protocol")}
MODELS = {
    "nystrom": "nystromformer",
    "rotary": "softmax",
    "self_pretraining": "softmax",
    "s5": "s5",
    "lru": "lru",
    "mega": "mega",
    "sgconv": "sgconv",
    **dict.fromkeys(("s4", "s4_v3", "s4d"), "s4"),
    "zoology": "softmax",
    "based": "mamba",
    "mamba_synthetics": "mamba",
    "mad": "mamba",
    "s4_v1": "local",  # whose own model is not here
}
"""Of those that the sources trained; of language models the first, else Performer."""
PICTURES = {
    "train_examples": 2, "validation_examples": 2, "test_examples": 2, "processes": 1
}  # fmt: skip
SAMPLE = {"source": "sample"}
LISTS = {**PICTURES, "min_length": 20, "max_length": 60, "padded_length": 60}
ROWS = {"train_examples": 8, "validation_examples": 2, "test_examples": 2}
SEGMENT = {"length": 16, "pairs": 2, "examples": 8}
STREAMS = ("enwik8", "text8", "wikitext103", "wikitext2", "pg19")
MAD = ("recall", "noisy", "fuzzy", "copy", "compression", "memorisation")
SHORT = {**SAMPLE, "length": 32, "evaluation_length": 48}
DATA = {
    "listops": LISTS, **dict.fromkeys(("text", "retrieval", "image"), SAMPLE),
    "mqar": {**ROWS, "segments": [SEGMENT], "test_segments": [{**SEGMENT, "length": 32}]},
    "selective_copy": {**ROWS, "length": 40, "train_examples": None},
    "induction": {**ROWS, "train_examples": None},
    **dict.fromkeys((f"mad_{each}" for each in MAD), ROWS),
    **dict.fromkeys(STREAMS, SHORT), "pg19": {**SHORT, "subword_vocabulary": None},
}  # fmt: skip
WORDS = {"softmax_cutoffs": [20, 40, 60]}
"""Groups of rarer words that the sample has."""
LARGER = ("pathfinder64", "pathx", "path256")
"""Pictures that differ in their side alone from those that are trained on, and take seconds."""


@pytest.mark.share(2)
@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.usefixtures("shared_cache")
def test_a_step_is_trained_on_every_task(protocol: str) -> None:
    names = [name for name in PROTOCOLS[protocol]["for_task"] if name not in LARGER]
    streams = {*names} <= {*STREAMS}  # which are judged whole
    first = PROTOCOLS[protocol]["published_models"][0] if streams else "performer"
    words = [f"+protocol={protocol}", f"model={MODELS.get(protocol, first)}", "logger=none"]
    words += ["scale=tiny", "optim.steps=1", "optim.batch_size=2", f"task={','.join(names)}"]
    words += ["runner.evaluate_splits=[]", "runner.stages=[]"]
    words += ["runner.evaluation_batch_size=16" if streams else "runner.validation_examples=2"]
    for entry in entries(["-m", *words]):
        own = entry.config["task"]
        task = {**own, **DATA.get(own["name"], PICTURES)}
        if own.get("stride"):
            task["stride"] = 16
        if entry.config["model"]["backbone"]["softmax"] == "adaptive":
            entry.config["model"]["backbone"] |= WORDS
        run = typed({**entry.config, "task": task})
        run.task.prepare()
        columns = {"length": run.task.spec.max_length, "mode": "train"}
        rows = [*run.runner.run(CellWork.planned(run, columns))]
        losses = [row.value for row in rows if getattr(row, "metric", None) == "train_loss"]
        assert losses, task
        assert all(map(math.isfinite, losses)), task
