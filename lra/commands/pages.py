"""`lra pages`: a documentation page per family, from its docstring, its traits and stored rows."""

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from lra.choices.explain import own_options, spelt
from lra.composition.arguments import Parser, add_own, path_word
from lra.composition.catalogue import choices
from lra.composition.selection import kinds
from lra.composition.yaml_text import load
from lra.results.stored import published
from runners.storage.fingerprint import sources

BACKGROUND = ("softmax", "sdpa", "identity")
COMMANDS = {
    "families": "lra run -m +experiment=families",
    "families_causal": (
        "lra run -m +experiment=families sweep=families_causal runner.direction=causal"
    ),
    "families_train": "lra run -m +experiment=families_train",
    "families_text": (
        "lra run -m +experiment=families_train runner=train sweep=families_text task=text "
        "task.max_length=256 optim.steps=200 runner.evaluate_splits=[validation]"
    ),
}
"""What makes the rows of a published file, by the sweep that begins its name."""


def docstring(class_path: str) -> str:
    """Return the docstring of the module that holds a class, without importing it.

    Raises:
        ModuleNotFoundError: there is no such module.
    """
    module = class_path.rpartition(".")[0]
    text = sources([module])[module].read_text(encoding="utf-8")
    return ast.get_docstring(ast.parse(text)) or ""


def options(file: Path) -> Iterator[tuple[str, str, str]]:
    """Yield name, default and meaning of each option of a model's own."""
    for option in own_options(file):
        values = f" One of {', '.join(option.values)}." if option.values else ""
        yield option.key.rpartition(".")[2], spelt(option.default), option.meaning + values


def capabilities(file: Path, plugins: Sequence[str] = ()) -> list[tuple[str, str]]:
    """Return what an instance with default options guarantees, as lines of a table."""
    from lra.choices.traits import describe, growth

    facts = describe(load(file), plugins, str(file))
    lines = [("directions", " and ".join(facts["directions"]) or "none")]
    lines += [(f"not {way}", reason) for way, reason in facts["refusals"].items()]
    if not facts["directions"]:
        return lines
    operations, activations = growth(facts)
    longest = facts["max_length"]
    exact = "exact: no value and no choice depends on later tokens"
    leak = "values exact, but later tokens move earlier choices (selection leak)"
    lines += [
        (
            "operations",
            f"as {operations}, n the sequence length: declared, and checked by counting",
        ),
        ("activations", f"as {activations}"),
        ("length", "up to the model's longest input" if longest else "any"),
        ("padding", "left out exactly" if "keep" in facts["supports"] else "cannot be left out"),
        ("positions inside", ", ".join(facts["positions"]) or "none"),
        ("state along time", "yes: prefill, segments and single steps" if facts["state"] else "no"),
        ("cross attention", "yes" if facts["cross"] else "no"),
        ("random draws", "yes, kept with the weights" if facts["random_draws"] else "no"),
        ("attention dropout", "yes" if facts["weight_dropout"] else "no weights to drop"),
        ("reversible residuals", "yes" if facts["reversible"] else "no"),
    ]
    if "causal" in facts["directions"]:
        lines.insert(1, ("causal form", leak if facts["selection_leak"] else exact))
    if facts["simulated"]:
        lines.append(("simulated", "a dense mask stands for sparsity: barred from speed tables"))
    return lines


def table(header: Sequence[str], lines: Sequence[Sequence[str]]) -> list[str]:
    """Return a Markdown table."""
    from reports.tables.table import escape_markdown

    rows = [" | ".join(escape_markdown(cell) for cell in line) for line in lines]
    return [
        f"| {' | '.join(header)} |",
        f"|{' --- |' * len(header)}",
        *(f"| {row} |" for row in rows),
        "",
    ]


def page(
    name: str,
    file: Path,
    rows: Sequence[tuple[Path, pd.DataFrame]],
    folder: Path,
    plugins: Sequence[str] = (),
) -> list[str]:
    """Return the lines of one family's page; its figures go into `folder`."""
    node = load(file)
    core = node.get("mixer") or node["stack"]
    about = node.get("about") or {}
    summary = str(about.get("summary") or name)
    guarantees = capabilities(file, plugins)  # says what is wrong with a class of one's own
    lines = [f"# {name}", "", f"{summary[0].upper()}{summary[1:]}.", ""]
    lines += [f"`lra run model={name}` · source: {linked(str(about.get('paper', '')))}", ""]
    lines += ["## What it computes", "", "```text", docstring(core["class_path"]), "```", ""]
    lines += ["## Options", ""]
    lines += table(("option", "default", ""), list(options(file))) or ["None.", ""]
    lines += ["## What it guarantees", ""]
    lines += table(("", ""), guarantees)
    for source, frame in rows:
        lines += measured(name, source, frame, folder)
    return lines


def linked(paper: str) -> str:
    """Return a source with its arXiv numbers as links."""
    return re.sub(r"arXiv:(\d{4}\.\d{4,5})", r"[arXiv:\1](https://arxiv.org/abs/\1)", paper)


def measured(name: str, source: Path, frame: pd.DataFrame, folder: Path) -> list[str]:
    """Return what the rows of one file say about a family, with the command that made them."""
    from reports.rows import cost_points, cost_rows, settings
    from reports.tables.costs import crossover_table, efficiency_table, growth_table, modes
    from reports.tables.scores import accuracy_table, splits
    from reports.tables.table import escape_markdown, to_markdown

    own = frame[(frame["model"] == name) | (frame["baseline"] != "")]
    lines: list[str] = []
    for split in splits(own) if (own["model"] == name).any() else []:
        found = accuracy_table(own, split)
        if found is not None:
            lines += [to_markdown(found).rstrip(), ""]
    beside = frame[frame["model"].isin([name, "sdpa"])]
    for part in settings(cost_rows(beside)) if (beside["model"] == name).any() else []:
        points = cost_points(part.rows)
        for mode in modes(points):
            alone = [p for p in points if p.mode == mode and p.model == name]
            built = (
                efficiency_table(alone, mode),
                crossover_table(alone),
                growth_table(alone),
            )
            lines += [escape_markdown(part.title[0].upper() + part.title[1:]) + ".", ""]
            lines += [
                text for t in built if t is not None for text in (to_markdown(t).rstrip(), "")
            ]
            lines += curve(name, frame, mode, source.stem, folder)
    if not lines:
        return []
    sweep = source.stem.partition("-")[0]
    made = f"; command `{COMMANDS[sweep]}`" if sweep in COMMANDS else ""
    return [f"## Measured: {sweep}", "", f"Rows: `{source.name}`{made}.", "", *lines]


def curve(name: str, frame: pd.DataFrame, mode: str, stem: str, folder: Path) -> list[str]:
    """Draw time against length beside exact attention, and return the lines that show it."""
    from reports.figures.drawing import looks, style
    from reports.figures.panels import panel_figure
    from reports.figures.scaling import scaling_data
    from reports.rows import cost_points
    from reports.stems import stem as file_stem

    points = cost_points(frame[frame["model"].isin([name, *BACKGROUND])])
    data = scaling_data(points, mode, "time")
    if name in BACKGROUND or data[data["model"] == name]["value"].isna().all():
        return []
    figure = panel_figure(data, looks([name]), {name: [name]}, subtitle="")
    path = folder / "figures" / f"{name}-{stem}-{file_stem(mode)}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    with style():
        figure.savefig(path, format="png", dpi=110, metadata={"Software": None})
    return [f"![time of {name} against length](figures/{path.name})", ""]


def index(files: Mapping[str, Path], config_dirs: Sequence[Path] = ()) -> list[str]:
    """Return the lines of the overview."""
    lines = ["# Families", "", "One page each, made by `lra pages` from the code and stored rows.",
             ""]  # fmt: skip
    by_kind = kinds(config_dirs)
    shown = {name for names in by_kind.values() for name in names}
    if rest := sorted(set(files) - shown):
        by_kind["others"] = rest
    for kind, names in by_kind.items():
        lines += [f"## {kind.capitalize()}", "", "| model | idea | source |", "| --- | --- | --- |"]
        for name in names:
            about: dict[str, Any] = load(files[name]).get("about") or {}
            paper = linked(str(about.get("paper", "")))
            lines.append(f"| [{name}]({name}.md) | {about.get('summary', '')} | {paper} |")
        lines.append("")
    return lines


def main(argv: list[str]) -> int:
    """Parse the words after `lra pages` and write the pages."""
    from reports.rows import prepare

    parser = Parser(prog="lra pages", description=__doc__)
    parser.add_argument("--out", type=path_word, required=True, help="folder for the pages")
    parser.add_argument(
        "--rows",
        type=path_word,
        nargs="*",
        action="extend",
        default=[],
        help="published files of rows",
    )
    add_own(parser)
    choice = parser.parse_args(argv)
    files = {file.stem: file for file in choices("model", choice.config_dir)}
    rows = [(source, prepare(published(source))) for source in choice.rows]
    choice.out.mkdir(parents=True, exist_ok=True)
    for name, file in files.items():
        text = "\n".join(page(name, file, rows, choice.out, choice.plugin)).rstrip() + "\n"
        (choice.out / f"{name}.md").write_text(text, encoding="utf-8")
        print(choice.out / f"{name}.md")
    (choice.out / "README.md").write_text(
        "\n".join(index(files, choice.config_dir)).rstrip() + "\n", encoding="utf-8"
    )
    print(choice.out / "README.md")
    return 0
