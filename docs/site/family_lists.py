"""Writes lists of families and tables of costs into pages: `make pages`."""

import json
import re
from pathlib import Path
from textwrap import fill

from cost_table import (
    HEAD,
    HEAD_GPU,
    both_directions,
    causal,
    finding,
    longest,
    table_lines,
    unmeasured,
)
from lra.choices.traits import describe_traits
from lra.composition.catalogue import choices, names
from lra.composition.yaml_text import load
from lra.models.mixer import INSIDE, MASKS

ROOT = Path(__file__).resolve().parents[2]
PUBLISHED = ROOT / "reports/published"
OF_FIGURES = ("families", "families_state_spaces", "families_gated", "families_others")
"""Published rows of the figures of docs/efficiency.md."""
WIDTH = 150


def measured(files: list[Path]) -> set[str]:
    """Return the families whose training step is among published rows."""
    rows = (json.loads(line) for file in files for line in file.read_text().splitlines())
    return {r["model"] for r in rows if r["metric"] == "time" and r["mode"] == "step"}


def written(page: str, pattern: str, text: str) -> None:
    """Put a text where a pattern matches a page, once."""
    path = ROOT / "docs" / page
    found, count = re.subn(pattern, lambda _: text, path.read_text(encoding="utf-8"), flags=re.S)
    if count != 1:
        raise SystemExit(f"docs/{page}: {pattern} is there {count} times; wanted once")
    path.write_text(found, encoding="utf-8")


def of_traits() -> None:
    """Write which families honour each mask, and apply each encoding of positions."""
    traits = {file.stem: describe_traits(load(file)) for file in choices("model", [])}
    for page, trait, places in (
        ("masks.md", "supports", MASKS),
        ("positions.md", "positions", INSIDE),
    ):
        for place in places:
            offered = sorted(family for family, each in traits.items() if place in each[trait])
            line = f"- `{place}`: {', '.join(offered)}\n"
            written(page, rf"(?m)^- `{place}`: (?!both)[^\n]*\n", line)


def tables() -> dict[str, str]:
    """Return the generated parts of docs/efficiency.md, by the name of their mark."""
    both, alone = both_directions(), causal()
    others = list(unmeasured(both, alone))
    of_causal = table_lines(alone, *HEAD)
    lines = {
        "finding": [fill(finding(both, alone), WIDTH)],
        "both-directions": table_lines(both, *HEAD, *HEAD_GPU),
        "causal-models": [*of_causal, "", *others] if others else of_causal,
        "long-sequences": longest(),
    }
    return {name: "\n".join(each) for name, each in lines.items()}


def of_costs() -> None:
    """Write tables of time and memory, and name the families that figures and tables omit."""
    for name, lines in tables().items():
        mark = f"<!-- {name} -->" if name == "finding" else f"<!-- table: {name} -->"
        written("efficiency.md", rf"{mark}.*?<!-- end -->", f"{mark}\n\n{lines}\n\n<!-- end -->")
    every = {*names("model")}
    drawn = measured([max(PUBLISHED.glob(f"{name}-epyc-*.jsonl")) for name in OF_FIGURES])
    listed = ", ".join(f"`{name}`" for name in OF_FIGURES[:-1]) + f" and `{OF_FIGURES[-1]}`"
    left = [f"`{name}`" for name in sorted(every - drawn)]
    absent = f" The figures omit {' and '.join(left)}." if left else ""
    text = (
        f"The figures show {len(drawn)} of the {len(every)} families, drawn from the rows of "
        f"the sweeps {listed}, for both directions and up to 8,192 tokens.{absent}"
    )
    written("efficiency.md", r"The figures show .*?\n\n", fill(text, WIDTH) + "\n\n")
    on_gpu = measured([max(PUBLISHED.glob("families_gpu-h100-*.jsonl"))])
    left = [f"`{name}`" for name in sorted(every - on_gpu)]
    pattern = r"These \d+ families (have not been [^:]*): .*?\.\n"
    found = re.search(pattern, (ROOT / "docs/gpu.md").read_text(encoding="utf-8"), re.S)
    assert found, "docs/gpu.md names the families that were not measured"
    text = f"These {len(left)} families {' '.join(found[1].split())}: {', '.join(left)}."
    written("gpu.md", pattern, fill(text, WIDTH) + "\n")


if __name__ == "__main__":
    of_traits()
    of_costs()
