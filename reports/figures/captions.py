"""Captions in files next to a picture, instead of words in it: plain text and LaTeX."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lra.reports.figures.words import readable
from lra.reports.style import Surrounding, current_style
from lra.reports.tables.latex import escape_latex, prose


@dataclass(frozen=True, slots=True, kw_only=True)
class Caption:
    """Words that a style keeps out of a picture."""

    title: str = ""
    subtitle: str = ""
    notes: tuple[str, ...] = ()

    def sentences(self) -> list[str]:
        """Return title, subtitle and notes as sentences."""
        texts = (part.strip() for part in (self.title, self.subtitle, *self.notes))
        parts = [
            part if re.match(r"[^ ]*[_\d]", part) else f"{part[0].upper()}{part[1:]}"  # no name
            for part in texts if part
        ]  # fmt: skip
        return [part if part[-1] in ".!?" else f"{part}." for part in parts]

    def write(self, folder: Path, stem: str) -> list[Path]:
        """Write `stem`.caption.txt, and `stem`.caption.tex to be read within a figure of LaTeX."""
        plain, latex = folder / f"{stem}.caption.txt", folder / f"{stem}.caption.tex"
        plain.write_text("\n".join(self.sentences()) + "\n", encoding="utf-8")
        words = prose(" ".join(self.sentences()))
        short = f"[{{{escape_latex(self.title)}}}]" if self.title else ""
        latex.write_text(f"\\caption{short}{{{words}}}\n\\label{{fig:{stem}}}\n", encoding="ascii")
        return [plain, latex]


def panel_titles(panels: Sequence[tuple[str, str]]) -> tuple[list[str], str]:
    """Return a title for each panel, and what is left to say of all of them below the figure.

    Titles are tasks alone where the style in force keeps words out of the picture.

    Args:
        panels: task of each, and facts about it.
    """
    tasks = [task for task, _ in panels]
    if Surrounding.subtitle not in current_style().style.beside or len(set(tasks)) < len(tasks):
        return readable([f"{task} ({facts})" if facts else task for task, facts in panels]), ""
    facts = "; ".join(f"{task}: {words}" for task, words in panels if words)
    return tasks, facts
