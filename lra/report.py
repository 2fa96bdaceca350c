"""`lra report`: tables and figures from stored results. Needs no torch and no network."""

import argparse
import json
from pathlib import Path
from typing import Any

import pandas as pd

from lra.listing import roots
from lra.suggest import UnknownName, unknown
from lra.variants import tell_apart
from lra.yaml_text import load


def stored(root: Path, sweep: str | None) -> tuple[pd.DataFrame, dict[str, dict[str, Any]]]:
    """Return the rows of a sweep (None: of the whole store), and each cell's cell.json.

    Models of one name and several configurations are told apart by name.

    Raises:
        FileNotFoundError: there is no store, or it holds no rows.
        UnknownName: there is no such sweep; the message lists those that exist.
    """
    from runners.store import Store, read_rows

    store = Store(root)
    if sweep is not None and sweep not in store.sweeps():
        raise UnknownName(unknown("sweep", sweep, store.sweeps()))
    rows = read_rows(root, sweep)
    if rows.empty:
        raise FileNotFoundError(f"no results under {root}: `lra run` makes some")
    cells = {key: store.describe(key) for key in rows["cell"].unique()}
    return tell_apart(rows, {key: cell["identity"] for key, cell in cells.items()}), cells


def place(root: Path, sweep: str | None) -> tuple[Path, str]:
    """Return the folder and the heading of the report on a sweep, or on the whole store."""
    return root / "reports" / (sweep or "all"), f"Results of {sweep or 'all sweeps'}"


def kinds() -> dict[str, list[str]]:
    """Return the families of every kind, as the YAML files name it, in the order of the kinds."""
    found: dict[str, list[str]] = {}
    for file in sorted(roots()[-1].glob("model/*.yaml")):
        kind = (load(file).get("about") or {}).get("kind")
        if kind:
            found.setdefault(str(kind), []).append(file.stem)
    return dict(sorted(found.items()))


def publish(root: Path, sweep: str, target: Path) -> list[Path]:
    """Write a sweep's rows, and what repeats them, as two files to keep in a repository.

    `TARGET.jsonl` holds the rows, `TARGET.json` the identity and the command-line words of each
    cell, and the versions. The target may be named with either ending, or without.
    """
    from runners.store import Store, read_rows

    store, rows = Store(root), read_rows(root, sweep)
    about = {}
    for key in rows["cell"].unique():
        cell = store.describe(key)
        about[key] = {k: cell[k] for k in ("identity", "overrides", "environment") if k in cell}
    if target.suffix in {".jsonl", ".json"}:
        target = target.with_suffix("")
    target.parent.mkdir(parents=True, exist_ok=True)
    lines, description = (target.with_name(target.name + end) for end in (".jsonl", ".json"))
    rows.to_json(lines, orient="records", lines=True, date_format="iso", double_precision=15)
    description.write_text(json.dumps(about, indent=1, sort_keys=True) + "\n")
    return [lines, description]


def published(path: Path) -> pd.DataFrame:
    """Read rows that `publish` wrote. ValueError for a line that is no row."""
    from runners.store import table_of

    rows = []
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        try:
            row = json.loads(line)
        except ValueError as error:
            raise ValueError(
                f"{path}, line {number}: no JSON ({error}); get the file anew"
            ) from error
        rows.append(row)
    return table_of(rows)


def main(argv: list[str]) -> int:
    """Parse the words after `lra report` and write the report."""
    parser = argparse.ArgumentParser(prog="lra report", description=__doc__)
    parser.add_argument("--results", type=Path, default=Path("results"), help="the store")
    parser.add_argument("--sweep", help="name of a sweep; default: every stored result")
    parser.add_argument("--out", type=Path, help="folder; default: RESULTS/reports/SWEEP")
    parser.add_argument("--title", help="heading of the report")
    parser.add_argument("--rows", type=Path, help="a published file of rows, instead of a store")
    parser.add_argument(
        "--publish", type=Path, help="only write the sweep's rows, and its cells beside them"
    )
    choice = parser.parse_args(argv)
    if choice.publish:
        if not choice.sweep:
            parser.error("--publish needs --sweep")
        paths = publish(choice.results, choice.sweep, choice.publish)
    else:
        from reports.report import write_report

        if choice.rows:
            rows, name = published(choice.rows), choice.rows.stem
            folder = Path("reports-of-" + name)
        else:
            rows, _ = stored(choice.results, choice.sweep)
            folder, name = place(choice.results, choice.sweep)
        paths = write_report(rows, choice.out or folder, title=choice.title or name, groups=kinds())
    for path in paths:
        print(path)
    return 0
