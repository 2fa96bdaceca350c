"""A preset beside a protocol that has it otherwise is refused, by key, value and way out."""

from pathlib import Path

import pytest

from lra.composition import protocol
from lra.composition.hydra_entry import entries
from lra.errors import ConfigError

BESIDE = ("+protocol=nystrom", "task=listops", "model=linear", "logger=none")


def composed(*words: str):
    return entries([*BESIDE, *words])


def preset(folder: Path, text: str) -> tuple[str, ...]:
    (folder / "experiment").mkdir()
    (folder / "experiment/mine.yaml").write_text(f"# @package _global_\n{text}")
    return "--config-dir", str(folder), "+experiment=mine"


def test_a_preset_that_has_it_otherwise_is_refused(tmp_path: Path) -> None:
    words = preset(tmp_path, "optim: {steps: 300, warmup_steps: 7}\nresults: elsewhere\n")
    with pytest.raises(ConfigError) as refused:
        composed(*words)
    said = "optim.steps: +experiment=mine has 300, and +protocol=nystrom 5000; give optim.steps="
    assert str(refused.value).startswith(said)


@pytest.mark.parametrize("steps", [300, 5000])
def test_words_of_the_command_decide(tmp_path: Path, steps: int) -> None:
    words = preset(tmp_path, "optim: {steps: 300}\n")
    (entry,) = composed(*words, f"optim.steps={steps}", "optim.warmup_steps=10")
    changed = protocol.changes(entry.config)
    assert ("optim.steps" in changed) is (steps == 300)


def test_a_table_of_a_preset_counts_where_its_entry_is_chosen(tmp_path: Path) -> None:
    words = preset(tmp_path, "for_task:\n  listops: {model: {backbone: {depth: 9}}}\n")
    with pytest.raises(ConfigError, match=r"model\.backbone\.depth: \+experiment=mine has 9"):
        composed(*words)
    assert composed(*words, "task=text")


@pytest.mark.parametrize(
    "text",
    ["optim: {steps: 5000}\nrunner: {log_every_steps: 3}\n",
     "defaults: [/protocol: lra_code]\noptim: {steps: 7, warmup_steps: 0}\n"],
)  # fmt: skip
def test_a_preset_that_agrees_or_names_its_protocol_itself_is_composed(tmp_path, text) -> None:
    words = preset(tmp_path, text)
    beside = [word for word in BESIDE if "protocol" not in word] if "defaults" in text else BESIDE
    assert entries([*beside, *words])


def test_presets_with_settings_of_their_own_are_refused_beside_a_protocol() -> None:
    with pytest.raises(ConfigError, match=r"\+experiment=tasks_train has .* \+protocol=nystrom"):
        composed("-m", "+experiment=tasks_train", "runner=train", "seed=0")
