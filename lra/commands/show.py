"""`lra show`: print the score, settings and rows of one stored run, and how to rerun it."""

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
"""Size of a screen; the output without flags fits into it."""
FEW, MOST_DEVIATIONS = 2, 3
"""The most rows of a metric that is printed early, and the most deviations from a paper."""
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
  lra show --cost 3fa9                                    count the model of a stored run

The command counts the multiply-adds of one forward pass over one example, from the embedding to the
scores of the classes. It counts matrix products, convolutions, attention and Fourier transforms; it
omits element-wise work such as norms and softmax. For causal attention, it counts all pairs.
"""


def parser() -> argparse.ArgumentParser:
    """Return the arguments of `lra show`."""
    args = Parser(
        prog="lra show",
        description="Show the score, the settings and the rows of one stored run, and how to rerun "
        "it.",
        epilog="""\
examples:
  lra show             show the run that was stored last
  lra show 3fa9        show the run with a key that begins with 3fa9
  lra show 3fa9 --all  show every row, the whole configuration and the packages, too""",
    )
    args.add_argument(
        "cell", metavar="RUN", nargs="?",
        help="the beginning of a run's key, as logs and tables print it; default: the run that was "
        "stored last",
    )  # fmt: skip
    add_results(args)
    args.add_argument(
        "--all", action="store_true",
        help="print every row, the configuration and the versions of packages",
    )  # fmt: skip
    args.add_argument("--curves", action="store_true", help="also print rows of training steps")
    args.add_argument("--json", action="store_true", help="print JSON")
    add_plugin(args, "name of your package, if the run uses it")
    args.add_argument(
        "--cost", action="store_true",
        help="count the parameters and multiply-adds of each layer, instead of showing a run; "
        "`lra show --cost --help` explains it",
    )  # fmt: skip
    args.add_argument(
        "--lengths", metavar="N,N",
        help="the lengths of an example, in tokens, for which --cost counts",
    )  # fmt: skip
    return args


def cost_parser() -> argparse.ArgumentParser:
    """Return the parser of `lra show --cost`, which leaves the name of a run or model unparsed."""
    args = parser_beside_words("lra show --cost", COST_USAGE, COST_ABOUT, COST_EXAMPLES)
    args.add_argument("--cost", action="store_true", help=argparse.SUPPRESS)
    args.add_argument(
        "--lengths", type=_parse_lengths, metavar="N,N",
        help="lengths of the example in tokens; the command counts each length separately; "
        "default: the greatest length of the task or run",
    )  # fmt: skip
    args.add_argument("--json", action="store_true", help="print one JSON object")
    add_plugin(args, "name of your package, if RUN uses it")
    args.add_argument(
        "--results", type=path_word, metavar="DIR",
        help="results folder that contains RUN; default: results",
    )  # fmt: skip
    return args


def _parse_lengths(word: str) -> list[int]:
    """Return the lengths in a text such as 512,1024; raise ArgumentTypeError for other texts."""
    try:
        return [whole(1, MOST_TOKENS)(part) for part in word.split(",")]
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(
            f"got {word[:40]!r}; wanted whole numbers from 1 to {MOST_TOKENS:,}, as in 512,1024"
        ) from error


def main(argv: list[str]) -> int:
    """Print a stored run, or with --cost the operations of a model; return the exit code."""
    if "--cost" in argv:
        flags, other_words = cost_parser().parse_known_args(argv)
        from lra.choices.cost import print_costs

        return print_costs(other_words, flags)
    arguments = parser().parse_args(argv)
    name = arguments.cell or ""
    # Both are of use only for `--cost`: the flag, and an argument of `lra run` in place of a key.
    for word in (arguments.lengths and "--lengths", "=" in name and name):
        if word:
            raise CommandError(
                f"{word} needs --cost, as in lra show --cost model=performer task=listops"
            )
    if not arguments.results.is_dir():
        raise FileNotFoundError(
            f"there is no results folder {arguments.results.resolve()}; set its path by "
            "--results DIR"
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
        lines_used = sum(1 + len(line) // WIDTH for line in facts)
        room = max(5, LINES - lines_used - 5)  # 5 lines for blanks, the heading and the hints
        print("\n" + "\n".join(main_rows(rows, str(columns["model"]), room)))
        flag = in_results(arguments.results)
        print(f"\nTo see every row, the configuration and the packages: lra show {key}{flag} --all")
        return 0
    # In a search, the column `step` holds the number of a trial.
    curves = arguments.curves or columns["runner"] == "search"
    lines, hidden = row_lines(rows, str(columns["model"]), curves=curves)
    print("\nrows")
    print_table(lines, header=True)
    if hidden:
        print(f"  to see {number_of(hidden, 'more row')} of training steps, add --curves")
    if arguments.all:
        print(f"\nconfiguration\n{indent(yaml.safe_dump(dict(cell.config), sort_keys=False))}")
        print(f"machine\n{indent(yaml.safe_dump(environment, sort_keys=False))}", end="")
    return 0


def fact_lines(
    cell: Cell, rows: Rows, store: Store, command: str, environment: Mapping[str, Any]
) -> Iterator[str]:
    """Yield lines with the score of a run, its settings, status, command, machine and files.

    Args:
        cell: The run.
        rows: Its rows; empty if it has not ended.
        store: The results folder.
        command: The command that reruns it.
        environment: Facts about the machine and the packages that it used.
    """
    columns = cell.columns
    for number, line in enumerate(score_lines(cell, rows, store)):
        yield f"{'' if number else 'score':10}{line}"
    names = ("runner", "mode", "model", "task", "length", "seed", "hardware")
    yield f"run       {cell.key}  {' '.join(f'{name}={columns[name]}' for name in names)}"
    yield f"status    {status_line(rows)}"
    yield f"rerun     {command}"
    if folder_is_gone(cell):
        yield (
            f"          the folder {cell.place['folder']}, where this command was typed, no longer "
            "exists; if you moved it, change to its new place first"
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
        return "not comparable, as this run has no protocol; +protocol=NAME uses a paper's settings"
    scale = f", which scale={labels['scale']} makes smaller" if "scale" in labels else ""
    untrained = "; the paper did not train this model" if "settings" in labels else ""
    changed = f"; this run changed {labels['changed']}" if "changed" in labels else ""
    return f"protocol {labels['protocol']}{scale}{untrained}{changed}"


def main_rows(rows: Rows, model: str, room: int) -> Iterator[str]:
    """Yield a table of final rows in at most `room` lines: scores, then metrics with few rows.

    Rows of training steps and labels that all final rows share are omitted; `model` is the run's.
    """
    # In a search, the column `step` holds the number of a trial, so every row is final.
    search = any(row["metric"] == FIRST[0] for row in rows)
    final = [{**row} for row in rows if row["step"] is None or search] or [{**row} for row in rows]
    count = Counter(row["metric"] for row in final)
    final.sort(key=lambda row: (row["metric"] not in FIRST, count[row["metric"]] > FEW))
    shared = set.intersection(*({*(row["labels"] or {}).items()} for row in final))
    for row in final[:room]:
        labels = {*(row["labels"] or {}).items()} - shared
        row["labels"] = {key: value for key, value in labels if key != "sentence"}
    lines, _ = row_lines(final[:room], model, curves=True)
    yield from (trim(line, WIDTH) for line in table(lines, indent="").splitlines())
    if hidden := len(rows) - len(final[:room]):
        yield f"and {number_of(hidden, 'more row')}"


def status_line(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return whether a run succeeded or failed, in words, with the reason of the first failure."""
    if not rows:
        return "the run was started, but it has not ended, so it has no rows yet"
    failed = [row for row in rows if row["status"] != "ok"]
    disturbed = sum(DISTURBED in (row["labels"] or {}) for row in rows)
    text = f"ok, {len(rows)} rows"
    if failed:
        text = f"{len(failed)} of {len(rows)} rows {failed[0]['status']}: {failed[0]['reason']}"
    return text + (f"; other processes disturbed {disturbed} of them" if disturbed else "")


def row_lines(
    rows: Sequence[Mapping[str, Any]], model: str, *, curves: bool = False
) -> tuple[list[tuple[str, ...]], int]:
    """Return the lines of a table of rows, and the number of rows that are omitted.

    Args:
        rows: The rows of a run.
        model: The model of the run; a row with another model names it.
        curves: Whether the table contains the rows of training steps.
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
    """Return a number as text: whole numbers with all digits, others with six digits."""
    return f"{int(value):,}" if value.is_integer() and abs(value) < 1e15 else f"{value:.6g}"


def indent(text: str) -> str:
    """Return `text` with two blanks in front of each line."""
    return "".join(f"  {line}\n" for line in text.splitlines())
