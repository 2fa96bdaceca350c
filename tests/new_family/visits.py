"""Uses a family through every verb, in a copy of the project that has it; prints JSON.

    python visits.py FAMILY KIND APPROXIMATION

The last is a family with a budget. The working directory is for the results.
"""

import contextlib
import csv
import io
import json
import sys
from pathlib import Path

import family_pages
from lra.cli import main
from lra.composition.hydra_entry import entries
from lra.composition.selection import expand_sets, kinds, sets
from lra.reports.figures import drawing
from lra.reports.figures.panels import panels


def said(*words: str) -> str:
    """Return what a command prints; raise where it fails."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = main(list(words))
    if code:
        raise SystemExit(f"lra {' '.join(words)}: exit code {code}\n{out.getvalue()}")
    return out.getvalue()


def swept(*words: str) -> list[str]:
    """Return the families of a sweep."""
    found = entries(("-m", *words, "logger=none"))
    return sorted({entry.config["model"]["name"] for entry in found})


def visit(family: str, kind: str, approximation: str) -> dict[str, object]:
    """Return what each part of the project knows of the family."""
    known = sets()
    sweep = (
        f"model={family}", "runner=scaling", "runner.lengths=[16,32]", "runner.modes=[step]",
        "runner.references=[sdpa]", "runner.timed_steps=3", "runner.long_timed_steps=3",
        "runner.warmup_steps=1", "hardware.token_budget=64", "sweep=first", "logger=none",
        "report=true",
    )  # fmt: skip
    said("run", "-m", *sweep)
    said("report", "--sweep", "first", "--publish", "first")
    compared = (
        f"model={approximation}", "runner=approximation", "runner.lengths=[32]",
        "runner.budgets=[4,32]", "runner.timed_steps=3", "runner.long_timed_steps=3",
        "runner.warmup_steps=1", "hardware.token_budget=64", "sweep=second", "logger=none",
        "report=false",
    )  # fmt: skip
    said("run", *compared)
    said("report", "--sweep", "second", "--publish", "second")
    errors = [json.loads(line) for line in Path("second.jsonl").read_text().splitlines()]
    page = family_pages.page  # of all others their own tests
    family_pages.page = lambda name, *rest: page(name, *rest) if name == family else []
    family_pages.write_pages(Path("pages"), [Path("first.jsonl")])
    (report,) = Path("results/reports").iterdir()
    tables = {file.name: list(csv.reader(file.open())) for file in report.glob("*.csv")}
    return {
        "list": [line.split()[0] for line in said("list", "models").splitlines()[1:]],
        "options": said("list", family),
        "traits": json.loads(said("list", "models", "--traits", "--json"))["models"][family],
        "all": known["all"],
        "causal": known["causal"],
        "approximations": known["approximations"],
        "approximation": swept("+experiment=approximation"),
        "errors": {
            row["labels"]["budget"]: row["value"]
            for row in errors
            if (row["model"], row["metric"]) == (approximation, "output_error")
        },
        "of its kind": known["_".join(kind.split())],
        "model=all": expand_sets("model=all").partition("=")[2].split(","),
        "families": swept("+experiment=families"),
        "families_train": swept("+experiment=families_train"),
        "verify": said("verify", family, "--max-length", "64", "--quiet"),
        "tables": {name: [row for row in rows if family in row] for name, rows in tables.items()},
        "figures": sorted(file.name for file in report.glob("*.png")),
        "page": Path("pages", f"{family}.md").read_text(),
        "overview": Path("pages/README.md").read_text(),
        "page figures": [file.name for file in Path("pages/figures").glob(f"{family}-*.png")],
        "panels": panels(known["all"], kinds()),
        "looks": {name: list(map(str, look)) for name, look in drawing.looks(known["all"]).items()},
    }


if __name__ == "__main__":
    drawing.FORMATS = ("svg", "png")  # which the page and the list of figures are of
    sys.stdout.write(json.dumps(visit(*sys.argv[1:])))
