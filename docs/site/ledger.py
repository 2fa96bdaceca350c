"""Writes docs/ledger.md from `reports/ledger/claims.yaml` and the published rows: `make pages`."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import Any

from lra.composition.yaml_text import load
from lra.conf.plain_files import parse_json
from lra.reports.ledger.claims import MarginCheck, PaperClaim, Relation, Setting, read_claims
from lra.reports.ledger.ledger import ClaimVerdict, Decision, Figure, Row, decide
from lra.results.rows import published_cells, published_rows

ROOT = Path(__file__).resolve().parents[2]
CLAIMS = ROOT / "reports/ledger/claims.yaml"
PAGE = ROOT / "docs/ledger.md"
HEAD = (
    "claim",
    "published",
    "setting, margins written",
    "margin",
    "ours",
    "verdict",
    "rows",
    "cost",
)
SIGNS = {Relation.above: ">", Relation.below: "<", Relation.within: "within ±"}
PART = re.compile(r"(<!-- table: ledger_(\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


@cache
def rows_of(name: str) -> tuple[Row, ...] | None:
    """Return the rows of a published file with the options of their runs; None without a file.

    A benchmark script writes lines of numbers, not rows; each number or list becomes a row.
    """
    path = ROOT / "reports/published" / f"{name}.jsonl"
    if not path.is_file():
        return None
    lines = path.read_text(encoding="utf-8").splitlines()
    if "metric" not in (first := parse_json(lines[0].encode())):
        assert isinstance(first, dict)
        return tuple(row for line in lines for row in _script_rows(parse_json(line.encode())))
    cells = published_cells(path)
    return tuple(
        {**row, "options": cells.get(str(row["cell"]), {}).get("described", {})}
        for row in published_rows(path).to_dict("records")
    )


def _script_rows(line: Any) -> Iterator[Row]:
    """Yield a row for each number and each list of numbers in a line of a benchmark script."""
    for metric, found in line.items():
        samples = found if isinstance(found, list) else [found]
        if all(isinstance(each, float | int) for each in samples):
            yield {
                "metric": metric, "value": median(samples), "samples": samples, "labels": line,
                "step": None, "status": "ok", "seed": 0, "cell": "",
            }  # fmt: skip


def decisions() -> list[Decision]:
    """Return the verdicts on all claims, in the order of `claims.yaml`."""
    return [decide(claim, rows_of) for claim in read_claims(load(CLAIMS))]


def number(value: float) -> str:
    """Return a number with three significant digits."""
    return (f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}").replace("-", "−")


def _named(where: Any, without: Any = ()) -> str:
    """Return the conditions on rows in words, without those that `without` shares."""
    parts = [
        value if name in ("model", "task") else f"{name.rpartition('.')[2]}={value or 'none'}"
        for name, value in where.items()
        if name not in without or without[name] != value
    ]
    return " ".join(parts).replace("_", "\\_")


def margin(check: MarginCheck) -> str:
    """Return a check in words, for example `accuracy: depth=2 - depth=1 > 0.5`."""
    left, right = check.left, check.right
    sign = SIGNS[check.relation] + (" " if check.relation is not Relation.within else "")
    if isinstance(right, dict):
        shared = {key: value for key, value in left.items() if right.get(key) == value}
        sides = f"{_named(left, shared)} {'/' if check.ratio else '−'} {_named(right, shared)}"
        sides += f" ({_named(shared)})" if shared else ""
    else:
        sides = _named(left)
        sides += f" {'/' if check.ratio else '−'} {number(right)}" if right is not None else ""
    ways = "".join(f", {how} {key.rpartition('.')[2]}" for key, how in check.over.items())
    return f"{check.metric}{ways}: {sides} {sign}{number(check.margin)}".replace(
        "_", "\\_"
    ).replace("\\\\", "\\")


def ours(figure: Figure) -> str:
    """Return our number with its interval and seeds."""
    said = number(figure.value)
    if figure.bounds and figure.of:
        said += f" [{number(figure.bounds[0])}, {number(figure.bounds[1])}]"
    if figure.right is not None:
        said = f"{number(figure.left)} against {number(figure.right)}: {said}"
    return f"{said}; {figure.of}" if figure.of else said


def line(decision: Decision) -> str:
    """Return the line of a claim in its table."""
    claim = decision.claim
    trainings = f"{decision.trainings} training{'' if decision.trainings == 1 else 's'}"
    cost = f"{trainings}, {number(decision.seconds / 60)} min"
    attempted = bool(decision.figures)
    verdict = f"**{decision.verdict}**"
    verdict += f". {decision.reason}" if decision.reason else ""
    cells = [
        f"{claim.id}: {claim.claim} ({claim.source})",
        claim.published,
        f"{claim.setting}{_deviations(decision)}; {claim.written}".removesuffix("; "),
        "<br>".join(map(margin, claim.checks)),
        "<br>".join(map(ours, decision.figures)),
        verdict,
        ", ".join(f"[{name}](../reports/published/{name}.jsonl)" for name in _stored(claim)),
        cost if decision.trainings else "no training" if attempted else "",
    ]
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') or '–' for cell in cells)} |"


def _deviations(decision: Decision) -> str:
    """Return in words how many settings of a published scale differ from the source."""
    count = len(decision.deviations) if decision.claim.setting is Setting.same else 0
    return f", {count} deviation{'' if count == 1 else 's'}" if count else ""


def _stored(claim: PaperClaim) -> list[str]:
    """Return the files of a claim that exist."""
    return [name for name in claim.rows if rows_of(name) is not None]


def counts(found: Sequence[Decision]) -> str:
    """Return the sentences that count the verdicts."""
    number_of = Counter(decision.verdict for decision in found)
    attempted = sum(bool(decision.figures) for decision in found)
    listed = "; ".join(f"{number_of[each]} {each}" for each in ClaimVerdict if number_of[each])
    return f"Of {len(found)} claims, {attempted} are attempted with stored rows. {listed}.\n"


def claims(found: Sequence[Decision]) -> str:
    """Return a table of claims and a list of commands for each theme."""
    parts = []
    for theme, group in groupby(found, key=lambda decision: decision.claim.theme):
        of_theme = list(group)
        commands: dict[str, list[str]] = {}
        for claim in (decision.claim for decision in of_theme):
            if claim.command:
                commands.setdefault(claim.command, []).append(claim.id)
        table = [f"| {' | '.join(HEAD)} |", "|" + "---|" * len(HEAD), *map(line, of_theme)]
        said = [
            f"- {', '.join(ids)}: {', then '.join(f'`{each}`' for each in command.splitlines())}"
            for command, ids in commands.items()
        ]
        parts += [f"## {theme}", "\n".join(table), "Commands:", "\n".join(said)]
    return "\n\n".join(["", *parts, ""])


def written(text: str, found: Sequence[Decision]) -> str:
    """Return the page with its generated parts as the rows say."""
    parts = {"counts": counts, "claims": claims}
    return PART.sub(lambda part: f"{part[1]}{parts[part[2]](found)}{part[3]}", text)


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text("utf-8"), decisions()), encoding="utf-8")
    print(PAGE)
