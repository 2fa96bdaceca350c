"""Presets that compare families by a claim: what has to be equal between them is."""

from dataclasses import replace

from lra.composition.compose import facts, typed
from lra.composition.hydra_entry import entries
from lra.composition.run import Composed
from lra.models.backbone.model import Backbone
from lra.models.state import size_bytes


def held_bytes(entry: Composed, length: int) -> int:
    """Return the bytes of the state that a model has for a text of so many tokens."""
    run = typed(entry.config)
    model = Backbone(run.backbone, replace(facts(run), max_length=length), run.mixers, seed=0)
    return size_bytes(model.initial_state(1, length))


def compared(preset: str) -> dict[str, Composed]:
    """Return one run of each family of a preset."""
    one_run = [f"+experiment={preset}", "seed=0", "optim.peak_learning_rate=0.01"]
    return {entry.config["model"]["name"]: entry for entry in entries(one_run)}


def test_recurrences_of_the_preset_of_recall_remember_equally_many_bytes() -> None:
    runs = compared("recall")
    length = runs["delta_net"].config["task"]["length"]
    held = {name: held_bytes(entry, length) for name, entry in runs.items()}
    convolution, matrices, places = 2 * 32 * 4, 2 * 16 * 16 * 4, 8
    assert held["delta_net"] == convolution + matrices + places
    assert held["mamba2"] == held["gated_delta_net"] == held["delta_net"]
    assert held["retnet"] == held["delta_net"] + places  # its rotation counts tokens
    assert held["softmax"] > held["delta_net"]
    assert held_bytes(runs["delta_net"], 2 * length) == held["delta_net"]


def test_layers_of_the_preset_of_selective_copying_remember_equally_many_numbers() -> None:
    held = {name: held_bytes(entry, 32) for name, entry in compared("selection").items()}
    layers, numbers, places = 2, 512, 8
    assert held["s4"] == layers * numbers * 4 + places
    assert held["mamba"] == held["s4"] + layers * 3 * 64 * 4  # inputs of its short convolution
