"""A row that is read is what any reader of JSON reads, to the bit, or is refused."""

import json
import random
import struct
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from lra.runners.metrics import METRICS
from lra.runners.records import CELL_COLUMNS, COLUMNS, Cell, Measurement, row
from lra.runners.storage.row_check import BadRow, checked_row, read_row
from lra.runners.store import read_rows, read_rows_file

DESCRIBED = dict.fromkeys(CELL_COLUMNS, "x") | {
    "length": 9, "seed": -(2**63), "task_version": 1, "threads": 1, "causal": False,
}  # fmt: skip
CELL = Cell(identity={}, columns=DESCRIBED, config={}, fingerprint="ab")
ROW = row(CELL, Measurement(metric="loss", value=0.5, samples=(1.0, 2.0)), "2026-01-02T03:04:05Z")
LINE = json.dumps(ROW, separators=(",", ":"))
NESTED = '{"a":1,"metric":"x"}'
PUBLISHED = Path(__file__).resolve().parents[3] / "reports/published"
SOME = 12
"""Cells of each published file: a test of all rows would take half a minute."""


def test_numbers_are_read_to_the_bit() -> None:
    generator = random.Random(0)
    bounds = METRICS["loss"]
    numbers: list[float] = [0, 5e-324, 2.2250738585072011e-308, 2**53 + 1, 2**63, 10**11 - 1]
    while len(numbers) < 3000:
        (number,) = struct.unpack("<d", generator.randbytes(8))
        numbers += [abs(number)] * (bounds.least <= abs(number) <= bounds.most)
    numbers = [number for number in numbers if number <= bounds.most]
    line = json.dumps({**ROW, "samples": numbers}, separators=(",", ":")).encode()
    wanted = struct.pack(f"{len(numbers)}d", *map(float, numbers))
    assert struct.pack(f"{len(numbers)}d", *read_row(line)["samples"]) == wanted


def test_integers_are_read_whole() -> None:
    for name, numbers in {"seed": (-(2**63), 2**63 - 1), "step": (0, 2**62, None)}.items():
        for number in numbers:
            assert read_row(json.dumps({**ROW, name: number}).encode())[name] == number


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda text: text, id="as written"),
        pytest.param(lambda text: json.dumps(json.loads(text), sort_keys=True), id="sorted"),
        pytest.param(lambda text: f" {text} ", id="space"),
        pytest.param(lambda text: text.replace('"step":', '"step":5,"step":'), id="twice"),
        pytest.param(lambda text: text.replace('"cell":', '"seed":1,"cell":'), id="twice, before"),
        pytest.param(lambda text: text.replace('"step":', '"seed":7,"step":'), id="twice, apart"),
        pytest.param(
            lambda text: text.replace('"model":"x"', '"model":",\\"metric\\":"'), id="name"
        ),
        pytest.param(lambda text: text.replace('"x"', '"\\u00e9"'), id="escaped"),
        pytest.param(lambda text: text.replace('"schema":2', '"schema":1'), id="schema 1"),
    ],
)
def test_a_line_is_what_json_says(change: Callable[[str], str]) -> None:
    text = change(LINE)
    assert read_row(text.encode()) == checked_row(json.loads(text)) == json.loads(text)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda text: text.replace('"seed":', '"sed":'), id="another column"),
        pytest.param(lambda text: text.replace('"causal":false,', ""), id="lacks a column"),
        pytest.param(lambda text: text.replace('"length":9', '"length":"9"'), id="text for number"),
        pytest.param(
            lambda text: text.replace('"model":"x"', '"model":","metric":"'), id="no JSON"
        ),
        pytest.param(lambda text: text.replace('"model":"x"', f'"model":{NESTED}'), id="nested"),
        pytest.param(lambda text: text.replace('"labels":{}', f'"labels":{NESTED}'), id="labels"),
        pytest.param(lambda text: f"{text},{text}", id="two in a line"),
        pytest.param(lambda text: f"{text}{text}", id="two without a comma"),
        pytest.param(lambda text: f"[{text}]", id="brackets"),
        pytest.param(lambda text: text.replace("[1.0,", "[NaN,"), id="not a number"),
        pytest.param(lambda text: text.replace("[1.0,", "[1e999,"), id="infinite"),
        pytest.param(lambda text: text.replace("[1.0,", "[true,"), id="true"),
        pytest.param(lambda text: text.replace("[1.0,", "[1e300,"), id="out of bounds"),
        pytest.param(lambda text: text.replace('"unit":"nat"', '"unit":"s"'), id="unit"),
        pytest.param(lambda text: text.replace('"schema":2', '"schema":9'), id="newer"),
        pytest.param(lambda text: text.replace('"ab"', '"ab\\n"'), id="line end"),
        pytest.param(lambda text: f"{text} x", id="a letter behind"),
    ],
)
def test_what_is_no_row_is_refused(change: Callable[[str], str]) -> None:
    assert change(LINE) != LINE
    with pytest.raises(BadRow):
        read_row(change(LINE).encode())


@pytest.mark.filterwarnings("ignore::lra.runners.store.MixedSources")
def test_published_rows_in_a_store_are_read_as_they_are(tmp_path: Path) -> None:
    kept: dict[Path, list[str]] = {}
    for file in sorted(PUBLISHED.glob("*.jsonl")):
        first: dict[Path, list[str]] = {}
        for line in file.read_text().splitlines():
            values = json.loads(line)
            if "cell" not in values:  # numbers of a benchmark
                break
            folder = tmp_path / "cells" / values["cell"][:2] / values["cell"]
            path = folder / f"rows-{values['fingerprint']}.jsonl"
            if path not in kept and (path in first or len(first) < SOME):
                first.setdefault(path, []).append(line)
        kept |= first
    for path, lines in kept.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{line}\n" for line in lines))
    expected = []
    for folder in sorted(tmp_path.glob("cells/*/*")):
        files = [read_rows_file(path, folder.name) for path in sorted(folder.glob("rows-*"))]
        expected += max(files, key=lambda rows: str(rows[0]["created"]))
    table = pd.DataFrame(expected, columns=list(COLUMNS)).astype(
        dict.fromkeys(("schema", "task_version", "length", "seed", "threads", "step"), "Int64")
        | {"causal": "boolean", "value": "float64", "created": "datetime64[us, UTC]"}
    )
    pd.testing.assert_frame_equal(read_rows(tmp_path), table, check_exact=True)
    assert len(table) > 1000
