"""`lra show`: one stored run: its score, its settings and rows, and how to rerun it."""

import argparse
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
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
from lra.composition.spelling import in_results
from lra.conf.short_values import number_of
from lra.errors import CommandError
from lra.results.repeat import folder_is_gone, origin_of, repeat
from lra.results.rows import deviations
from lra.results.score_line import Rows, score_lines
from lra.runners.metrics import JUDGED_BY
from lra.runners.records import DISTURBED, Cell
from lra.runners.store import Store
from lra.terminal.console import print_table
from lra.terminal.screen import table, trim
from lra.terminal.wording import time_words

LINES, WIDTH = 40, 100
"""Of a screen, which what is printed without flags fits."""
FEW, MOST_DEVIATIONS = 2, 3
FIRST = ("trial_score", "chosen_trial", *JUDGED_BY)
"""Metrics whose rows are printed first."""
PACKAGES = ("lra", "torch")
MOST_TOKENS = 10_000_000
COST_USAGE = """lra show --cost [GROUP=NAME ...] [+experiment=NAME] [KEY=VALUE ...]
       lra show --cost RUN"""
COST_ABOUT = """\
Count the parameters and multiply-adds of a model, part by part. Name a stored run, or give the
arguments of `lra run`. This command counts operations; it starts no run.
"""
COST_EXAMPLES = """\
examples:
  lra show --cost model=performer task=listops size=base
  lra show --cost model=softmax,linear task=text --lengths 1024,4096
  lra show --cost 3fa9                                    the model of a stored run

Multiply-adds are those of one forward pass over one example, from the embedding to the scores of
the classes: matrix products, convolutions, attention and Fourier transforms. Element-wise work such
as norms and softmax is omitted. Causal attention counts all pairs.
"""


def parser() -> argparse.ArgumentParser:
    """Return the arguments of `lra show`."""
    args = Parser(
        prog="lra show",
        description="Show one stored run: its score, what ran, how to rerun it, and its rows.",
        epilog="""\
examples:
  lra show             the run that was stored last
  lra show 3fa9        the run whose key begins with 3fa9
  lra show 3fa9 --all  every row, the whole configuration and the packages""",
    )
    args.add_argument(
        "cell", metavar="RUN", nargs="?",
        help="the beginning of a run's key, as logs and tables print it; default: the run that was "
        "stored last",
    )  # fmt: skip
    add_results(args)
    args.add_argument(
        "--all", action="store_true", help="print every row, the configuration and the packages"
    )
    args.add_argument("--curves", action="store_true", help="also print rows of training steps")
    args.add_argument("--json", action="store_true", help="print JSON")
    add_plugin(args, "your package, if the run uses it")
    args.add_argument(
        "--cost", action="store_true",
        help="count parameters and multiply-adds by layer instead: see lra show --cost --help",
    )  # fmt: skip
    args.add_argument("--lengths", metavar="N,N", help="with --cost: tokens of an example")
    return args


def cost_parser() -> argparse.ArgumentParser:
    """Return the arguments of `lra show --cost`; others name a run, or are of `lra run`."""
    args = parser_beside_words("lra show --cost", COST_USAGE, COST_ABOUT, COST_EXAMPLES)
    args.add_argument("--cost", action="store_true", help=argparse.SUPPRESS)
    args.add_argument(
        "--lengths", type=_lengths, metavar="N,N",
        help="lengths of the example in tokens, each counted separately; default: the longest of "
        "the task or run",
    )  # fmt: skip
    args.add_argument("--json", action="store_true", help="print one JSON object")
    add_plugin(args, "your package, if RUN uses it")
    args.add_argument(
        "--results", type=path_word, metavar="DIR",
        help="the results folder of RUN; default: results",
    )  # fmt: skip
    return args


def _lengths(word: str) -> list[int]:
    try:
        return [whole(1, MOST_TOKENS)(part) for part in word.split(",")]
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(
            f"got {word[:40]!r}; wanted whole numbers from 1 to {MOST_TOKENS:,}, as in 512,1024"
        ) from error


def main(argv: list[str]) -> int:
    """Print the run, or what a model needs."""
    if "--cost" in argv:
        flags, words_beside = cost_parser().parse_known_args(argv)
        from lra.choices.cost import print_costs

        return print_costs(words_beside, flags)
    arguments = parser().parse_args(argv)
    words = arguments.cell or ""
    for word in (arguments.lengths and "--lengths", "=" in words and words):
        if word:
            raise CommandError(f"{word} needs --cost: lra show --cost model=performer task=listops")
    if not arguments.results.is_dir():
        raise FileNotFoundError(
            f"there is no results folder {arguments.results.resolve()}: name yours by --results DIR"
        )
    store = Store(arguments.results)
    key = store.find(arguments.cell) if arguments.cell else store.newest()
    stored = store.describe(key)
    cell = Cell(
        identity=stored["identity"], described=stored["described"], columns=stored["columns"],
        config=stored["config"],
        overrides=tuple(stored["overrides"]), fingerprint=stored["fingerprint"] or "",
        place=origin_of(stored),
    )  # fmt: skip
    rows = store.rows_of(cell) if cell.fingerprint else []
    columns, command = cell.columns, repeat(cell, store)
    if arguments.json:
        everything = {**stored, "command": command, "rows": rows}
        print(json.dumps(everything, indent=2, ensure_ascii=False))
        return 0
    environment = {k: v for k, v in (stored["environment"] or {}).items() if k != "sources"}
    facts = [*fact_lines(cell, rows, store, command, environment)]
    print("\n".join(facts))
    if rows and not (arguments.all or arguments.curves):
        taken = sum(1 + len(line) // WIDTH for line in facts)
        print("\n" + "\n".join(main_rows(rows, str(columns["model"]), max(5, LINES - taken - 5))))
        where = in_results(arguments.results)
        print(f"\nEvery row, the configuration and the packages: lra show {key}{where} --all")
        return 0
    curves = arguments.curves or columns["runner"] == "search"  # whose steps are trials
    lines, hidden = row_lines(rows, str(columns["model"]), curves=curves)
    print("\nrows")
    print_table(lines, header=True)
    if hidden:
        print(f"  and {hidden} rows of training steps: add --curves")
    if arguments.all:
        print(f"\nconfiguration\n{indent(yaml.safe_dump(dict(cell.config), sort_keys=False))}")
        print(f"machine\n{indent(yaml.safe_dump(environment, sort_keys=False))}", end="")
    return 0


def fact_lines(
    cell: Cell, rows: Rows, store: Store, command: str, environment: Mapping[str, Any]
) -> Iterator[str]:
    """Yield the score, what ran, how it ended, how to rerun it, where, and how it was published."""
    columns = cell.columns
    for number, line in enumerate(score_lines(cell, rows, store)):
        yield f"{'' if number else 'score':10}{line}"
    names = ("runner", "mode", "model", "task", "length", "seed", "hardware")
    yield f"run       {cell.key}  {' '.join(f'{name}={columns[name]}' for name in names)}"
    yield f"status    {status_line(rows)}"
    yield f"rerun     {command}"
    if folder_is_gone(cell):
        yield (
            f"          its folder {cell.place['folder']} no longer exists: change to the folder "
            "where it is now first"
        )
    if rows:
        took = f" in {time_words(environment['took_s'])}" if "took_s" in environment else ""
        made = f"{rows[0]['created'][:16].replace('T', ' ')} UTC{took}"
        packages = "".join(f", {k} {environment[k]}" for k in PACKAGES if k in environment)
        yield f"machine   {columns['device']}, {columns['precision']}; {made}{packages}"
    if rows and columns["runner"] == "train":
        yield f"papers    {published_line(rows[0]['labels'])}"
        for name, sentence in [*deviations(cell.config).items()][:MOST_DEVIATIONS]:
            yield trim(f"          {name}: {' '.join(sentence.split())}", 2 * WIDTH)
    yield f"files     {store.cell_folder(cell.key)}"


def published_line(labels: Mapping[str, str]) -> str:
    """Return how the settings of a run relate to those of a paper, from the labels of its rows."""
    if "protocol" not in labels:
        return "not comparable, as no protocol was used: +protocol=NAME takes a paper's settings"
    small = f", made smaller by scale={labels['scale']}" if "scale" in labels else ""
    other = "; the paper did not train this model" if "settings" in labels else ""
    changed = f"; changed here: {labels['changed']}" if "changed" in labels else ""
    return f"protocol {labels['protocol']}{small}{other}{changed}"


def main_rows(rows: Rows, model: str, room: int) -> Iterator[str]:
    """Yield final rows in at most `room` lines, scores first, without labels that all share."""
    search = any(row["metric"] == FIRST[0] for row in rows)  # whose steps are trials
    final = [{**row} for row in rows if row["step"] is None or search] or [{**row} for row in rows]
    often = Counter(row["metric"] for row in final)
    final.sort(key=lambda row: (row["metric"] not in FIRST, often[row["metric"]] > FEW))
    shared = set.intersection(*({*(row["labels"] or {}).items()} for row in final))
    for row in final[:room]:
        labels = {*(row["labels"] or {}).items()} - shared
        row["labels"] = {key: value for key, value in labels if key != "sentence"}
    lines, _ = row_lines(final[:room], model, curves=True)
    yield from (trim(line, WIDTH) for line in table(lines, indent="").splitlines())
    if hidden := len(rows) - len(final[:room]):
        yield f"and {number_of(hidden, 'more row')}"


def status_line(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return in words whether a run ended, and how; a failure with its first reason."""
    if not rows:
        return "no rows yet: the run was begun and did not end"
    bad = [row for row in rows if row["status"] != "ok"]
    disturbed = sum(DISTURBED in (row["labels"] or {}) for row in rows)
    words = f"ok, {len(rows)} rows"
    if bad:
        words = f"{len(bad)} of {len(rows)} rows {bad[0]['status']}: {bad[0]['reason']}"
    return words + (f"; {disturbed} disturbed by other work" if disturbed else "")


def row_lines(
    rows: Sequence[Mapping[str, Any]], model: str, *, curves: bool = False
) -> tuple[list[tuple[str, ...]], int]:
    """Return rows as words below their headings, and how many are omitted.

    Those of training steps are, unless `curves` asks for them.
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
