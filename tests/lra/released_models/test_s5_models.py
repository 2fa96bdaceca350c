"""Whole S5 models by the protocol's settings, beside what the steps of its trainer say.

`s5_models.py` has stored log probabilities of evaluation and the first loss of training, and the
ids and lengths that reached the model for made-up rows; ours answers what our tasks make of these.
There an end token closes every text. With one of our own, whose vector is theirs, models agree;
what it does is declared, and within LARGEST. The bias of their map of ids is added to our rows.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from lra.composition.compose import build_model, facts, typed
from lra.composition.hydra_entry import entries
from lra.composition.run import Run
from lra.models.ops.state_space.layer import StateSpace
from lra.tasks.task import Batch
from tests.lra.released_models import cases
from tests.lra.released_models.doors import answered, handed

STORED = np.load(Path(__file__).with_name("s5.npz"))
TASKS = ("listops", "text", "retrieval", "image", "pathfinder", "pathx")
TEXTS = TASKS[:3]
LENGTH, STEP = 128, -4.0
"""As in `s5_models.py`."""
PAD, END = 0, 2
"""Their ids; 1 is that of unknown tokens."""
IDS = {"listops": 20, "text": 135}
"""Columns of their map of ids; elsewhere as many as there are ids."""
LARGEST = 0.26
"""The most that end tokens do to log probabilities, relative to the largest."""
RELATIVE = 1e-8
LAYER, THERE = r"stack\.blocks\.(\d)\.", "encoder/layers_{0}/"
NAMES = {
    LAYER + r"mixer_norm\.weight": THERE + "norm/scale",
    LAYER + r"mixer_norm\.running_mean": THERE + "norm/mean",
    LAYER + r"mixer_norm\.(bias|running_var)": THERE + "norm/{1}",
    LAYER + r"mixer\.skip": THERE + "seq/D",
    LAYER + r"mixer\.readout": THERE + "seq/C",
    LAYER + r"mixer\.dynamics\.real": THERE + "seq/Lambda_re",
    LAYER + r"mixer\.dynamics\.frequency": THERE + "seq/Lambda_im",
    LAYER + r"mixer\.dynamics\.entry": THERE + "seq/B",
    LAYER + r"mixer\.dynamics\.(log_step)": THERE + "seq/{1}",
    LAYER + r"mixer\.out_proj\.weight": THERE + "out2/kernel",
    LAYER + r"mixer\.out_proj\.bias": THERE + "out2/bias",
    r"embedding\.weight": "encoder/encoder/kernel",
    r"embedding\.bias": "encoder/encoder/bias",
}


def composed(task: str) -> Run:
    words = ["+protocol=s5", f"task={task}", "model=s5", "logger=none", "runner=train"]
    words += ["task.source=sample"] if task in ("text", "retrieval", "image") else []
    (entry,) = entries(words)
    return typed(entry.config)


def batch(run: Run) -> Batch:
    """Return what our task makes of the rows."""
    if run.task_name not in TEXTS:
        return handed(run, cases.tokens(run.task_name, LENGTH))
    ids = cases.printable(run.task_name, LENGTH - 1)
    return handed(run, nn.functional.pad(ids, (0, 1)))


def side_by_side(part: Tensor) -> Tensor:
    """Return texts of pairs as they stand there: second ones behind all first ones."""
    return part.transpose(0, 1).flatten(0, 1)


def table(run: Run) -> dict[int, int]:
    """Return their id of each of our tokens, as positions of texts show it."""
    given, theirs = batch(run), torch.from_numpy(STORED[f"{run.task_name}.ids"])
    there = side_by_side(given.keep)
    tokens = side_by_side(given.tokens)[there].tolist()
    return dict(zip(tokens, theirs[there].tolist(), strict=True))


def released(run: Run, name: str, own: Tensor) -> Tensor:
    """Return the released weights of one of our parameters."""
    shape = tuple(own.shape)
    if name.startswith("head."):
        places = {"head.hidden": "layer1/", "head.out": "layer2/"}
        part, _, kind = name.rpartition(".")
        place = places[part] if run.task_name == "retrieval" else ""
        weight = cases.weight(f"decoder/{place}{'kernel' if kind == 'weight' else kind}", shape)
        if name == "head.hidden.weight":  # of a, b, a - b and a * b there
            first, second, difference, product = weight.chunk(4, dim=1)
            weight = torch.cat((first, second, product, difference), dim=1)
        return weight
    theirs = cases.renamed(name, NAMES)
    if theirs.endswith("/C"):
        sides, parts, width, states = shape
        if run.mixer_options["output"] == "complex":
            whole = cases.weight(theirs, (parts, width, sides * states))
            return torch.stack(whole.chunk(sides, dim=-1))
        return torch.stack([cases.weight(f"{theirs}{side}", shape[1:]) for side in (1, 2)])
    if name == "embedding.weight" and run.task_name in TEXTS:
        ids = table(run)
        columns = IDS.get(run.task_name, len(ids) + 3)
        weight = cases.weight(theirs, (shape[1], columns)).T
        weight = weight + cases.weight("encoder/encoder/bias", shape[1:])
        return weight[[*(ids.get(i, PAD) for i in range(len(own))), END]]
    return cases.weight(theirs, shape) + STEP * theirs.endswith("log_step")


def built(run: Run) -> nn.Module:
    """Return the protocol's model; behind its tokens an end token has a vector."""
    found = build_model(run, given_facts=replace(facts(run), max_length=LENGTH)).double().eval()
    state = dict(found.named_parameters()) | dict(found.named_buffers())
    for name, own in state.items():
        if own.is_floating_point():
            own.data = released(run, name, own).detach()
    for module in found.modules():
        module.p = 0.0  # of dropout
        if isinstance(module, StateSpace):
            module.dropout = 0.0
    return found


def ended(run: Run) -> Batch:
    """Return the batch with an end token behind each text."""
    found = batch(run)
    if run.task_name not in TEXTS:
        return found
    lengths = found.keep.sum(-1, keepdim=True)
    return found._replace(
        tokens=found.tokens.scatter(-1, lengths, run.task.spec.vocabulary),
        keep=torch.arange(LENGTH) <= lengths,
    )


@pytest.mark.parametrize("task", TEXTS)
def test_the_same_reaches_the_model_but_for_an_end_token(task):
    run = composed(task)
    given, ids = batch(run), table(run)
    lengths, theirs = side_by_side(given.keep).sum(-1), STORED[f"{task}.ids"]
    assert len({*ids.values(), PAD, END}) == len(ids) + 2
    assert (STORED[f"{task}.lengths"] == (lengths + 1).numpy()).all()
    rows = zip(side_by_side(given.tokens).tolist(), lengths.tolist(), theirs.tolist(), strict=True)
    for tokens, length, row in rows:
        assert row[:length] == [ids[token] for token in tokens[:length]]
        assert row[length:] == [END] + [PAD] * (LENGTH - length - 1)


@pytest.mark.parametrize("task", TASKS)
def test_s5_models_answer_as_the_released_code(task):
    run = composed(task)
    model, theirs = built(run), STORED[f"{task}.logits"]
    with torch.no_grad():
        ours, without = (
            torch.from_numpy(answered(model, given)).log_softmax(-1).numpy()
            for given in (ended(run), batch(run))
        )
    assert cases.apart(ours, theirs) <= RELATIVE
    assert cases.apart(without, theirs) <= RELATIVE + LARGEST * ("end" in run.config["deviations"])


@pytest.mark.parametrize("task", [task for task in TASKS if STORED[f"{task}.loss"] > 0])
def test_s5_models_lose_as_the_released_code_in_training(task):
    run = composed(task)
    model, given = built(run).train(), ended(run)
    tokens = given.tokens.double() if given.tokens.is_floating_point() else given.tokens
    with torch.no_grad():
        loss = model(tokens, given.target, given.keep).nll.mean()
    assert float(loss) == pytest.approx(float(STORED[f"{task}.loss"]), rel=RELATIVE)
