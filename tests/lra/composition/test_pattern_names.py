"""The name of a model whose layers a pattern chooses, and words that choose patterns wrongly."""

from typing import Any

import pytest

from lra.composition.catalogue import names
from lra.composition.compose import typed
from lra.composition.hydra_entry import entries
from lra.errors import ConfigError
from lra.sweep.cell_logger import model_of
from lra.sweep.cells import marks, plan

FOUR = ("size=tiny", "model.backbone.depth=4")
ATTENTION = "model.layer_options.attention"
DELTA, OTHER = "gated_delta_net", ["gated_delta_net", "sdpa"]


def runs_of(*words: str) -> list[Any]:
    return [typed(entry.config) for entry in entries([*words, "task=mqar", "logger=none"])]


def named(*words: str) -> tuple[str, str]:
    """The model's name in rows, and the label about its layers."""
    (run,) = runs_of(*words)
    (cell,) = plan(run)
    return str(cell.columns["model"]), marks(run).get("layers", "")


NAMES: dict[tuple[str, ...], tuple[str, str]] = {
    ("+pattern=qwen3_next",): ("qwen3_next", ""),
    ("+pattern=kimi_k3",): ("kimi_k3", ""),  # whose file builds on that of kimi_linear
    ("+pattern=falcon_h1",): ("falcon_h1", ""),  # with one kind of layer
    ("+pattern=qwen3_next", "model.backbone.width=32"): ("qwen3_next", ""),
    ("+pattern=qwen3_next", *FOUR): ("qwen3_next", "4 layers"),
    ("+pattern=qwen3_next", *FOUR, "model.mixer.value_expansion=2"): ("qwen3_next", "4 layers"),
    ("+pattern=qwen3_next", *FOUR, f"{ATTENTION}.key_value_heads=2"): ("qwen3_next", "4 layers"),
    ("+pattern=qwen3_next", *FOUR, f"model.layers=[{DELTA},attention,{DELTA},attention]"): (
        "qwen3_next", f"{DELTA} + attention + {DELTA} + attention",
    ),
    ("+pattern=qwen3_next", *FOUR, "model.layers=[]", "~model.layer_options.attention"): (
        DELTA, "",
    ),
    (f"model={DELTA}", "size=tiny", f"model.layers=[{','.join(OTHER)}]"): (
        DELTA, f"{DELTA} + sdpa",
    ),
    (f"model={DELTA}", "size=tiny"): (DELTA, ""),
}  # fmt: skip


@pytest.mark.parametrize("words", NAMES)
def test_a_row_has_the_name_of_its_pattern_and_what_differs(words: tuple[str, ...]) -> None:
    assert named(*words) == NAMES[words]


def test_an_alias_of_another_family_is_another_list_of_layers() -> None:
    words = ("+pattern=glm5_next", *FOUR)
    assert named(*words) == ("glm5_next", "4 layers")
    alias = "++model.layer_options.latent_attention={parallel: [kimi_delta, sdpa]}"
    model, layers = named(*words, alias, "++model.layer_options.sdpa={}")
    assert (model, layers) == ("glm5_next", " + ".join([*["kimi_delta"] * 3, "latent_attention"]))


def test_a_pattern_is_part_of_the_key_and_other_runs_have_none() -> None:
    """At one depth, the layers of qwen3_5 are those of qwen3_next: each has its row."""
    sweep = runs_of("-m", "+pattern=qwen3_next,qwen3_5", *FOUR)
    cells = [cell for run in sweep for cell in plan(run)]
    assert [cell.columns["model"] for cell in cells] == ["qwen3_next", "qwen3_5"]
    assert len({cell.key for cell in cells}) == 2
    first, second = (dict(cell.identity) for cell in cells)
    assert (first.pop("pattern"), second.pop("pattern")) == ("qwen3_next", "qwen3_5")
    assert first == second
    (plain,) = plan(
        runs_of(f"model={DELTA}", "size=tiny", "model.layers=[gated_delta_net,sdpa]")[0]
    )
    assert "pattern" not in plain.identity


def test_a_dashboard_names_the_changed_options_of_a_pattern() -> None:
    words = ["+pattern=qwen3_next", *FOUR, "model.mixer.value_expansion=2", "task=mqar"]
    (entry,) = entries([*words, "logger=none"])
    (cell,) = plan(typed(entry.config), entry.overrides)
    assert model_of(cell) == "qwen3_next (value_expansion=2) (4 layers)"


def test_no_pattern_has_the_name_of_a_family() -> None:
    assert not {*names("pattern")} & {*names("model")}


WRONG = {
    ("+pattern=qwen3_next", "model=performer"): (
        r"model=performer: \+pattern=qwen3_next already chooses a model; omit model=, or set "
        r"model\.layers"
    ),
    ("pattern=qwen3_next",): r"pattern=qwen3_next: wanted \+pattern=qwen3_next",
    ("+pattern=qwen3_nxt",): r"unknown pattern 'qwen3_nxt': did you mean 'qwen3_next'",
    ("model=qwen3_next",): r"unknown model 'qwen3_next'.*write \+pattern=qwen3_next",
    ("+pattern=qwen3_next,samba",): r"several values need a sweep\. Add -m",
    ("-m", "+pattern=qwen3_next,sambo"): r"unknown pattern 'sambo': did you mean 'samba'",
    ("-m", "+pattern=qwen3_next", "model=linear,performer"): r"model=linear: \+pattern=qwen3_next",
    ("+experiment=hybrids", "+pattern=samba"): r"\+pattern=samba already chooses a model",
}


@pytest.mark.parametrize("words", WRONG)
def test_a_wrong_choice_says_the_way_out(words: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match=WRONG[words]):
        runs_of(*words)
