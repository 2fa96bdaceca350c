"""The share of attention that an index recalls, by length, of whole models."""

from functools import partial

import pytest
import torch

from lra.models.families.indexed_attention import IndexedAttention
from lra.models.families.softmax import SoftmaxAttention
from lra.models.mixer import Flow, Layout, Unsupported
from lra.runners.measurement.hardware import HardwareProfile
from lra.runners.measures.index_recall import IndexRecall, index_recall
from tests.runners.small_text import language_model, text_task

CPU = HardwareProfile(name="cpu")
LENGTH = 32
CONFIG = IndexRecall(examples=6, batch_size=3)
family = partial(IndexedAttention, scores="dsa", budget=4)


def rows_of(model, config=CONFIG):
    """Return the rows, by metric, layer and length."""
    rows = index_recall(model, text_task(sample=6000, length=LENGTH), config=config, hardware=CPU)
    return {(row.metric, int(row.labels["layer"]), int(row.labels["length"])): row for row in rows}


def test_rows_of_layers_and_lengths_count_the_queries_that_have_a_choice():
    rows = rows_of(language_model(family, max_length=LENGTH))
    wanted = {(layer, length) for layer in (0, 1) for length in (8, 16, 32)}
    for metric in ("index_recall", "index_mass"):
        assert {key[1:] for key in rows if key[0] == metric} == wanted
    # Of each of 6 windows, tokens 5 to 8, 9 to 16 and 17 to 32.
    counts = {
        length: int(rows["index_recall", 0, length].labels["queries"]) for _, length in wanted
    }
    assert counts == {8: 24, 16: 48, 32: 96}
    for _, layer, length in rows:
        recall, mass = (rows[name, layer, length].value for name in ("index_recall", "index_mass"))
        assert 0 < mass < recall < 1


def test_training_the_index_alone_raises_its_recall():
    torch.manual_seed(0)
    model, task = language_model(family, max_length=LENGTH), text_task(length=LENGTH)
    for parameter in model.parameters():  # attention that differs among keys
        parameter.data *= 2
    before = rows_of(model)
    index = [p for name, p in model.named_parameters() if ".index." in name]
    optimiser = torch.optim.Adam(index, 1e-2)
    batch = next(iter(task.batches("train", batch_size=8, seed=0)))
    model.train()
    for block in model.stack.blocks:
        block.mixer.alone = "index"
    for _ in range(60):
        optimiser.zero_grad()
        model(batch.tokens, batch.target).penalties["index"].backward()
        optimiser.step()
    after = rows_of(model)
    for layer in (0, 1):
        key = "index_recall", layer, 32
        assert after[key].value > before[key].value + 0.02


def test_a_model_without_an_index_or_a_choice_is_refused():
    with pytest.raises(Unsupported, match=r"no layer.*has an index: choose model=indexed"):
        rows_of(language_model(SoftmaxAttention, max_length=LENGTH))
    with pytest.raises(Unsupported, match=r"no query has more tokens.*lower model.mixer.budget"):
        rows_of(
            language_model(partial(IndexedAttention, scores="dsa", budget=32), max_length=LENGTH)
        )


def test_the_mixers_are_left_as_they_were():
    model = language_model(family, max_length=LENGTH)
    rows_of(model)
    assert all("extend" not in vars(block.mixer) for block in model.stack.blocks)
    assert isinstance(
        model.stack.blocks[0].mixer.extend(Flow(torch.zeros(1, 4, 8)), Layout()), Flow
    )


@pytest.mark.parametrize("options", [{"split": "train"}, {"examples": 0}, {"batch_size": 0}])
def test_bad_options_are_refused(options):
    with pytest.raises(ValueError, match=r"got ('train'|0)"):
        IndexRecall(**options)
