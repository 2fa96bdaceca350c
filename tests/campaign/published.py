"""The figures of a campaign as JSON, and as the table of a page."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.campaign.part import Found

KEPT = Path(__file__).resolve().parents[2] / "docs" / "figures" / "campaign.json"
"""What the page shows."""
BEGIN, END = "<!-- figures of the campaign -->", "<!-- end of the figures -->"
HEAD = ("part", "faults", "checks", "wrong", "minutes")


def keep(found: Sequence[Found], out: Path) -> Path:
    """Write what was found; return the file."""
    file = out / "campaign.json"
    file.write_text(as_text([each.as_json() for each in found]))
    return file


def as_text(parts: Sequence[dict[str, Any]]) -> str:
    """Return the JSON of a campaign."""
    return json.dumps({"parts": list(parts)}, indent=1, ensure_ascii=False) + "\n"


def table(found: Sequence[Found | dict[str, Any]]) -> str:
    """Return a Markdown table with a line for each part."""
    parts = [each.as_json() if isinstance(each, Found) else each for each in found]
    head, *lines = (f"| {' | '.join(line)} |" for line in (HEAD, *map(_line, parts)))
    return "\n".join((head, "|---" * len(HEAD) + "|", *lines))


def _line(part: dict[str, Any]) -> tuple[str, ...]:
    if part["left_out"]:
        return (f"`{part['part']}`", f"left out: {part['left_out']}", "", "", "")
    return (
        f"`{part['part']}`",
        f"{sum(part['faults'].values()):,}",
        f"{part['checks']:,}",
        str(len(part["wrong"])),
        f"{part['seconds'] / 60:.1f}",
    )


def publish(folder: Path, page: Path) -> int:
    """Put the figures of a campaign into a page, and keep them beside it; return how many parts."""
    parts = json.loads((folder / "campaign.json").read_text())["parts"]
    text = page.read_text(encoding="utf-8")
    page.write_text(placed(text, parts), encoding="utf-8")
    KEPT.write_text(as_text(parts), encoding="utf-8")
    return len(parts)


def placed(text: str, parts: Sequence[dict[str, Any]]) -> str:
    """Return the text of a page with the table of these parts."""
    pattern = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", re.DOTALL)
    if not pattern.search(text):
        raise ValueError(f"the page has no place for the figures: wanted {BEGIN} and {END}")
    return pattern.sub(lambda _: f"{BEGIN}\n\n{table(parts)}\n\n{END}", text)
