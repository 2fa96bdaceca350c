"""What is read back of a file: all of it, so much and no more, and nothing but JSON."""

import os
from pathlib import Path

import pytest

from lra.conf.plain_files import (
    NoFile,
    NoJson,
    parse_json,
    read_bytes,
    read_end,
    read_json,
    typed_object,
)

LONG = b"9" * 400
WRONG = {
    b"": "not JSON", b"\xff": "not JSON", b"[" * 100_000: "not JSON", LONG * 20: "not JSON",
    b'{"a": NaN}': "NaN is not a number", b'{"a": 1e999}': "1e999 is not a number",
    b'{"a": -1e999}': "-1e999 is not a number", LONG: "beyond 64 bits",
    b'{"a": 18446744073709551616}': "beyond 64 bits", b'{"a": 1, "a": 2}': "'a' occurs twice",
    b"[" * 61 + b"]" * 61: "nested deeper than 60", b'"\\ud800"': "incomplete characters",
}  # fmt: skip


@pytest.mark.parametrize("content", WRONG, ids=range(len(WRONG)))
def test_what_no_file_of_ours_says_is_refused_with_its_path(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(content)
    with pytest.raises(NoJson, match=WRONG[content]) as refused:
        read_json(path)
    assert str(refused.value).startswith(f"{path}: ")


def test_what_json_can_say_is_read() -> None:
    text = '{"a": [1, -2.5, 18446744073709551615, 1e308, null, true, "é", "\\u00e9"], "b": {}}'
    found = parse_json(text.encode())
    assert found["a"][2:4] == [2**64 - 1, 1e308]
    assert typed_object(found, {"a": list, "b": (dict, str)}) == found
    for wanted in ({"c": int}, {"a": dict}):
        with pytest.raises(NoJson, match="wanted a"):
            typed_object(found, wanted)
    with pytest.raises(NoJson, match="a: got True; wanted a int"):
        typed_object({"a": True}, {"a": int})
    inside = {"a": list[str], "b": dict[str, list[float]]}
    assert typed_object({"a": ["x"], "b": {"y": [0.5]}}, inside)
    for odd in ({"a": ["x", 1], "b": {}}, {"a": [], "b": {"y": [True]}}, {"a": [], "b": {"y": 1}}):
        with pytest.raises(
            NoJson, match=r"got .*; wanted a (list\[str\]|dict\[str, list\[float\]\])"
        ):
            typed_object(odd, inside)


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 4097, 70_000])
def test_a_file_is_read_whole_up_to_the_most(size: int, tmp_path: Path) -> None:
    path, content = tmp_path / "a", os.urandom(size)
    path.write_bytes(content)
    assert read_bytes(path, size) == content == read_bytes(path)
    if size:
        with pytest.raises(NoFile, match=f"larger than {size - 1:,} bytes"):
            read_bytes(path, size - 1)


def test_what_the_system_makes_up_while_it_is_read_is_read() -> None:
    assert read_bytes("/proc/self/status").startswith(b"Name:")
    with pytest.raises(NoFile, match="larger than 9 bytes"):
        read_bytes("/proc/self/status", 9)


@pytest.mark.parametrize("kind", ["pipe", "folder", "device", "loop"])
def test_what_is_no_file_is_said_at_once(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "a"
    make = {
        "pipe": lambda: os.mkfifo(path), "folder": path.mkdir,
        "device": lambda: path.symlink_to("/dev/zero"), "loop": lambda: path.symlink_to("a"),
    }  # fmt: skip
    make[kind]()
    with pytest.raises(NoFile, match=r"move it away|remove it") as refused:
        read_bytes(path)
    assert refused.value.filename == str(path)
    with pytest.raises(FileNotFoundError):
        read_bytes(tmp_path / "b")


@pytest.mark.parametrize("size", [0, 5, 22, 23, 70_000])
def test_the_end_of_a_file_is_read_alone(size: int, tmp_path: Path) -> None:
    path, content = tmp_path / "a", os.urandom(size)
    path.write_bytes(content)
    assert read_end(path, 22) == content[-22:]
    with pytest.raises(NoFile, match="a folder"):
        read_end(tmp_path, 22)
