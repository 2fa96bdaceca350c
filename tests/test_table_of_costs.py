"""docs/efficiency.md: every family has a line, or stands in the command that measures it."""

import json
import re
from functools import cache
from pathlib import Path

from cost_table import LONGEST, ONE_SIDED, PUBLISHED, REFERENCE, costs, longest
from lra.composition.catalogue import names
from lra.reports.rows import EQUAL, Value, cost_points, cost_rows, prepare
from lra.results.rows import published_cells, published_rows
from lra.sweep.model_names import with_backbones


@cache
def lines() -> list[str]:
    return list(costs())


def cells(model: str) -> list[str]:
    """Return the line of a family, without its name."""
    (line,) = [line for line in lines() if line.startswith(f"| [{model}]")]
    return line.strip("| ").split(" | ")[1:]


def test_every_family_has_a_line_or_a_command() -> None:
    listed = [name for line in lines() for name in re.findall(r"^\| \[(\w+)\]", line)]
    commands = [line for line in lines() if line.startswith("    lra run ")]
    unmeasured = [name for line in commands for name in line.rpartition("model=")[2].split(",")]
    assert sorted([*listed, *unmeasured, REFERENCE]) == sorted(names("model"))
    assert len(listed) > 50
    page = (Path(__file__).parents[1] / "docs/efficiency.md").read_text(encoding="utf-8")
    for table in (lines(), longest()):
        assert "\n".join(table) in page, "make pages"


def ratio_of(file: str, model: str, length: int) -> float:
    """Return the time of a model, of that of exact attention."""
    path = max(PUBLISHED.glob(f"{file}-*.jsonl"))
    (ratio,) = [
        row["value"]
        for row in map(json.loads, path.read_text(encoding="utf-8").splitlines())
        if (row["model"], row["metric"], row["length"]) == (model, "time_ratio", length)
        and row["labels"]["reference"] == REFERENCE
    ]
    return float(ratio)


def test_factors_are_those_of_the_rows() -> None:
    for file, model, place in (
        ("families-epyc", "linear", 1),
        ("families_state_spaces_causal-epyc", "s4", 6),
        ("families_gated-epyc", "gla", 1),
    ):
        assert cells(model)[place] == f"{1 / ratio_of(file, model, 1024):.2g}"


def test_families_that_look_back_alone_are_marked_where_both_directions_are_in_view() -> None:
    marks = {name: [ONE_SIDED in cell for cell in cells(name)] for name in ("hyena", "s4")}
    assert marks["hyena"] == [True] * 5 + [False] * (len(marks["hyena"]) - 5)
    assert not any(marks["s4"])
    of_line = {line[3:].partition("]")[0] for line in lines() if ONE_SIDED in line}
    assert of_line == {"hyena", "multires_conv"}
    assert [line[:10] for line in longest() if ONE_SIDED in line] == ["| [hyena]("]


def test_long_rows_have_their_table() -> None:
    lines = {line[3:].partition("]")[0]: line.strip("| ").split(" | ")[1:] for line in longest()}
    assert lines["gla"] == [
        f"{1 / ratio_of(LONGEST[False][0], 'gla', 16384):.2g}",
        "1.8",
        f"{1 / ratio_of(LONGEST[True][0], 'gla', 16384):.1f}",
        "1.4",
        f"{1 / ratio_of(LONGEST[True][1], 'gla', 256):.2g}",
    ]
    assert lines["slstm"][:4] == ["–"] * 4 != lines["slstm"]


def test_a_failure_stands_in_place_of_a_factor() -> None:
    assert cells("softmax")[-2:] == ["OOM", "OOM"]
    assert cells("fnet")[5:10] == ["–"] * 5


def rounded(text: str, value: float) -> bool:
    """Tell whether a number is printed as its own rounding."""
    decimals = len(text.partition(".")[2])
    return abs(float(text.replace(",", "")) - value) <= 0.5000001 * 10**-decimals


def test_the_page_of_a_gpu_has_the_numbers_of_its_rows_and_names_every_family() -> None:
    """docs/gpu.md: of three families both ratios, of absent ones the names."""
    page = (Path(__file__).parents[1] / "docs/gpu.md").read_text(encoding="utf-8")
    path = max(PUBLISHED.glob("families_gpu-h100-*.jsonl"))
    rows = with_backbones(published_rows(path), published_cells(path))
    rows = rows[rows["length"] == 16384]
    found = {(p.model, p.mode): p for p in cost_points(cost_rows(prepare(rows)))}
    equal = REFERENCE + EQUAL

    def same(text: str, value: Value | None, unit: float = 1.0) -> bool:
        if value is None or value.value is None:
            reasons = {"out_of_memory": "out of memory"}
            return text == ("" if value is None else reasons[value.status])
        return rounded(text, value.value / unit)

    table = re.findall(r"^\| `(\w+)` \| (.*) \|$", page, re.MULTILINE)
    own = {name: line.split(" | ") for name, line in table if line.count("|") == 4}
    beside = {name: line.split(" | ") for name, line in table if line.count("|") == 3}
    for name, cells in own.items():
        forward, step = found[name, "forward"], found[name, "step"]
        assert same(cells[0], forward.time, 1e-3), name
        assert same(cells[1].strip(), forward.time_ratio.get(REFERENCE)), name
        assert same(cells[2], step.time, 1e-3), name
        assert same(cells[3].strip(), step.time_ratio.get(REFERENCE)), name
        assert same(cells[4], step.memory, 2**30), name
    for name, cells in beside.items():
        ratios = [
            found[name, mode].time_ratio.get(reference)
            for mode in ("forward", "step")
            for reference in (REFERENCE, equal)
        ]
        for text, ratio in zip(cells, ratios, strict=True):
            assert same(text.strip(), ratio) or text == "out of memory", name
    assert {*beside} == {model for model, _ in found if equal in found[model, "forward"].time_ratio}
    count, listed = re.findall(r"^These (\d+) families have not been .*?: (.*?)\.$", page,
                               re.MULTILINE | re.DOTALL)[0]  # fmt: skip
    absent = re.findall(r"`(\w+)`", listed)
    assert len(absent) == int(count)
    assert {*own} == {model for model, _ in found}
    assert sorted([*own, *absent]) == sorted(names("model")), "make pages writes it anew"


def test_the_figures_of_all_families_are_of_those_that_the_page_says() -> None:
    """The pictures are a report's on these rows: `mesa_net` and `rwkv6` are of another machine."""
    page = (Path(__file__).parents[1] / "docs/efficiency.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"^The figures show (.*?)\n\n", page, re.MULTILINE | re.DOTALL)
    sentence = " ".join(text.split())
    shown, every = map(int, re.findall(r"\d+ of the \d+", sentence)[0].split(" of the "))
    files = re.findall(r"`(families\w*)`", sentence)
    drawn = {
        row["model"]
        for name in files
        for line in max(PUBLISHED.glob(f"{name}-epyc-*.jsonl")).read_text().splitlines()
        if (row := json.loads(line))["metric"] == "time" and row["mode"] == "step"
    }
    assert (len(drawn), len(names("model"))) == (shown, every), "make pages writes it anew"
    assert {*re.findall(r"`(\w+)`", sentence.partition("tokens.")[2])} == {*names("model")} - drawn
    pictures = re.findall(r"\((figures/families-[\w-]+\.png)\)", page)
    assert len(pictures) == 4
    assert all((Path(__file__).parents[1] / "docs" / name).is_file() for name in pictures)
