"""Attention mass by region and age: against softmax written out, and conserved in every family."""

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from lra.models.backbone.config import BackboneConfig
from lra.models.families.adaptive_span import AdaptiveSpan
from lra.models.families.compressive_transformer import CompressiveTransformer
from lra.models.families.shortformer import Shortformer
from lra.models.families.softmax import SoftmaxAttention
from lra.models.families.transformer_xl import TransformerXL
from lra.models.mixer import Positions, Unsupported
from lra.runners.measurement.hardware import HardwareProfile
from lra.runners.measures.attention.mass import recorded_masses, recurrent_mixers
from lra.runners.measures.attention_mass import AttentionMass, attention_mass, regions
from lra.tasks.language.base import Regime
from tests.runners.small_text import language_model, text_task

CPU = HardwareProfile(name="cpu")
LENGTH, MEMORY = 8, 12


task_of = partial(
    text_task, sample=2000, length=LENGTH, regime=Regime.memory, memory=MEMORY, contiguous=True
)


COMPRESSIVE = partial(CompressiveTransformer, rate=2, compressed=5)


def model_of(mixer, positions=Positions.none):
    given = {"max_length": LENGTH, "carried": MEMORY, "positions": positions, "qkv_bias": False}
    return language_model(mixer, **given).double().eval()


def masses_of(rows, layer="all", metric="attention_mass"):
    return {
        (row.labels["region"], row.labels["bucket"]): row.value
        for row in rows
        if row.labels["layer"] == layer and row.metric == metric
    }


@pytest.mark.parametrize("mixer", [TransformerXL, COMPRESSIVE])
def test_the_weights_are_those_of_softmax_written_out(mixer):
    task, model = task_of(), model_of(mixer)
    calls = []
    for block in model.stack.blocks:

        def reading(q, k, v, segment, own=block.mixer.read):
            calls.append((q, k, segment))
            return own(q, k, v, segment)

        block.mixer.read = reading
    rows = list(
        attention_mass(
            model, task, config=AttentionMass(segments=3, batch_size=2, buckets=3), hardware=CPU
        )
    )
    literal = []
    for q, k, segment in calls:
        if segment.empty is not None:
            continue
        length, keys = q.shape[2], k.shape[2]
        place = torch.arange(keys)
        distance = place[keys - length :, None] - place
        seen = distance >= 0
        if mixer is TransformerXL:
            seen &= distance < MEMORY
        scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~seen, -torch.inf)
        literal.append(scores.softmax(-1).mean((1, 2)))
    # Each of 3 segments is read by 2 layers, for the weights and then for the answer.
    assert len(literal) == 3 * 2 * 2
    first = torch.cat([mass for n, mass in enumerate(literal) if n % 4 == 0])
    held = 5 if mixer is COMPRESSIVE else 0
    for region, start, end in (
        ("compressed", 0, held), ("memory", held, held + MEMORY),
        ("segment", held + MEMORY, held + MEMORY + LENGTH),
    ):  # fmt: skip
        if start == end:
            continue
        own = first[:, start:end].sum(1)
        found = masses_of(rows, "0")
        assert found[region, "all"] == pytest.approx(float(own.mean()))
        errors = masses_of(rows, "0", "attention_mass_error")
        assert errors[region, "all"] == pytest.approx(float(own.std()) / 6**0.5)
        for bucket, keys in enumerate(np.array_split(np.arange(start, end), 3), 1):
            expected = float(first[:, torch.from_numpy(keys)].sum(1).mean())
            assert found[region, str(bucket)] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("mixer", "positions"),
    [
        (TransformerXL, Positions.transformer_xl),
        (COMPRESSIVE, Positions.transformer_xl),
        (partial(CompressiveTransformer, rate=2, compression="most_used"), Positions.rotary),
        (Shortformer, Positions.position_infused),
        (partial(AdaptiveSpan, span=6, ramp=2, initial=0.5), Positions.none),
    ],
)
def test_mass_is_conserved_and_the_model_answers_as_before(mixer, positions):
    task, model = task_of(), model_of(mixer, positions)
    tokens = next(iter(task.batches("test", batch_size=3, seed=0))).tokens
    before, _ = model.predict(tokens, None, model.initial_state(3, MEMORY))
    config = AttentionMass(segments=2, batch_size=2, buckets=2)
    rows = list(attention_mass(model, task, config=config, hardware=CPU))
    for layer in ("0", "1", "all"):
        found = masses_of(rows, layer)
        whole = sum(value for (_, bucket), value in found.items() if bucket == "all")
        parts = sum(value for (_, bucket), value in found.items() if bucket != "all")
        assert whole == pytest.approx(1.0)
        assert parts == pytest.approx(1.0)
    after, _ = model.predict(tokens, None, model.initial_state(3, MEMORY))
    assert torch.equal(before, after)
    assert all("read" not in vars(block.mixer) for block in model.stack.blocks)


def test_an_empty_memory_is_not_judged():
    task, model = task_of(), model_of(TransformerXL)
    mixers = recurrent_mixers(model.stack)
    state = model.initial_state(2, MEMORY)
    seen = []
    with recorded_masses(mixers) as masses, torch.no_grad():
        for batch in list(task.batches("test", batch_size=2, seed=0))[:4]:
            state = model.run(batch.tokens, None, state).state
            seen.append(sorted(masses))
            masses.clear()
    assert seen == [[], [], [0, 1], [0, 1]]
    config = AttentionMass(batch_size=2)
    with pytest.raises(Unsupported, match=r"too short: each of 2 texts in parallel"):
        list(attention_mass(model_of(TransformerXL), task_of(memory=10**4), config=config,
                            hardware=CPU))  # fmt: skip


def test_models_and_tasks_without_a_memory_are_refused():
    config = AttentionMass()
    with pytest.raises(Unsupported, match="SoftmaxAttention has no memory of earlier segments"):
        list(attention_mass(model_of(SoftmaxAttention), task_of(), config=config, hardware=CPU))
    plain = task_of(regime=Regime.non_overlapping, memory=0, contiguous=False)
    with pytest.raises(Unsupported, match="this task has no memory"):
        list(attention_mass(model_of(TransformerXL), plain, config=config, hardware=CPU))


def test_regions_and_passes():
    assert regions(20, segment=5, memory=10) == {
        "compressed": (0, 5), "memory": (5, 15), "segment": (15, 20),
    }  # fmt: skip
    assert regions(9, segment=5, memory=10) == {"memory": (0, 4), "segment": (4, 9)}
    work = SimpleNamespace(task=task_of(), backbone=BackboneConfig(width=8, heads=2))
    (passes,) = AttentionMass(segments=4, batch_size=2).passes(work)
    assert (passes.times, passes.rows, passes.length) == (1.5 + 8, 2, LENGTH)
