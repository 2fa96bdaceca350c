"""YAML is read safely, in bounded time, with the numbers that Hydra reads."""

import os
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from lra.composition.yaml_text import MOST_BYTES, BadYaml, load, parse

BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{chr(98 + n)}: &{chr(98 + n)} [{','.join([f'*{chr(97 + n)}'] * 9)}]\n" for n in range(12)
)
CHAIN = "a0: &a0 [1]\n" + "".join(f"a{n + 1}: &a{n + 1} [*a{n}]\n" for n in range(400))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("name: [", "is not YAML"),
        ("a: 1\na: 2", "'a' occurs twice"),
        ("a: !!python/object/apply:os.system [ls]", "not allowed in configurations"),
        ("!!binary aGVsbG8=", "not allowed in configurations"),
        ("!!bool maybe", "is not YAML"),
        ("a: " + "9" * 5000, "is not YAML"),
        ("\x00", "is not YAML"),
        (BOMB, "use fewer aliases"),
        (CHAIN, "nested deeper|nesting depth"),
        ("a: &a [*a, *a]", "nested deeper|nesting depth"),
        ("[" * 3000, "nested deeper|nesting depth"),
    ],
)
def test_what_is_no_configuration_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(BadYaml, match=complaint) as caught:
        parse(text, "mine.yaml")
    assert str(caught.value).startswith("mine.yaml ")
    assert len(str(caught.value)) < 500


def test_numbers_are_those_that_hydra_reads() -> None:
    words = (
        "1e-3", "-2E5", "1.0e-3", ".5", "-.5e-3", "1_000", "0x10", "1.", "2020-01-01", "yes", "~",
        "1:30", "1e", "e5", ".inf", "+3", "1.5.2", "1__0", "''", "a b",
    )  # fmt: skip
    for word in words:
        ours, theirs = parse(f"a: {word}", word), OmegaConf.create(f"a: {word}")
        assert repr(ours) == repr(OmegaConf.to_container(theirs)), word


def test_aliases_and_merged_mappings_stay() -> None:
    text = "base: &base {x: 1}\nother: {<<: *base, y: [*base, *base]}\n"
    assert parse(text, "a.yaml")["other"] == {"x": 1, "y": [{"x": 1}, {"x": 1}]}


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"- a\n", "got a list; wanted a mapping"),
        (b"\xff\xfe", "is not YAML"),
        (b"a: 1\n#" + b"x" * MOST_BYTES, "larger than"),
    ],
)
def test_a_bad_file_is_named(tmp_path: Path, content: bytes, complaint: str) -> None:
    file = tmp_path / "mine.yaml"
    file.write_bytes(content)
    with pytest.raises(BadYaml, match=complaint) as caught:
        load(file)
    assert str(file) in str(caught.value)


def test_an_empty_file_is_an_empty_mapping_and_a_pipe_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "empty.yaml").write_text("# nothing\n")
    assert load(tmp_path / "empty.yaml") == {}
    os.mkfifo(tmp_path / "pipe.yaml")  # reading it would wait for ever
    with pytest.raises(BadYaml, match="not a regular file"):
        load(tmp_path / "pipe.yaml")
