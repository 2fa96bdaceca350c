"""`lra show`: one stored result, as it was configured, what came out, and how to repeat it."""

import argparse
import json
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from lra.composition.arguments import (
    Parser,
    add_plugin,
    add_results,
    parser_beside_words,
    path_word,
    whole,
)
from lra.errors import CommandError
from lra.results.repeat import folder_is_gone, origin_of, repeat
from lra.runners.metrics import JUDGED_BY
from lra.runners.records import DISTURBED, Cell
from lra.runners.store import Store
from lra.terminal.console import print_table

MOST_TOKENS = 10_000_000
COST_USAGE = """lra show --cost [GROUP=NAME ...] [+experiment=NAME] [KEY=VALUE ...]
       lra show --cost CELL"""
COST_ABOUT = """\
Parameters and multiply-adds of a model, part by part: of a stored cell, or of what the words of
`lra run` compose. It is counted on a model without contents; nothing runs and nothing is written.
"""
COST_EXAMPLES = """\
examples:
  lra show --cost model=performer task=listops size=base
  lra show --cost model=softmax,linear task=text --lengths 1024,4096
  lra show --cost 3fa9                                    the model of a stored cell

Multiply-adds are those of one forward pass over one example, up to the scores of every class:
of products, convolutions, attention and Fourier transforms. Norms, softmax and other element-wise
work are not counted; causal attention counts all pairs.
"""


def parser() -> argparse.ArgumentParser:
    """Return the arguments of `lra show`."""
    args = Parser(
        prog="lra show",
        description="One stored result: configuration, rows, and the exact command to repeat it.",
        epilog="examples: lra show | lra show 3fa9c1 --json | lra show 3fa9 --curves",
    )
    args.add_argument(
        "cell",
        metavar="CELL",
        nargs="?",
        help="the beginning of a cell's key, as tables and logs print it; default: the cell that "
        "was stored last",
    )
    add_results(args)
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


def cost_parser() -> argparse.ArgumentParser:
    """Return the arguments of `lra show --cost`; its other words are a cell, or of `lra run`."""
    args = parser_beside_words("lra show --cost", COST_USAGE, COST_ABOUT, COST_EXAMPLES)
    args.add_argument("--cost", action="store_true", help=argparse.SUPPRESS)
    args.add_argument(
        "--lengths",
        type=_lengths,
        metavar="N,N",
        help="tokens of the example, the model built for each; default: the task's longest, or "
        "the cell's",
    )
    args.add_argument("--json", action="store_true", help="print one JSON object")
    add_plugin(args, "a package of yours that CELL names, so that it may be imported")
    args.add_argument(
        "--results", type=path_word, metavar="DIR", help="where CELL is stored; default: results"
    )
    return args


def _lengths(word: str) -> list[int]:
    try:
        return [whole(1, MOST_TOKENS)(part) for part in word.split(",")]
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(
            f"got {word[:40]!r}; wanted whole numbers from 1 to {MOST_TOKENS:,}, parted by commas"
        ) from error


def main(argv: list[str]) -> int:
    """Print the cell, or what a model costs."""
    if "--cost" in argv:
        flags, words_beside = cost_parser().parse_known_args(argv)
        from lra.choices.cost import print_costs

        return print_costs(words_beside, flags)
    arguments = parser().parse_args(argv)
    words = arguments.cell or ""
    for word in (arguments.lengths and "--lengths", "=" in words and words):
        if word:
            raise CommandError(
                f"{word} is for --cost: lra show --cost model=performer task=listops"
            )
    if not arguments.results.is_dir():
        raise FileNotFoundError(
            f"no results folder {arguments.results.resolve()}: name yours by --results DIR"
        )
    store = Store(arguments.results)
    key = store.find(arguments.cell) if arguments.cell else store.newest()
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
    print(f"cell      {key}  {title}")
    print(f"status    {status_line(rows)}")
    if scores := score_line(rows, cell.columns):
        print(f"score     {scores}")
    print(f"repeat    {command}")
    if folder_is_gone(cell):
        print(
            f"          its folder {cell.place['folder']} is gone: call this from where it is now"
        )
    if rows:
        print("\nrows")
        every = arguments.curves or cell.columns["runner"] == "search"  # whose steps are trials
        lines, hidden = row_lines(rows, str(cell.columns["model"]), curves=every)
        print_table(lines, header=True)
        if hidden:
            print(f"  and {hidden} rows along the training steps: --curves")
    print(f"\nconfiguration\n{indent(yaml.safe_dump(dict(cell.config), sort_keys=False))}")
    environment = {k: v for k, v in (stored["environment"] or {}).items() if k != "sources"}
    if environment:
        print(f"made on\n{indent(yaml.safe_dump(environment, sort_keys=False))}", end="")
    return 0


def status_line(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return in words whether a cell ended, and how; a failure with its first reason."""
    if not rows:
        return "no rows yet: the cell was begun and did not end"
    bad = [row for row in rows if row["status"] != "ok"]
    disturbed = sum(DISTURBED in (row["labels"] or {}) for row in rows)
    words = f"ok, {len(rows)} rows"
    if bad:
        words = f"{len(bad)} of {len(rows)} rows {bad[0]['status']}: {bad[0]['reason']}"
    return words + (f"; {disturbed} disturbed by other work" if disturbed else "")


def score_line(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, Any]) -> str:
    """Return the final scores of the cell's own model, split by split; empty where it has none."""
    scores: dict[str, str] = {}
    places = {metric: place for place, metric in enumerate(JUDGED_BY)}
    for row in sorted(rows, key=lambda row: places.get(row["metric"], len(places))):
        split = (row["labels"] or {}).get("split")
        mine = row["step"] is None and row["model"] == columns["model"] and row["status"] == "ok"
        if split and mine and split not in scores:
            unit = "" if row["unit"] in ("", "1", "fraction") else f" {row['unit']}"
            scores[split] = f"{row['metric']} {format_number(float(row['value']))}{unit} ({split})"
    return ", ".join(scores.values())


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
