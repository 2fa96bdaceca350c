"""Writes the index of published rows, reports/published/README.md: `make pages`."""

import json
import re
from collections import defaultdict
from pathlib import Path

PUBLISHED = Path(__file__).resolve().parents[2] / "reports/published"
NAME = re.compile(r"(?P<sweep>.+)-(?P<machine>[^-]+)-(?P<day>\d{4}-\d{2}-\d{2})\.jsonl")
HEAD = """# Published rows

Each file has the measured numbers of one sweep or benchmark, named SWEEP-MACHINE-DAY. The JSON file
of the same name, if there is one, has the settings of every run. `lra report --rows FILE` makes
tables and figures of a file, and `lra report trend linear --rows reports/published` shows how the
speed of a family changed. `make pages` writes this index.
"""


def some(names: set[str], most: int = 3) -> str:
    """Return a few names, or how many there are."""
    return ", ".join(sorted(names)) if len(names) <= most else f"{len(names)} different"


def index() -> str:
    """Return the index of all files, by machine and day."""
    machines: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for file in PUBLISHED.glob("*.jsonl"):
        named = NAME.fullmatch(file.name)
        if named is None:
            raise SystemExit(f"{file.name}: a name has the form SWEEP-MACHINE-2026-01-31.jsonl")
        rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        told = {
            key: {str(r[key]) for r in rows if r.get(key)} for key in ("runner", "task", "model")
        }
        entries = [f"[{named['sweep']}]({file.name})", named["day"], f"{len(rows):,}"]
        entries += [some(told[key]) if told[key] else "–" for key in ("runner", "task", "model")]
        machines[named["machine"]].append((named["day"], f"| {' | '.join(entries)} |"))
    parts = [HEAD]
    for machine, lines in sorted(machines.items()):
        parts.append(f"\n## {machine}\n\n| file | day | rows | runners | tasks | models |\n")
        parts.append("| --- | --- | ---: | --- | --- | --- |\n")
        parts += [f"{line}\n" for _, line in sorted(lines)]
    return "".join(parts)


if __name__ == "__main__":
    (PUBLISHED / "README.md").write_text(index(), encoding="utf-8")
