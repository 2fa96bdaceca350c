"""Words to configurations: sweeps, presets, and complaints with near matches."""

import pytest

from lra.compose import ConfigError
from lra.hydra_entry import Entry, entries


def words(*argv: str) -> list[Entry]:
    return entries(list(argv), execute=lambda _: pytest.fail("only for other launchers"))


def test_one_run() -> None:
    (entry,) = words("model=linear", "optim.steps=7")
    assert entry.config["model"]["name"] == "linear"
    assert entry.config["optim"]["steps"] == 7
    assert entry.overrides == ("model=linear", "optim.steps=7")


def test_a_sweep_is_every_combination() -> None:
    found = words("-m", "model=linear,softmax", "seed=0,1,2")
    assert len({entry.overrides for entry in found}) == 6


def test_quickstart_sweeps_and_gives_single_families_their_own_options() -> None:
    found = words("-m", "+experiment=quickstart")
    assert len(found) == 18
    by_name = {(e.config["runner"]["name"], e.config["model"]["name"]): e.config for e in found}
    assert by_name["train", "sliding_window"]["model"]["mixer"]["window"] == [16]
    assert by_name["train", "performer"]["model"]["mixer"]["features"] == 64
    assert by_name["scaling", "linear"]["runner"]["modes"] == ["step"]
    assert by_name["train", "linear"]["per_model"] == {}


def test_the_command_line_beats_a_preset() -> None:
    found = words("-m", "+experiment=quickstart", "model=performer", "model.mixer.features=32")
    assert [e.config["model"]["mixer"]["features"] for e in found] == [32] * 3


@pytest.mark.parametrize(
    ("argv", "wanted"),
    [
        (["model=perfomer"], ["unknown model 'perfomer'", "'performer'", "sliding_window"]),
        (["+experiment=quikstart"], ["'quickstart'"]),
        (["modle=linear"], ["unknown key 'modle'", "'model'"]),
        (["optim.step=3"], ["unknown key 'optim.step'", "'optim.steps'"]),
        (["model.mixer.fetures=3", "model=performer"], ["model.mixer.fetures"]),
        (["optim.steps="], []),
        (["+per_model={perfomer: {mixer: {}}}"], []),
        (["++per_model={perfomer: {mixer: {}}}"], ["per_model", "'performer'"]),
    ],
)
def test_unknown_words_answer_with_near_matches(argv: list[str], wanted: list[str]) -> None:
    if argv == ["optim.steps="]:
        (entry,) = words(*argv)  # an empty string: typed() refuses it
        assert entry.config["optim"]["steps"] == ""
        return
    with pytest.raises(ConfigError) as caught:
        words(*argv)
    for word in wanted:
        assert word in str(caught.value)
