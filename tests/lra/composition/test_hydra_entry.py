"""Words to configurations: sweeps, presets, flags."""

from pathlib import Path

import pytest

from lra.composition.hydra_entry import entries
from lra.composition.run import Composed
from lra.errors import ConfigError


def words(*argv: str) -> list[Composed]:
    return entries(list(argv))


def test_quickstart_sweeps_and_gives_single_families_their_own_options() -> None:
    found = words("-m", "+experiment=quickstart")
    assert len(found) == 21 + 21 + 7
    assert [e.config["seed"] for e in found if e.config["runner"]["name"] == "scaling"] == [0] * 7
    assert len(words("-m", "+experiment=quickstart", "seed=1,2")) == 3 * 7 * 2
    assert len(words("-m", "+experiment=quickstart", "runner=scaling")) == 7
    by_name = {(e.config["runner"]["name"], e.config["model"]["name"]): e.config for e in found}
    assert by_name["train", "sliding_window"]["model"]["mixer"]["window"] == [8]
    assert by_name["train", "performer"]["model"]["mixer"]["features"] == 64
    assert by_name["scaling", "linear"]["runner"]["modes"] == ["step"]
    assert by_name["train", "linear"]["for_model"] == {}


def test_a_mapping_is_merged_into_what_a_preset_has_and_wins() -> None:
    words_of_one = ("+experiment=transfer", "model=linear", "runner.source=softmax")
    (entry,) = words(*words_of_one, "runner.pretraining={optim: {steps: 70}}")
    assert entry.config["runner"]["pretraining"] == {"optim": {"steps": 70, "warmup_steps": 50}}
    (plain,) = words(*words_of_one)
    assert plain.config["runner"]["pretraining"]["optim"]["steps"] > 70


def test_folders_of_the_search_path_of_hydra_are_read(tmp_path: Path) -> None:
    for group, text in {
        "model": "name: mine\nmixer: {class_path: models.families.linear.LinearAttention}\n",
        "experiment": "# @package _global_\nhydra: {sweeper: {params: {seed: '3,4'}}}\n",
    }.items():
        (tmp_path / group).mkdir()
        (tmp_path / group / "mine.yaml").write_text(text)
    composed = words(f"hydra.searchpath=[file://{tmp_path}]", "model=mine", "+experiment=mine")
    named = [(entry.config["model"]["name"], entry.config["seed"]) for entry in composed]
    assert named == [("mine", 3), ("mine", 4)]
    assert composed[0].overrides == ("seed=3", "model=mine", "+experiment=mine")


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        (["--resolve"], "--resolve has no effect without --cfg"),
        (["--cfg"], "expected one argument"),
        (["--nope"], "unrecognized arguments: --nope"),
        (["--info", "--cfg", "job"], "give only one of them"),
        (["--run", "-m"], "give only one of them"),
        (["--config-dir", "nowhere"], "nowhere is not a folder"),
        (["--config-path", "/"], "unrecognized arguments: --config-path"),
        (["++for_model={perfomer: {model: {}}}"], "did you mean 'performer'"),
        (["hydra.searchpath=3"], "hydra.searchpath"),
        (["++hydra.callbacks={a: {_target_: b}}"], "hydra.callbacks: lra ignores"),
        (["hardware=3"], "unknown hardware '3'. Known hardware: a100, cpu"),
    ],
)
def test_malformed_lines_are_refused_in_a_few_lines(argv: list[str], complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        words(*argv)
    assert complaint in str(caught.value)
    assert len(str(caught.value).splitlines()) <= 5


def test_words_are_kept_as_they_were_given() -> None:
    (entry,) = words("task.data_seed=${seed}", "seed=3")
    assert entry.overrides == ("task.data_seed=${seed}", "seed=3")
    assert entry.config["task"]["data_seed"] == 3


def test_a_launcher_that_a_file_names_is_refused_too(tmp_path: Path) -> None:
    file = tmp_path / "experiment" / "mine.yaml"
    file.parent.mkdir()
    file.write_text(
        "# @package _global_\nhydra: {launcher: {_target_: hydra_plugins.elsewhere.Elsewhere}}\n"
    )
    with pytest.raises(
        ConfigError, match=r"got hydra_plugins.elsewhere.Elsewhere; lra does not use"
    ):
        words("-m", "+experiment=mine", f"--config-dir={tmp_path}")


@pytest.mark.parametrize(
    "argv",
    [
        ["-m", "task=mqar,induction", "task.length=64"],
        ["-m", "model=luna,luna", "model.mixer.slots=3,4", "seed=1"],
        ["-m", "runner=scaling,decode", "runner.lengths=[64]"],
        ["+experiment=transfer", "model=linear,fnet", "runner.pretraining.optim.steps=70"],
    ],
)
def test_a_sweep_may_set_what_only_its_choices_have(argv: list[str]) -> None:
    found = words(*argv)
    key, _, value = argv[2].partition("=")
    for entry in found:
        node = entry.config
        for part in key.split("."):
            node = node[part]
        assert str(node).strip("[]") in value
