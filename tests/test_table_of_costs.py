"""docs/efficiency.md: every family has a line, or stands in the command that measures it."""

import json
import re
from pathlib import Path

from cost_table import PUBLISHED, REFERENCE, costs
from lra.composition.catalogue import names

LINES = list(costs())


def cells(model: str) -> list[str]:
    """Return the line of a family, without its name."""
    (line,) = [line for line in LINES if line.startswith(f"| [{model}]")]
    return line.strip("| ").split(" | ")[1:]


def test_every_family_has_a_line_or_a_command() -> None:
    listed = [name for line in LINES for name in re.findall(r"^\| \[(\w+)\]", line)]
    commands = [line for line in LINES if line.startswith("    lra run ")]
    unmeasured = [name for line in commands for name in line.rpartition("model=")[2].split(",")]
    assert sorted([*listed, *unmeasured, REFERENCE]) == sorted(names("model"))
    assert len(listed) > 50
    page = (Path(__file__).parents[1] / "docs/efficiency.md").read_text(encoding="utf-8")
    assert "<!-- table: costs -->" in page


def test_factors_are_those_of_the_rows() -> None:
    for file, model, place in (
        ("families-epyc", "linear", 1),
        ("families_state_spaces_causal-epyc", "s4", 6),
        ("families_gated-epyc", "gla", 1),
    ):
        path = max(PUBLISHED.glob(f"{file}-*.jsonl"))
        (ratio,) = [
            row["value"]
            for row in map(json.loads, path.read_text(encoding="utf-8").splitlines())
            if (row["model"], row["metric"], row["length"]) == (model, "time_ratio", 1024)
            and row["labels"]["reference"] == REFERENCE
        ]
        assert cells(model)[place] == f"{1 / ratio:.2g}"


def test_a_failure_stands_in_place_of_a_factor() -> None:
    assert cells("softmax")[-2:] == ["OOM", "OOM"]
    assert cells("fnet")[5:10] == ["–"] * 5
