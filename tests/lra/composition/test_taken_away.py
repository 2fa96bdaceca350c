"""No word means the default of an option silently: `~key` is refused, `+` and `++` say a value."""

import contextlib
import random

import pytest

from lra.cli import main
from lra.composition.catalogue import words
from lra.composition.complaints import MAPPINGS, misread
from lra.composition.composer import Composer
from lra.composition.files import bundled
from lra.composition.hydra_entry import entries
from lra.composition.put import keys_of
from lra.errors import ConfigError

MAPPED = tuple(f"{mapping}." for mapping in MAPPINGS)


def test_a_deleted_clip_is_no_default_clip(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "~optim.clip", "task.source=sample", "runner.dry_run=true"]) == 2
    assert "~optim.clip: nothing is taken away" in capsys.readouterr().err
    (entry,) = entries(["optim.clip=null"])
    assert entry.config["optim"]["clip"] is None


def taken_away(word: str) -> str | None:
    return misread(["seed=3", word], None)


def test_every_option_and_every_choice_stays() -> None:
    every = keys_of(Composer(bundled()).compose([]))
    keys = [key for key in every if not f"{key}.".startswith(MAPPED)]
    others = ("nope", "optim.nope", "", "model@x", "optim=adamw")
    for key in (*keys, *words(), *words().values(), *others):
        key = key.lstrip("+")
        assert str(taken_away(f"~{key}")).startswith(f"~{key}: nothing is taken away"), key


@pytest.mark.parametrize(
    "word",
    ["~for_model", "~for_model.linear", "~for_task.text.optim", "~runner.pretraining.optim.steps",
     "~model.layer_options.fnet", "~hydra.sweeper.params.seed"],
)  # fmt: skip
def test_an_entry_of_a_mapping_may_go(word: str) -> None:
    assert taken_away(word) is None


def test_an_entry_of_a_table_is_taken_away() -> None:
    preset = ["-m", "+experiment=quickstart", "model=performer", "runner=train"]
    for word, features in (("seed=0", 64), ("~for_model.performer", 32)):
        for entry in entries([*preset, word]):
            assert (entry.config["model"]["mixer"]["features"] == 64) == (features == 64)


@pytest.mark.fuzz
def test_plus_signs_say_the_value_that_follows() -> None:
    draw = random.Random(5)
    every = keys_of(Composer(bundled()).compose([]))
    keys = [k for k in every if k.startswith(("optim.", "model.back")) and k != "optim.name"]
    for key in draw.sample(keys, 8):
        (plain,) = entries([f"{key}=3"])
        (forced,) = entries([f"++{key}=3"])
        assert forced.config == plain.config, key
        with contextlib.suppress(ConfigError):  # where it is there already
            (added,) = entries([f"+{key}=3"])
            assert added.config == plain.config, key
