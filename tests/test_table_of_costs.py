"""docs/efficiency.md: every family has a line, or stands in the command that measures it."""

import json
import re
from functools import cache
from pathlib import Path

from cost_table import LONGEST, ONE_SIDED, PUBLISHED, REFERENCE, SOURCED, unmeasured
from family_lists import tables
from lra.composition.catalogue import names
from lra.reports.rows import EQUAL, Value, cost_points, cost_rows, prepare
from lra.results.rows import published_cells, published_rows
from lra.sweep.model_names import with_backbones

PAGE = (Path(__file__).parents[1] / "docs/efficiency.md").read_text(encoding="utf-8")
made = cache(tables)


def lines(part: str = "both-directions") -> list[str]:
    return made()[part].splitlines()


def cells(model: str, part: str = "both-directions") -> list[str]:
    """Return the line of a family, without its name."""
    (line,) = [line for line in lines(part) if line.startswith(f"| [{model}]")]
    return line.strip("| ").split(" | ")[1:]


def test_every_family_has_a_line_or_a_command() -> None:
    both, causal = (
        [name for line in lines(part) for name in re.findall(r"^\| \[(\w+)\]", line)]
        for part in ("both-directions", "causal-models")
    )
    commands = [line for line in lines("causal-models") if line.startswith("    lra run ")]
    missing = [name for line in commands for name in line.rpartition("model=")[2].split(",")]
    every = [*{*both, *causal}, *missing, REFERENCE, *SOURCED]
    assert sorted(every) == sorted(names("model"))
    assert min(len(both), len(causal)) > 50
    for part in made().values():
        assert f"\n\n{part}\n\n" in PAGE, "make pages"


def test_families_without_a_line_stand_in_a_command() -> None:
    shown = [name for name in names("model") if name not in ("s4", "gla")]
    assert list(unmeasured(shown))[-1].endswith(" model=gla,s4")
    assert not list(unmeasured(shown, ["gla", "s4"]))


def test_the_finding_counts_the_lines_of_both_tables() -> None:
    text = " ".join(lines("finding"))
    (counted,) = re.findall(r"(\d+) of (\d+) families.* (\d+) of (\d+) causal", text)
    for part, (faster, every) in zip(
        ("both-directions", "causal-models"), (counted[:2], counted[2:]), strict=True
    ):
        table = [line for line in lines(part)[2:] if line.startswith("|")]  # not unmeasured ones
        found = [line.strip("| ").split(" | ")[4].split()[0] for line in table]
        factors = [factor for factor in found if factor == "≈" or factor[0].isdigit()]
        above = [factor for factor in factors if factor != "≈" and float(factor) > 1]
        assert (len(above), len(factors)) == (int(faster), int(every))
    fast = f"{cells('linear')[3]} times as fast as SDPA at 8,192 tokens and {cells('linear')[1]}"
    assert fast in text


def test_tables_are_narrow_enough_for_a_window_of_1280_pixels() -> None:
    """A browser measured that eight columns of numbers fit; `make docs` draws nothing."""
    wide = [
        f"{page.name}: {line}"
        for page in Path(__file__).parents[1].glob("docs/**/*.md")
        for line in page.read_text(encoding="utf-8").splitlines()
        if re.fullmatch(r"\|(?: *:?-+:? *\|){9,}", line)
    ]
    assert wide == []


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
    for file, model, part in (
        ("families-epyc", "linear", "both-directions"),
        ("families_state_spaces_causal-epyc", "s4", "causal-models"),
        ("families_gated-epyc", "gla", "both-directions"),
    ):
        assert cells(model, part)[1] == f"{1 / ratio_of(file, model, 1024):.2g}"


def test_families_that_look_back_alone_are_marked_where_both_directions_are_in_view() -> None:
    marks = {name: [ONE_SIDED in cell for cell in cells(name)] for name in ("hyena", "s4")}
    assert marks["hyena"] == [True] * 5 + [False] * (len(marks["hyena"]) - 5)
    assert not any(marks["s4"])
    of_line = {line[3:].partition("]")[0] for line in lines() if ONE_SIDED in line}
    assert of_line == {"compressed", "hyena", "multires_conv", "path"}
    long = {line[3:].partition("]")[0] for line in lines("long-sequences") if ONE_SIDED in line}
    assert long == {"compressed", "hyena", "path"}


def test_long_rows_have_their_table() -> None:
    assert cells("gla", "long-sequences") == [
        f"{1 / ratio_of(LONGEST[False][0], 'gla', 16384):.2g}",
        "1.8",
        f"{1 / ratio_of(LONGEST[True][0], 'gla', 16384):.1f}",
        "1.4",
        f"{1 / ratio_of(LONGEST[True][1], 'gla', 256):.2g}",
    ]
    causal = f"is {cells('gla', 'long-sequences')[2]} times as fast as SDPA at 16,384 tokens and "
    shown = f"causal `gla` {causal}{cells('gla', 'long-sequences')[4]} times as fast at 256 tokens"
    assert shown in " ".join(PAGE.split())
    assert cells("slstm", "long-sequences")[:4] == ["–"] * 4 != cells("slstm", "long-sequences")


def test_a_failure_stands_in_place_of_a_factor() -> None:
    assert cells("softmax")[-2:] == ["OOM", "OOM"]
    assert not any("[fnet]" in line for line in lines("causal-models"))


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
    count, listed = re.findall(r"^These (\d+) families still await .*?: (.*?)\.$", page,
                               re.MULTILINE | re.DOTALL)[0]  # fmt: skip
    absent = re.findall(r"`(\w+)`", listed)
    assert len(absent) == int(count)
    assert {*own} == {model for model, _ in found}
    assert sorted([*own, *absent]) == sorted(names("model")), "make pages writes it anew"


def test_the_figures_of_all_families_are_of_those_that_the_page_says() -> None:
    """The pictures are a report's on these rows: `mesa_net` and `rwkv6` are of another machine."""
    (text,) = re.findall(r"^The figures show (.*?)\n\n", PAGE, re.MULTILINE | re.DOTALL)
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
    pictures = re.findall(r"\((figures/families-[\w-]+\.png)\)", PAGE)
    assert len(pictures) == 4
    assert all((Path(__file__).parents[1] / "docs" / name).is_file() for name in pictures)
