"""What files set gives way where nothing reads it, and what a word sets is refused there."""

import json
import re
from functools import reduce
from operator import getitem

import pytest
import torch

from lra.composition.compose import build_model, typed
from lra.composition.hydra_entry import composed, entries
from lra.composition.protocol import changes
from lra.errors import ConfigError
from lra.models.mixer import Idle, Unsupported
from lra.sweep.trainings import trainings
from tests.contracts.choices_of_configs import MODELS

TASKS = {
    "classification": "task=listops",
    "of numbers": "task=image",
    "pair": "task=retrieval",
    "language modelling": "task=wikitext2",
    "with a memory": "task=wikitext2 task.regime=memory task.memory=64",
    "masked modelling": "task=proteins_masked",
    "masked classification": "task=text task.objective=masked",
    "sequence to sequence": "task=reversal",
    "encoder and decoder": "task=reversal model.backbone.decoder_depth=1",
    "prefix": "task=listops task.objective=prefix",
    "permutation modelling": "task=text task.objective=permutation",
    "recall, with positions of a preset": "+experiment=diagnostics_train task=mqar",
    "without positions, by a protocol": "+protocol=s5 task=listops",
    "with a CLS vector of a preset": "+experiment=lra_figure3",
}
OF_AN_OPTION = re.compile(
    r"(got (model\.)?(backbone\.|mixer\.)?(\w+)=|has no effect|has no use for|, not \w+$)"
)
"""What a refusal says of the value of an option."""


def built(config):
    """Build a model without contents."""
    with torch.device("meta"):
        return build_model(typed(config))


def of_words(*words):
    """Return one configuration, and the model that it makes."""
    (entry,) = entries([*words, "hydra.sweeper.params={}"])
    return entry.config, built(entry.config)


@pytest.mark.share(6)
@pytest.mark.parametrize("task", TASKS)
def test_every_family_meets_every_kind_of_task_without_an_option_in_the_way(task):
    words, models, of_options = TASKS[task].split(), 0, {}
    runs = composed([[f"model={family}", *words] for family in MODELS], {})
    for family, entry in zip(MODELS, runs, strict=True):
        try:
            built(entry.config)
            models += 1
        except Unsupported as refused:
            said = OF_AN_OPTION.search(str(refused))
            if said and f"{said[4]}=" not in TASKS[task]:
                of_options[family] = str(refused)
    assert not of_options
    assert models >= 10


@pytest.mark.parametrize("family", ["compressed", "hyena", "mesa_net", "multires_conv"])
def test_families_that_look_back_are_read_at_their_end_and_are_language_models(family):
    assert of_words(f"model={family}", "task=listops")[0]["model"]["backbone"]["pooling"] == "last"
    config, model = of_words(f"model={family}", "task=wikitext2")
    assert config["model"]["backbone"]["pooling"] == "cls"
    assert model.causal
    with pytest.raises(Idle, match=r"pooling has no effect .* got last"):
        of_words(f"model={family}", "task=wikitext2", "model.backbone.pooling=last")


BY_FILES = {
    "a protocol's pooling": ("+protocol=self_pretraining task=listops task.objective=masked",
                             "model.backbone.pooling", "mean", "cls"),
    "its biases, in a family without queries": ("+protocol=lra_paper task=listops model=lru",
                                                "model.backbone.qkv_bias", False, None),
    "its memory, in a family whose state has one size": (
        "+protocol=adaptive_span task=enwik8 model=retnet", "model.backbone.memory", 8192, None),
    "its option of another optimiser": ("+protocol=s4 task=listops model=s4 optim=sgd",
                                        "optim.betas", [0.9, 0.999], [0.9, 0.98]),
    "its dropout within networks": (
        "+protocol=baevski_auli task=wikitext103 model.backbone.feed_forward=none",
        "model.backbone.activation_dropout", 0.1, None),
    "its option of a mixer": ("+protocol=mega task=listops task.objective=causal model=mega",
                              "model.mixer.truncation", 1024, None),
}  # fmt: skip


@pytest.mark.parametrize("case", BY_FILES)
def test_what_a_file_sets_gives_way_and_the_same_by_hand_is_refused(case):
    line, key, by_file, default = BY_FILES[case]
    words = line.split()
    config, _ = of_words(*words)
    *groups, name = key.split(".")
    assert reduce(getitem, groups, config)[name] == default
    assert key not in changes(config)
    with pytest.raises((Idle, ConfigError), match=rf"{name} has n|{key}="):
        of_words(*words, f"{key}={json.dumps(by_file)}")


OF_OTHERS = {
    "rotary positions": ("+protocol=rotary task=text model=mamba2", "positions", "rotary",
                         "learned"),
    "no positions": ("+protocol=s5 task=listops model=linear", "positions", "none", "learned"),
    "a CLS vector": ("+protocol=lra_code task=text model=hyena", "pooling", "cls", "last"),
    "a mean with a CLS vector": ("+protocol=rotary task=text model=tlb", "pooling",
                                 "mean_with_cls", "mean"),
}  # fmt: skip


@pytest.mark.parametrize("case", OF_OTHERS)
def test_what_a_family_cannot_have_gives_way_and_the_command_and_the_rows_say_so(case, capsys):
    line, name, by_file, own = OF_OTHERS[case]
    words, key = line.split(), f"model.backbone.{name}"
    config, _ = of_words(*words)
    assert config["model"]["backbone"][name] == own
    assert changes(config)[key] == (by_file, own)
    family = config["model"]["name"]
    assert f"{family} cannot use " in capsys.readouterr().err
    with pytest.raises(Idle, match=f"{name}"):
        of_words(*words, f"{key}={by_file}")


OWN = """
import torch
from torch import nn
import lra

class Plain(nn.Linear):
    def __init__(self, dim):
        super().__init__(dim, dim)

class OfContents(Plain):
    def __init__(self, dim):
        super().__init__(dim)
        self.weight[0, 0].item()

Mine, Odd = (lra.wrap(module, causal=True) for module in (Plain, OfContents))
"""


@pytest.mark.parametrize(("name", "positions"), [("Mine", "learned"), ("Odd", "rotary")])
def test_positions_of_a_preset_give_way_in_a_module_of_ones_own(
    name, positions, tmp_path, monkeypatch
):
    """One that cannot be built without contents is refused by its cell, and not here."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "mine_of_contents.py").write_text(OWN)
    (tmp_path / "model").mkdir()
    mixer = f"mixer: {{class_path: mine_of_contents.{name}}}"
    (tmp_path / "model" / "mine.yaml").write_text(f"name: mine\n{mixer}\n")
    words = ["+experiment=diagnostics_train", "task=mqar", "model=mine", "runner=train"]
    (entry,) = entries([*words, "--config-dir", str(tmp_path), "plugins=mine_of_contents"])
    assert entry.config["model"]["backbone"]["positions"] == positions


def test_an_option_that_one_layer_of_a_hybrid_reads_stays():
    words = ["+protocol=lra_paper", "task=listops", "model=sdpa"]
    layers = "model.layers=[sdpa,sdpa,sdpa,lru]"
    (entry,) = entries([*words, layers, "model.backbone.depth=4"])
    assert entry.config["model"]["backbone"]["qkv_bias"] is False


def test_what_is_read_stays_as_it_is():
    for line in (
        "+protocol=s4 task=listops model=s4",
        "+protocol=lra_paper task=text",
        "+protocol=mega task=image model=mega",
        "+protocol=awd_lstm task=wikitext2 model=lstm",
    ):
        (entry,) = entries(line.split())
        assert not changes(entry.config)


def test_what_is_printed_has_given_way_too(capsys):
    assert not entries(
        ["model=hyena", "task=wikitext2", "--cfg", "job", "--package", "model.backbone"]
    )
    assert "\npooling: cls\n" in capsys.readouterr().out


def test_what_a_training_reads_that_a_run_starts_from_stays():
    """As the map to masked tokens, which is a table of its own in the S4 code's Transformers."""
    words = ["+protocol=self_pretraining", "task=listops", "task.source=sample", "model=softmax"]
    (entry,) = entries([*words, "logger=none", "runner=transfer"])
    run = typed(entry.config)
    (source,) = trainings(run).values()
    assert not run.backbone.tied_embeddings
    assert not source.backbone.tied_embeddings
    with torch.device("meta"):
        build_model(run)
        build_model(source)
