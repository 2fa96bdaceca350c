"""`lra report claims`: which ranks of a published table can survive?"""

import csv
import io
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from lra.composition.arguments import Parser, whole
from lra.conf.plain_files import read_bytes
from lra.errors import ConfigError, UnknownName, unknown
from lra.reports.arena.literature import published_accuracies, published_tables
from lra.reports.comparison.claims import (
    MEAN,
    Claims,
    claims_sentence,
    claims_table,
    ranked_columns,
)
from lra.terminal.result_table import print_result

EXAMPLES = {
    "listops": 2_000, "text": 25_000, "retrieval": 17_437, "image": 10_000, "pathfinder": 20_000,
    "pathx": 20_000,
}  # fmt: skip
"""Test examples of the tasks of the Long Range Arena."""
SPREAD = 1.0
"""The assumed standard deviation between seeds, in percentage points."""
MISSING = ("", "-", "–", "—", "fail", "x", "✗", "n/a", "nan")
_ACCURACY = re.compile(r"([0-9.]+)\s*%?(?:\s*(?:±|\+-|\+/-)\s*[0-9.]+)?")


def main(argv: Sequence[str]) -> int:
    """Print which ranks of a published table can survive; return 0."""
    parser = Parser(
        prog="lra report claims",
        description="Test which ranks of a published table of accuracies can survive, from the "
        "number of test examples and the spread between seeds.",
        epilog="""\
examples:
  lra report claims arena                        table 1 of the Long Range Arena
  lra report claims mine.csv --seeds 3 --examples 2000 --spread 0.8""",
    )
    parser.add_argument(
        "table", metavar="TABLE",
        help="CSV file with a row for each model and a column for each task, in percent; or the "
        f"name of a published table: {', '.join(published_tables())}",
    )  # fmt: skip
    parser.add_argument(
        "--seeds", type=whole(1, 1000), default=1,
        help="number of seeds behind each number; default: 1",
    )  # fmt: skip
    parser.add_argument(
        "--examples", action="append", default=[], metavar="[COLUMN=]N",
        help="number of test examples, of one column or all; default: those of the Long Range "
        "Arena",
    )  # fmt: skip
    parser.add_argument(
        "--spread", action="append", default=[], metavar="[COLUMN=]POINTS",
        help="standard deviation between seeds in percentage points, of one column or all; "
        f"default: {SPREAD:g}",
    )  # fmt: skip
    choice = parser.parse_args(argv)
    accuracies = _read_table(choice.table)
    names = [*dict.fromkeys(name for cells in accuracies.values() for name in cells)]
    known = {n: EXAMPLES[n.lower()] for n in names if n.lower() in EXAMPLES}
    examples = _by_column("--examples", choice.examples, names, known, 1)
    if without := [name for name in names if name not in examples]:
        raise ConfigError(
            f"{choice.table}: the number of test examples of {', '.join(without)} is unknown; add "
            f"--examples {without[0]}=NUMBER, or --examples NUMBER for all columns"
        )
    spread = _by_column("--spread", choice.spread, names, dict.fromkeys(names, SPREAD), 0)
    claims = Claims(
        name=Path(choice.table).name, accuracies=accuracies, seeds=choice.seeds,
        examples={name: round(examples[name]) for name in names},
        spread={name: spread[name] / 100 for name in names},
    )  # fmt: skip
    columns = ranked_columns(claims)
    if not columns:
        raise ConfigError(
            f"{choice.table}: no column has two accuracies, so there is no rank to test; wanted a "
            "row for each of two models or more"
        )
    print(claims_sentence(columns))
    print_result(claims_table(claims, columns))
    return 0


def _by_column(
    flag: str,
    words: Sequence[str],
    names: Sequence[str],
    default: Mapping[str, float],
    least: float,
) -> dict[str, float]:
    """Return the number of each column, from `[COLUMN=]NUMBER` or the default."""
    numbers = dict(default)
    for word in sorted(words, key=lambda w: "=" in w):  # those of one column last
        name, equals, text = word.rpartition("=")
        if equals and name not in names:
            raise UnknownName(unknown("column", name, names))
        try:
            number = float(text.replace(",", ""))
        except ValueError:
            number = math.nan
        if not least <= number < math.inf:
            raise ConfigError(f"{flag}: got {word!r}; wanted [COLUMN=]NUMBER from {least:g}")
        numbers |= dict.fromkeys([name] if equals else names, number)
    return numbers


def _read_table(word: str) -> dict[str, dict[str, float | None]]:
    """Return accuracies from 0 to 1 by model and column, of a file or a published table."""
    if word in published_tables():
        return published_accuracies(word)
    try:
        lines = [*csv.reader(io.StringIO(read_bytes(word).decode("utf-8-sig")))]
    except FileNotFoundError:
        places = published_tables()
        raise UnknownName(unknown("published table", word, places, listed=False,
                                  way_out="Or name a CSV file.")) from None  # fmt: skip
    except (UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"{word}: wanted a CSV file in UTF-8; {error}") from error
    lines = [[cell.strip() for cell in line] for line in lines if any(map(str.strip, line))]
    if len(lines) < 2 or len(lines[0]) < 2:
        raise ConfigError(
            f"{word}: got {len(lines)} rows; wanted a row of titles (model, then tasks), and a row "
            "for each model"
        )
    (_, *names), *rows = lines
    accuracies: dict[str, dict[str, float | None]] = {}
    for number, (model, *cells) in enumerate(rows, start=2):
        place = f"{word}, row {number}"
        if len(cells) > len(names):
            raise ConfigError(f"{place}: got {len(cells)} numbers after the model; wanted "
                              f"{len(names)}, one for each title")  # fmt: skip
        if model in accuracies or MEAN in names or len({*names}) < len(names):
            raise ConfigError(
                f"{place}: the model {model!r} or a title occurs twice, or a title is {MEAN!r}, "
                "which lra computes; give each a different name"
            )
        full = [*cells, *[""] * (len(names) - len(cells))]
        accuracies[model] = {n: _accuracy(c, place, n) for n, c in zip(names, full, strict=True)}
    return accuracies


def _accuracy(cell: str, place: str, column: str) -> float | None:
    """Return the accuracy in a cell, from 0 to 1; None for an empty or failed one."""
    if cell.lower() in MISSING:
        return None
    match = _ACCURACY.fullmatch(cell)
    try:
        percent = float(match[1]) if match else math.nan
    except ValueError:
        percent = math.nan
    if not 0 <= percent <= 100:
        raise ConfigError(
            f"{place}, {column}: got {cell!r}; wanted an accuracy in percent from 0 to 100, or "
            "nothing for a missing one"
        )
    return percent / 100
