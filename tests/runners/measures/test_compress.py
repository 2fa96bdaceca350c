"""Compression of a trained model: rows of every variant, and what is refused."""

from dataclasses import fields
from types import SimpleNamespace

import pytest

from lra.models.backbone.config import BackboneConfig, Head, TaskFacts
from lra.models.backbone.model import Backbone
from lra.models.compression.magnitude import share_of_zeros
from lra.models.families.linear import LinearAttention
from lra.models.families.softmax import SoftmaxAttention
from lra.models.mixer import Unsupported
from lra.reports.sections.compression import OPTIONS
from lra.runners.measurement.hardware import HardwareProfile
from lra.runners.measures.compress import Compress, CompressionMethod
from lra.runners.training.optim import OptimConfig
from tests.runners.tiny_task import Tiny

FACTS = TaskFacts(head=Head.classification, vocabulary=8, classes=3, max_length=12, padded=True)
FEW = {"timed_steps": 3, "warmup_steps": 1, "batch_size": 2, "repeat_limit_s": 0.0}


def build(mixer=LinearAttention, **options):
    config = BackboneConfig(depth=2, width=16, heads=4, feed_forward_width=16, **options)
    return Backbone(config, FACTS, [mixer], seed=0)


def work(mixer=LinearAttention, **options):
    return SimpleNamespace(
        trained=lambda: build(mixer, **options),
        build=lambda: build(mixer),
        stored=lambda: build(SoftmaxAttention),
        stored_task=lambda: "tiny",
        facts=lambda: FACTS,
        task=Tiny(),
        hardware=HardwareProfile(name="cpu"),
        optim=OptimConfig(steps=5, batch_size=8, warmup_steps=5),
        seed=1,
    )


def rows(cell=None, **options):
    return list(Compress(**FEW | options).run(cell or work()))


def by_variant(found, metric, **labels):
    """Return the values of a metric by (amount, stage)."""
    return {
        (row.labels["amount"], row.labels["stage"]): row.value
        for row in found
        if row.metric == metric and labels.items() <= row.labels.items()
    }


def test_heads_leave_in_steps_and_take_their_weights_along():
    found = rows(
        method=CompressionMethod.heads, amounts=[0.25, 0.5], importance_examples=12, steps=2
    )
    variants = [
        (amount, stage)
        for amount, first in (("0", "trained"), ("0.25", "compressed"), ("0.5", "compressed"))
        for stage in (first, "fine-tuned")
    ]
    for metric in ("accuracy", "loss"):
        assert [*by_variant(found, metric, split="test")] == variants
    parameters = by_variant(found, "parameters")
    head = 4 * 4 * 16 + 3 * 4  # of width 4
    assert [parameters["0", "trained"] - parameters[v] for v in variants] == [
        0, 0, 2 * head, 2 * head, 4 * head, 4 * head
    ]  # fmt: skip
    flops, sizes = by_variant(found, "flops"), by_variant(found, "disk_bytes", storage="dense")
    assert flops["0.5", "compressed"] < flops["0.25", "compressed"] < flops["0", "trained"]
    saved = sizes["0", "trained"] - sizes["0.5", "compressed"]
    assert saved == pytest.approx(4 * 4 * head, abs=64)
    losses = by_variant(found, "loss", split="test")
    assert losses["0.5", "compressed"] != losses["0.5", "fine-tuned"]
    scored = [row for row in found if row.metric == "head_importance"]
    assert [(row.labels["layer"], row.labels["head"]) for row in scored] == [
        (str(layer), str(head)) for layer in range(2) for head in range(4)
    ]
    for variant in variants:
        (ratio,) = (row for row in found if row.metric == "compressed_time_ratio"
                    and (row.labels["amount"], row.labels["stage"]) == variant)  # fmt: skip
        assert len(ratio.samples) == 3
    assert "KiB" in Compress.headline(found)


def test_usual_shares_of_heads_end_where_each_layer_has_one():
    found = rows(method=CompressionMethod.heads, importance_examples=4)
    assert {row.labels["heads"] for row in found if "heads" in row.labels} == {
        f"{left} of 8" for left in range(2, 8)
    }
    with pytest.raises(ValueError, match="at least one head"):
        rows(method=CompressionMethod.heads, amounts=[0.9])


@pytest.mark.parametrize("gradual", [False, True])
def test_zeros_stay_in_a_fine_tuning_or_come_on_the_way(gradual):
    found = rows(
        method=CompressionMethod.magnitude,
        amounts=[0.5],
        steps=4,
        **({"gradual": True, "prune_every": 1} if gradual else {}),
    )
    others, numbers = by_variant(found, "nonzero_parameters"), by_variant(found, "parameters")
    zeros = {v: numbers[v] - others[v] for v in others}
    model = build()
    maps = sum(p.numel() for n, p in model.named_parameters()
               if n.endswith("weight") and p.ndim == 2 and "embedding" not in n)  # fmt: skip
    for stage in ("compressed", "fine-tuned"):
        assert zeros["0.5", stage] - zeros["0.5", "compressed"] <= 0
        assert zeros["0.5", stage] >= round(0.5 * maps)
    dense = by_variant(found, "disk_bytes", storage="dense")
    sparse = by_variant(found, "disk_bytes", storage="sparse")
    assert dense["0.5", "compressed"] == dense["0", "trained"]
    assert sparse["0.5", "fine-tuned"] < dense["0", "trained"] - 1.5 * maps
    assert {row.labels["products"] for row in found if "products" in row.labels} == {"dense"}
    assert share_of_zeros(model) == 0


def test_shared_columns_at_full_width_change_nothing_and_then_learn():
    found = rows(work(SoftmaxAttention), method=CompressionMethod.shared_heads,
                 amounts=[0.5, 1.0], steps=2)  # fmt: skip
    losses = by_variant(found, "loss", split="test")
    assert losses["1", "compressed"] == pytest.approx(losses["0", "trained"], abs=1e-5)
    assert losses["0.5", "compressed"] != pytest.approx(losses["0", "trained"], abs=1e-5)
    assert losses["0.5", "fine-tuned"] != losses["0.5", "compressed"]
    errors = {(row.labels["amount"], row.labels["layer"]): row.value for row in found
              if row.metric == "decomposition_error"}  # fmt: skip
    assert set(errors) == {(share, layer) for share in ("0.5", "1") for layer in "01"}
    assert max(errors["1", layer] for layer in "01") < 1e-6 < errors["0.5", "0"] < 1
    with pytest.raises(Unsupported, match="LinearAttention"):
        rows(method=CompressionMethod.shared_heads)


def ways(found, metric, **labels):
    return {
        row.labels.get("way", row.labels["stage"]): row.value
        for row in found
        if row.metric == metric and labels.items() <= row.labels.items()
    }


def test_a_student_has_fewer_layers_and_learns_with_and_without_its_teacher():
    found = rows(method=CompressionMethod.distillation, temperature=3.0)
    losses = ways(found, "loss", split="test")
    assert set(losses) == {"trained", "compressed", "labels alone", "taught"}
    assert len(set(losses.values())) == 4
    numbers = ways(found, "parameters")
    assert numbers["trained"] > numbers["taught"] == numbers["compressed"]
    assert {row.labels["kept_layers"] for row in found if "kept_layers" in row.labels} == {"1 of 2"}
    whole = rows(method=CompressionMethod.distillation, taught_share=0.0)
    assert ways(whole, "loss", split="test")["taught"] == losses["labels alone"]


def test_a_named_teacher_teaches_the_run_s_own_model_as_drawn_on_its_task():
    found = rows(method=CompressionMethod.distillation, weights="cell", hidden_weight=1.0)
    losses = ways(found, "loss", split="test")
    assert losses["compressed"] != losses["trained"]
    cell = work()
    cell.stored_task = lambda: "listops"
    with pytest.raises(
        Unsupported, match="the teacher was trained on task=listops, but this run has task=tiny"
    ):
        rows(cell, method=CompressionMethod.distillation, weights="cell")


def test_layers_of_one_module_become_copies_of_one_function():
    found = rows(work(layer_groups=1), method=CompressionMethod.unshare, steps=2)
    losses, numbers = (by_variant(found, m, **more) for m, more in
                       (("loss", {"split": "test"}), ("parameters", {})))  # fmt: skip
    assert losses["0", "compressed"] == losses["0", "trained"] != losses["0", "fine-tuned"]
    assert numbers["0", "compressed"] > numbers["0", "trained"]
    with pytest.raises(Unsupported, match="layer_groups=1"):
        rows(method=CompressionMethod.unshare)


def test_a_report_tells_no_models_apart_by_options_of_the_runner():
    assert {f"runner.{field.name}" for field in fields(Compress)} == OPTIONS
