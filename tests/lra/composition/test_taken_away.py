"""No word means a default silently: `~key` is refused, but for entries of mappings."""

import pytest

from lra.composition.catalogue import words
from lra.composition.complaints import MAPPINGS, check_words
from lra.composition.composer import Composer
from lra.composition.files import our_files
from lra.composition.hydra_entry import entries
from lra.composition.placement import keys_of
from lra.errors import ConfigError

MAPPED = tuple(f"{mapping}." for mapping in MAPPINGS)


def test_every_option_and_every_choice_stays() -> None:
    every = keys_of(Composer(our_files()).compose([]))
    keys = [key for key in every if not f"{key}.".startswith(MAPPED)]
    for key in (*keys, *words(), "nope", "optim.nope", "model@x", "optim=adamw"):
        with pytest.raises(ConfigError, match="options cannot be deleted") as caught:
            check_words(["seed=3", f"~{key}"], [])
        assert str(caught.value).startswith(f"~{key}: "), key


def test_an_entry_of_a_mapping_is_taken_away() -> None:
    preset = ["-m", "+experiment=quickstart", "model=performer", "runner=train"]
    for word, features in (("seed=0", 64), ("~for_model.performer", 32)):
        for entry in entries([*preset, word]):
            assert (entry.config["model"]["mixer"]["features"] == 64) == (features == 64)
    for word in ("~for_task.text.optim", "~runner.pretraining.optim.steps",
                 "~model.layer_options.fnet", "~hydra.sweeper.params.seed"):  # fmt: skip
        check_words([word], [])
