"""`lra list NAME`: every option of every choice with type, values and meaning."""

import json
import re
from collections.abc import Sequence
from pathlib import Path

import option_table
import pytest
import yaml

from lra.choices.explain import Option, choice_lines, choice_options, sets, shared_options
from lra.cli import main
from lra.composition.catalogue import choices, groups
from lra.composition.option_types import arguments, comments

TYPED = ("model", "task", "runner", "optim", "hardware", "logger", "cluster", "search")


@pytest.mark.share(3)
@pytest.mark.parametrize("group", groups())
def test_every_option_has_type_and_meaning_and_a_choice_fits_a_screen(group: str) -> None:
    thin = re.compile(r"(null|false|true|empty|0|\w+ \|)(:| )", re.IGNORECASE)  # no meaning
    for file in choices(group):
        own = choice_options(file)
        found = [*own, *shared_options(file)]
        assert [o.key for o in found if not o.meaning.strip() or thin.match(o.meaning)] == [], file
        assert [option.key for option in found if not option.type.strip()] == [], file
        check_values(file, own, found)
        screen = [*choice_lines(file, group, everything=False)]
        assert len(screen) <= 60, file
        assert max(map(len, screen[1:])) <= 130, file
        assert len(screen) <= len([*choice_lines(file, group, everything=True)]) + 1, file


def check_values(file: Path, own: Sequence[Option], found: Sequence[Option]) -> None:
    for option in found:  # the default is one of the allowed values
        if option.values and option.default is not None:
            given = option.default if isinstance(option.default, list) else [option.default]
            assert {str(each) for each in given} <= {*option.values}, option
    if file.parent.name in TYPED:
        node = yaml.safe_load(file.read_text())
        node = node.get("mixer") or node.get("stack") or node
        steering = {"dry_run", "shard", "retry", "timeout_s", "sweep_timeout_s"}
        wanted = {*node} - {"name", "about", "class_path", "section"}
        wanted |= steering if file.parent.name == "runner" else set()
        assert {option.key.rpartition(".")[2] for option in own} == wanted, file
    else:
        assert sets(file), file


def test_what_is_recorded_is_what_classes_say() -> None:
    assert option_table.FILE.read_text() == option_table.text(), "make pages"


def test_a_class_of_ones_own_is_asked_where_its_package_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("lra.composition.class_path._named", set())
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "mine.yaml").write_text(
        "name: mine\nmixer: {class_path: some_mixer.Mine, window: 8}\n"
    )
    (tmp_path / "some_mixer.py").write_text(
        'def Mine(site, *, window: int | None = 8):\n    """One.\n\n    Args:\n'
        '        window: How far\n            it sees.\n    """\n'
    )
    words = ["list", "mine", "--all", "--config-dir", str(tmp_path)]
    assert main(words) == 0
    assert "model.mixer.window=8   (any)" in capsys.readouterr().out
    assert main([*words, "--plugin", "some_mixer"]) == 0
    text = capsys.readouterr().out
    assert "model.mixer.window=8   (whole number, or null)\n      How far it sees." in text


def test_a_family_on_one_screen_and_in_full(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "performer"]) == 0
    brief = capsys.readouterr().out
    assert brief.startswith("model=performer: FAVOR+")
    assert "arXiv:2009.14794" in brief
    assert re.search(r"model\.mixer\.norms=chi +Norms of the rows .*: chi \| sqrt_width", brief)
    assert "model.backbone.depth" not in brief
    assert main(["list", "performer", "--all"]) == 0
    text = capsys.readouterr().out
    assert "model.mixer.features=256   (whole number, or null)" in text
    assert "faithful: The paper's function" in text
    assert "model.backbone.depth=2" in text


def test_an_option_is_explained_once() -> None:
    file = next(file for file in choices("model") if file.stem == "performer")
    (width,) = [each for each in shared_options(file) if each.key == "model.backbone.head_width"]
    assert width.meaning.lower().count("queries") == 1
    assert "null" in width.meaning
    assert "None" not in width.meaning


def test_one_name_in_two_groups_and_a_group_before_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "transfer", "--json"]) == 0
    both = json.loads(capsys.readouterr().out)
    assert {each["group"] for each in both} == {"runner", "experiment"}
    assert main(["list", "runners", "transfer", "--json"]) == 0
    (one,) = json.loads(capsys.readouterr().out)
    assert {"runner.source", "runner.timeout_s"} <= {option["key"] for option in one["options"]}
    assert all(option["meaning"] and option["type"] for option in one["options"])


def test_a_preset_lists_what_it_sets(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "quickstart"]) == 0
    text = capsys.readouterr().out
    assert "optim.steps=750" in text
    assert "takes: about 4 minutes" in text
    assert main(["list", "base"]) == 0
    assert "model.backbone.width=256" in capsys.readouterr().out


def test_a_file_of_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "mine.yaml").write_text(
        "name: mine\nmixer:\n  class_path: models.families.linear.LinearAttention\n"
        "  # of mine\n  chunk: 8\n"
    )
    assert main(["list", "mine", "--config-dir", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert "model.mixer.chunk=8" in text
    assert "Of mine." in text


def test_sections_of_docstrings() -> None:
    text = "Args:\n    a: First,\n        in two lines.\n    b, c: Both.\n\nReturns:\n    d: x"
    assert arguments(text) == {"a": "First, in two lines.", "b": "Both.", "c": "Both."}


def test_comments_of_yaml(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("# One.\n# Two.\nname: x\nmixer:\n  # above\n  a: 1\n  b: 2  # behind\nc: 3\n")
    found = comments(file)
    assert (found["mixer.a"], found["mixer.b"], found["c"]) == ("above", "behind", "")
