"""No word means the default of an option silently: `~key` is refused, `+` and `++` say a value."""

import contextlib
import random

import pytest

from lra.cli import main
from lra.composition.binding import bind
from lra.composition.catalogue import names, words
from lra.composition.complaints import keys_of, tree_of
from lra.composition.hydra_entry import entries
from lra.composition.taken_away import MAPPINGS, taken_away, takes_null
from lra.errors import ConfigError
from models.backbone.config import BackboneConfig
from runners.training.optim import OptimConfig

MAPPED = tuple(f"{mapping}." for mapping in MAPPINGS)


def test_a_deleted_clip_is_no_default_clip(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "~optim.clip", "task.source=sample", "runner.dry_run=true"]) == 2
    assert "optim.clip=null switches it off" in capsys.readouterr().err
    (entry,) = entries(["optim.clip=null"])
    assert entry.config["optim"]["clip"] is None


def test_every_option_and_every_choice_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    tree = tree_of([])
    monkeypatch.setattr("lra.composition.taken_away.tree_of", lambda given: tree)
    keys = [key for key in keys_of([]) if not f"{key}.".startswith(MAPPED)]
    others = ("nope", "optim.nope", "", "model@x", "optim=adamw")
    for key in (*keys, *words(), *words().values(), *others):
        key = key.lstrip("+")
        answer = str(taken_away(["seed=3", f"~{key}"]))
        assert answer.startswith(f"~{key}: no "), key
        if not answer.startswith(f"~{key}: no choice"):
            assert f"{key.partition('=')[0] or 'KEY'}=" in answer, key
    for group, spelt in words().items():
        answer = str(taken_away([f"~{group}"]))
        assert spelt in answer
        assert spelt != group or names(group)[0] in answer


@pytest.mark.parametrize(
    ("above", "kind"), [("optim", OptimConfig), ("model.backbone", BackboneConfig)]
)
def test_what_is_said_to_take_null_takes_it(above: str, kind: type) -> None:
    tree = tree_of([])
    node = tree
    for part in above.split("."):
        node = node[part]
    options = {key: value for key, value in node.items() if key not in ("name", "about")}
    for option in options:
        try:
            bind(kind, {**options, option: None}, above)
        except ConfigError:
            taken = False
        else:
            taken = True
        assert takes_null(f"{above}.{option}", tree) is taken, option


@pytest.mark.parametrize(
    "word",
    ["~for_model", "~for_model.linear", "~for_task.text.optim", "~runner.pretraining.optim.steps",
     "~model.layer_options.fnet", "~hydra.sweeper.params.seed"],
)  # fmt: skip
def test_an_entry_of_a_mapping_may_go(word: str) -> None:
    assert taken_away([word]) is None


def test_an_entry_of_a_table_is_taken_away() -> None:
    preset = ["-m", "+experiment=quickstart", "model=performer", "runner=train"]
    for word, features in (("seed=0", 64), ("~for_model.performer", 32)):
        for entry in entries([*preset, word]):
            assert (entry.config["model"]["mixer"]["features"] == 64) == (features == 64)


@pytest.mark.fuzz
def test_plus_signs_say_the_value_that_follows() -> None:
    draw = random.Random(5)
    keys = [k for k in keys_of([]) if k.startswith(("optim.", "model.back")) and k != "optim.name"]
    for key in draw.sample(keys, 8):
        (plain,) = entries([f"{key}=3"])
        (forced,) = entries([f"++{key}=3"])
        assert forced.config == plain.config, key
        with contextlib.suppress(ConfigError):  # where it is there already
            (added,) = entries([f"+{key}=3"])
            assert added.config == plain.config, key
