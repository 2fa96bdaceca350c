"""Options of mixers in a sweep over models that do not all have them."""

import pytest

from lra.composition.hydra_entry import entries
from lra.errors import ConfigError


def swept(*words):
    found = entries(["-m", *words, "logger=none"])
    return [(e.config["model"]["name"], e.config["model"]["mixer"].get("variant")) for e in found]


def test_a_model_without_variants_is_faithful_once(capsys):
    found = swept("model=cosformer,linformer", "model.mixer.variant=faithful,lra")
    assert found == [("cosformer", None), ("linformer", "faithful"), ("linformer", "lra")]
    said = capsys.readouterr().err
    assert (
        "1 combination skipped, because model=cosformer has no option model.mixer.variant" in said
    )


def test_any_option_of_a_mixer_is_for_the_models_that_have_it():
    found = swept("model=cosformer,linformer,local", "model.mixer.block=16,32")
    assert found == [("local", "faithful")] * 2


def test_a_sweep_that_leaves_nothing_else_is_as_it_was():
    assert swept("model=h_transformer,longformer", "seed=0,1", "model.mixer.bias=true") == [
        (name, variant)
        for name, variant in (("h_transformer", None), ("longformer", "faithful"))
        for _ in range(2)
    ]


@pytest.mark.parametrize("word", ["model.mixer.variat=lra", "model.mixer.variant=lra"])
def test_an_option_that_no_model_has_is_refused(word):
    with pytest.raises(ConfigError, match=r"unknown key 'model\.mixer\.varia"):
        swept("model=cosformer,skyformer", word)


def test_one_run_is_refused_as_before():
    with pytest.raises(ConfigError, match=r"unknown key 'model\.mixer\.variant'"):
        entries(["model=cosformer", "model.mixer.variant=lra"])
