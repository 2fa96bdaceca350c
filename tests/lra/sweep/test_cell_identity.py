"""Keys stay where nothing moves a number, and change where something does."""

import json
from pathlib import Path
from typing import Any

import pytest

from lra.composition.binding import plain
from lra.composition.compose import typed
from lra.composition.hydra_entry import entries
from lra.runners.records import Cell
from lra.sweep import identity
from lra.sweep.cells import Lookups, plan
from lra.sweep.identity import decisive

SHORT = ("task=listops", "task.source=sample", "logger=none")
FAMILY = """\
from torch import nn
from lra.models.mixer import Family, Traits, blanked

class Own(Family):
    def __init__(self, site, *, features: int = 8{more}) -> None:
        super().__init__()
        self.traits = Traits(causal=site.causal)
        self.down = nn.Linear(site.width, features)
        self.up = nn.Linear(features, site.width)

    def forward(self, x, layout):
        return self.up(self.down(blanked(x, layout, self.traits)))
"""


def cells(*words: str) -> list[Cell]:
    found = []
    for entry in entries((*SHORT, *words)):
        found += plan(typed(entry.config), lookups=Lookups(place=entry.place))
    return found


def key(*words: str) -> str:
    (cell,) = cells(*words)
    return cell.key


def own_family(folder: Path, package: str, more: str = "", name: str = "mixer") -> list[str]:
    """Write a package with a family and its YAML, and return the words that find them."""
    (folder / package).mkdir(exist_ok=True)
    (folder / package / "__init__.py").touch()
    (folder / package / f"{name}.py").write_text(FAMILY.format(more=more))
    conf = folder / f"conf_of_{package}"
    (conf / "model").mkdir(parents=True)
    (conf / "model/own.yaml").write_text(
        f"name: own\nabout: {{summary: mine}}\nmixer: {{class_path: {package}.{name}.Own}}\n"
    )
    return [f"--config-dir={conf}", f"plugins=[{package}]", "model=own"]


def test_defaults_are_no_part_of_an_identity() -> None:
    (cell,) = cells("model=performer")
    assert cell.identity["mixer"] == {"version": 1}
    assert cell.described["mixer"]["features"] == 256
    assert "class_path" not in json.dumps([cell.identity, cell.described])
    (other,) = cells("model=performer", "model.mixer.features=32")
    assert other.identity["mixer"] == {"version": 1, "features": 32}


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["model=performer"], {"stabiliser": "reference", "key_max": "global", "redraw_every": 1}),
        (["model=performer", "model.mixer.kernel=relu"], {"projected": False}),
        (["model=reformer"], {"rounds": 1, "chunk": "length / 10", "redraw_every": 0}),
        (["model=linformer"], {"projected_length": [16], "sharing": "kv"}),
        (["model=linformer", "model.mixer.projected_length=[8]"], {"projected_length": [8]}),
        (["model=sparse_transformer"], {"stride": 50, "summary": 10}),
        (["model=longformer"], {"global_cls": False}),
    ],
)
def test_what_a_variant_fixes_is_described_as_it_runs(words: list[str], wanted: Any) -> None:
    """And is no part of the key, which has what was chosen."""
    (cell,) = cells(*words, "model.mixer.variant=lra")
    assert {name: cell.described["mixer"][name] for name in wanted} == wanted
    chosen = {word.split("=")[0].rpartition(".")[2] for word in words[1:]}
    assert cell.identity["mixer"].keys() == {"version", "variant", *chosen}


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["model=softmax"], 0.25),
        (["model=linear"], 0.0),
        (["model=big_bird"], 0.25),
        (["model=big_bird", "model.mixer.variant=lra"], 0.0),
        (["model=softmax", "model.layers=[linear,softmax]"], [0.0, 0.25]),
        (["model=softmax", "model.backbone.heads=3"], 0.25),
    ],
    ids=str,
)
def test_dropout_that_a_mixer_cannot_apply_is_described_as_none(
    words: list[str], wanted: Any
) -> None:
    """The key has what was asked; a model that cannot be built is described as it was asked."""
    (cell,) = cells(*words, "model.backbone.attention_dropout=0.25")
    assert cell.described["backbone"]["attention_dropout"] == wanted
    assert cell.identity["backbone"]["attention_dropout"] == 0.25
    (plain,) = cells(*words)
    assert plain.described["backbone"]["attention_dropout"] == 0.0


def test_seeds_share_the_model_that_tells_the_dropout(monkeypatch: pytest.MonkeyPatch) -> None:
    built = []
    build = identity.build_model
    monkeypatch.setattr(
        identity, "build_model", lambda run, **most: built.append(run.model) or build(run, **most)
    )
    known = Lookups()
    words = ("-m", "model=linear,softmax", "seed=0,1,2", "model.backbone.attention_dropout=0.25")
    found = []
    for entry in entries((*words, *SHORT)):
        found += plan(typed(entry.config), lookups=known)
    rates = [cell.described["backbone"]["attention_dropout"] for cell in found]
    assert sorted(rates) == [0.0] * 3 + [0.25] * 3
    assert sorted(built) == ["linear", "softmax"]


def test_what_is_measured_beside_a_model_counts_with_its_version(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from lra.models.families.sdpa import SDPA

    words = ("model=linear", "runner=scaling", "runner.lengths=[64]", "runner.modes=[forward]")
    before = key(*words)
    assert key(*words, "runner.references=[softmax]") != before
    monkeypatch.setattr(SDPA, "version", 2)
    assert key(*words) != before


@pytest.mark.parametrize("word", ["runner.log_every_steps=7", "runner.checkpoint_every_s=9.5"])
def test_what_moves_no_number_moves_no_key(word: str) -> None:
    assert key("model=linear") == key("model=linear", word)


def test_a_module_may_move(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    before = key(*own_family(tmp_path, "first_place"))
    assert before == key(*own_family(tmp_path, "second_place", name="deeper"))


def test_an_option_may_be_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    before = key(*own_family(tmp_path, "as_it_was"))
    words = own_family(tmp_path, "as_it_is", more=", scale: float = 1.0")
    assert key(*words) == before
    assert key(*words, "++model.mixer.scale=2.0") != before


def test_a_version_moves_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    from lra.models.families.linear import LinearAttention

    before = key("model=linear")
    monkeypatch.setattr(LinearAttention, "version", 2, raising=False)
    assert key("model=linear") != before


def test_a_version_of_the_lra_variant_moves_its_key_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["model=linear", "model.mixer.variant=lra"]
    (faithful,), (lra,) = cells(words[0]), cells(*words)
    monkeypatch.setattr("lra.models.families.linear.LinearAttention.lra_version", 3)
    assert cells(words[0])[0].key == faithful.key
    assert cells(*words)[0].key != lra.key


def test_another_class_under_a_known_name_is_another_cell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    words = own_family(tmp_path, "of_two")
    own_family(tmp_path, "of_two_others")
    other = ("model.mixer.class_path=of_two_others.mixer.Own", "plugins=[of_two,of_two_others]")
    (cell,) = cells(*words[:1], words[2], *other)
    assert cell.identity["mixer"]["class"] == "of_two_others.mixer.Own"
    assert cell.key != key(*words)


def changed(value: Any) -> Any:
    """Return another value of the same type."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, str):
        return f"{value}x"
    return [value]


def test_every_option_that_differs_is_there() -> None:
    from lra.models.backbone.model import BackboneConfig
    from lra.runners.training.optim import OptimConfig

    for kind in (BackboneConfig, OptimConfig):
        usual = plain(kind())
        assert decisive(kind, usual) == {}
        for name, value in usual.items():
            other = changed(value)
            assert decisive(kind, {**usual, name: other}) == {name: other}, name


def test_a_kind_of_options_may_have_a_version(monkeypatch: pytest.MonkeyPatch) -> None:
    from lra.models.backbone.model import BackboneConfig
    from lra.runners.measures.scaling import Scaling

    before = key("model=linear")
    monkeypatch.setattr(BackboneConfig, "version", 2, raising=False)
    moved = key("model=linear")
    assert moved != before
    monkeypatch.setattr(Scaling, "version", 2, raising=False)
    assert key("model=linear") == moved
