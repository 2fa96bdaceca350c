"""Sets of models stand for what their files say of them."""

from itertools import chain
from pathlib import Path

import pytest

from lra.composition.catalogue import names
from lra.composition.compose import core_of, group_file, make
from lra.composition.hydra_entry import entries
from lra.composition.selection import expand_sets, sets
from lra.errors import ConfigError
from lra.models.backbone.model import Backbone, BackboneConfig, Head, TaskFacts
from lra.models.mixer import Unsupported


def test_all_is_every_model_once() -> None:
    assert sorted(sets()["all"]) == names("model")


def test_every_model_is_of_one_kind() -> None:
    known = sets()
    kinds = [known[name] for name in known if name not in ("all", "causal", "approximations")]
    assert sorted(chain(*kinds)) == names("model")


@pytest.mark.parametrize("name", names("model"))
def test_causal_ones_are_those_that_can_be_built_so(name: str) -> None:
    node = group_file("model", name)
    mixers, stack, _ = core_of(node, [])
    options = {**(node.get("backbone") or {}), "depth": 2, "width": 32, "heads": 2}
    config = make(BackboneConfig, options, "model.backbone")
    facts = TaskFacts(
        head=Head.language_modelling, vocabulary=10, classes=10, max_length=128, padded=False
    )
    try:
        Backbone(config, facts, mixers, stack=stack, seed=0)
        causal = True
    except Unsupported:
        causal = False
    assert (name in sets()["causal"]) == causal


def test_approximations_are_those_with_a_budget_among_their_options() -> None:
    nodes = {name: group_file("model", name) for name in sets()["approximations"]}
    assert {"performer", "reformer", "big_bird"} <= {*nodes}
    assert "softmax" not in nodes
    for name, node in nodes.items():
        assert node["about"]["approximation"]["option"] in node["mixer"], name


def test_sets_are_expanded() -> None:
    known = sets()
    assert {"identity", "sdpa", "softmax"} <= {*known["exact_attention"]}
    assert expand_sets("model=exact_attention") == f"model={','.join(known['exact_attention'])}"
    others = [name for name in known["all"] if name != "softmax"]
    assert expand_sets("model=softmax,all") == f"model={','.join(['softmax', *others])}"
    for word in ("model=linear", "model=linear,fnet", "task=all", "model.mixer.kind=all", "model"):
        assert expand_sets(word) == word


def test_one_of_the_users_own_is_among_them(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    text = "name: mine\nabout: {summary: mine, kind: hashing and sorting}\n"
    (tmp_path / "model/mine.yaml").write_text(text + "mixer: {class_path: models.m.M}\n")
    known = sets([tmp_path])
    assert "mine" in known["all"]
    assert "mine" in known["hashing_and_sorting"]
    assert "mine" not in known["causal"]


def test_a_file_of_a_sets_name_is_the_model(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model/all.yaml").write_text("name: all\nmixer: {class_path: models.m.M}\n")
    assert expand_sets("model=all", [tmp_path]) == "model=all"


def test_a_sweep_over_a_set() -> None:
    words = ("-m", "model=exact_attention", "task=listops", "logger=none")
    found = [entry.config["model"]["name"] for entry in entries(words)]
    assert found == sets()["exact_attention"]
    with pytest.raises(ConfigError, match="several values need a sweep"):
        entries(words[1:])


@pytest.mark.parametrize("word", ["seed=choice(1,2),3", "seed=1,range(3)", "seed=1,[2"])
def test_no_answer_proposes_a_sweep_that_is_refused(word: str) -> None:
    answers = []
    for flag in ((), ("-m",)):
        with pytest.raises(ConfigError) as caught:
            entries((*flag, word, "logger=none"))
        answers.append(str(caught.value))
    assert answers[0] == answers[1]
    assert "lra run -m" not in answers[0]


def test_presets_of_every_family_have_every_family() -> None:
    found = entries(("-m", "+experiment=families", "logger=none"))
    assert sorted(entry.config["model"]["name"] for entry in found) == names("model")
