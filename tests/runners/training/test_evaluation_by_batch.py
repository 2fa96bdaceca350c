"""Where the rows of a batch change each other's outputs in evaluation, its scores say so."""

import numpy as np
import pytest
import torch

from lra.composition.compose import build_model, typed
from lra.composition.hydra_entry import entries
from lra.runners.training.evaluate import evaluate, score_rows

CASES = {
    "softmax": "",
    "fnet model.backbone.padding=attended": "padding=attended",
    "fnet model.backbone.padding=zeroed": "padding=zeroed",
    "fnet model.backbone.padding=attended task.padded_length=320": "",
    "fnet model.backbone.padding=attended model.backbone.norm=batch task.padded_length=320": "",
    "performer model.mixer.stabiliser=port": "stabiliser=port",
    "nystromformer model.mixer.initialisation=original task.padded_length=320":
        "initialisation=original",
    "nystromformer model.mixer.initialisation=original model.mixer.padding=original "
    "model.backbone.padding=passed": "initialisation=original and padding=passed",
}  # fmt: skip


@pytest.mark.parametrize("words", CASES)
def test_scores_say_by_what_they_depend_on_their_batch(words):
    options = ["task=text", "task.source=sample", "task.max_length=300", "logger=none"]
    options += ["task.bucket_batches=null", *f"model={words}".split()]
    (entry,) = entries(options)
    run = typed(entry.config)
    run.task.prepare()
    model = build_model(run).double()
    scores = [
        evaluate(model, run.task, "test", batch_size=rows, device=torch.device("cpu"), examples=16)
        for rows in (2, 5)
    ]
    one, other = (each.outcomes.nll for each in scores)
    moved = float(np.abs(one - other).max() / np.abs(one).max())
    by = CASES[words]
    assert (moved > 1e-5) == bool(by), moved
    for rows, each in zip((2, 5), scores, strict=True):
        assert each.remark == (
            f"evaluated in batches of {rows} examples, which can change each other's scores "
            f"because of {by}"
            if by
            else ""
        )
        labels = next(score_rows(each, {})).labels
        assert labels.get("remark", "") == each.remark
