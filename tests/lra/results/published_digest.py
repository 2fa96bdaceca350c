"""Makes `published_rows.json`, the digest of published rows that an installed package has."""

import json
from contextlib import suppress
from pathlib import Path

from lra.composition.lookup import named_task
from lra.errors import UnknownName
from lra.reports.rows import prepare
from lra.results.evidence import DIGEST, SHELF, Provenance, evidence_of
from lra.results.rows import published_cells, published_with_names

PUBLISHED = Path(__file__).parents[3] / SHELF


def digest_of(folder: Path) -> str:
    """Return what the files of rows in a folder tell: a line for each origin."""
    found: dict[Provenance, dict[str, dict[int, float]]] = {}
    for file in sorted(folder.glob("*.jsonl")):
        content = file.read_bytes()
        if b'"time_ratio"' not in content and b'"split":"test"' not in content:
            continue
        frame, tasks = prepare(published_with_names(file)), {}
        for name in sorted(frame["task"].unique()):
            with suppress(UnknownName):
                tasks[name] = named_task(name)
        known = evidence_of(f"{SHELF}{file.name}", frame, tasks, published_cells(file))
        for origin, family, length, value in known:
            families = found.setdefault(origin, {})
            families.setdefault(family, {})[length] = float(f"{value:.6g}")
    lines = (json.dumps(item) for item in sorted(found.items()))
    return "[\n" + ",\n".join(lines) + "\n]\n"


if __name__ == "__main__":
    DIGEST.write_text(digest_of(PUBLISHED), encoding="utf-8")
