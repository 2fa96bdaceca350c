"""`lra show`: one stored result, as it was configured, what came out, and how to repeat it."""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from lra.composition.arguments import Parser, add_plugin, path_word
from lra.errors import CommandError
from lra.results.repeat import gone, origin_of, repeat
from lra.terminal.console import print_table
from runners.records import Cell
from runners.store import Store


def parser() -> argparse.ArgumentParser:
    """Return the arguments of `lra show`."""
    args = Parser(
        prog="lra show",
        description="One stored result: configuration, rows, and the exact command to repeat it.",
        epilog="examples: lra show 3fa9 | lra show 3fa9c1 --json | lra show 3fa9 --curves",
    )
    args.add_argument(
        "cell", metavar="CELL", help="the beginning of a cell's key, as tables and logs print it"
    )
    args.add_argument(
        "--results", type=path_word, default=Path("results"), metavar="DIR", help="default: results"
    )
    args.add_argument("--curves", action="store_true", help="print rows of every training step too")
    args.add_argument("--json", action="store_true", help="print JSON")
    add_plugin(args, "a package of yours that the cell names, so that it may be imported")
    args.add_argument(
        "--cost",
        action="store_true",
        help="parameters and multiply-adds by layer instead, of CELL or of the words of lra run; "
        "lra show --cost --help",
    )
    args.add_argument("--lengths", metavar="N,N", help="tokens of an example, for --cost")
    return args


def main(argv: list[str]) -> int:
    """Print the cell, or what a model costs."""
    if "--cost" in argv:
        from lra.choices.cost import main as cost

        return cost(argv)
    arguments = parser().parse_args(argv)
    for word in (arguments.lengths and "--lengths", "=" in arguments.cell and arguments.cell):
        if word:
            raise CommandError(
                f"{word} is for --cost: lra show --cost model=performer task=listops"
            )
    if not arguments.results.is_dir():
        raise FileNotFoundError(
            f"no results folder {arguments.results.resolve()}: name yours by --results DIR"
        )
    store = Store(arguments.results)
    key = store.find(arguments.cell)
    stored = store.describe(key)
    cell = Cell(
        identity=stored["identity"],
        described=stored["described"],
        columns=stored["columns"],
        config=stored["config"],
        overrides=tuple(stored["overrides"]),
        fingerprint=stored["fingerprint"] or "",
        place=origin_of(stored),
    )
    rows = store.rows_of(cell) if cell.fingerprint else []
    command = repeat(cell, store)
    if arguments.json:
        everything = {**stored, "command": command, "rows": rows}
        print(json.dumps(everything, indent=2, ensure_ascii=False))
        return 0
    title = " ".join(
        f"{name}={cell.columns[name]}"
        for name in ("runner", "mode", "model", "task", "length", "seed", "hardware")
    )
    print(f"cell {key}  {title}")
    print(f"\nconfiguration\n{indent(yaml.safe_dump(dict(cell.config), sort_keys=False))}")
    environment = {k: v for k, v in (stored["environment"] or {}).items() if k != "sources"}
    if environment:
        print(f"made on\n{indent(yaml.safe_dump(environment, sort_keys=False))}")
    print("rows" if rows else "no rows yet: the cell was begun and did not end")
    if rows:
        lines, hidden = row_lines(rows, str(cell.columns["model"]), curves=arguments.curves)
        print_table(lines, header=True)
        if hidden:
            print(f"  and {hidden} rows along the training steps: --curves")
    print("\nrepeat it (results= another folder, for a complete cell is skipped)")
    if gone(cell):
        print(
            f"  its folder {cell.place['folder']} is not here any more: call this from where it is "
            "now"
        )
    print(f"  {command}")
    return 0


def row_lines(
    rows: Sequence[Mapping[str, Any]], model: str, *, curves: bool = False
) -> tuple[list[tuple[str, ...]], int]:
    """Return rows as words below their headings, and how many are left out.

    Those along training steps are, unless they are asked for.
    """
    listed = [row for row in rows if curves or row["step"] is None]
    lines: list[tuple[str, ...]] = [("metric", "value", "unit", "samples", "labels")]
    for row in listed:
        step = [] if row["step"] is None else [f"step={row['step']}"]
        labels = [f"{key}={value}" for key, value in sorted((row["labels"] or {}).items())]
        other_model = [] if row["model"] == model else [str(row["model"])]
        lines.append(
            (
                str(row["metric"]),
                format_number(float(row["value"]))
                if row["status"] == "ok"
                else f"{row['status']}: {row['reason']}",
                str(row["unit"]),
                str(len(row["samples"] or ())),
                " ".join([*other_model, *step, *labels]),
            )
        )
    return lines, len(rows) - len(listed)


def format_number(value: float) -> str:
    """Return whole numbers whole, and six digits of all others."""
    return f"{int(value):,}" if value.is_integer() and abs(value) < 1e15 else f"{value:.6g}"


def indent(text: str) -> str:
    """Shift a block of text to the right."""
    return "".join(f"  {line}\n" for line in text.splitlines())
