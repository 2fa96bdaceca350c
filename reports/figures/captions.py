"""Write captions of figures to files, as plain text and LaTeX, instead of into the picture."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lra.reports.figures.words import readable
from lra.reports.style import Surrounding, current_style
from lra.reports.tables.latex import escape_latex, prose


@dataclass(frozen=True, slots=True, kw_only=True)
class Caption:
    """Words that a style removes from a picture."""

    title: str = ""
    subtitle: str = ""
    notes: tuple[str, ...] = ()

    def sentences(self) -> list[str]:
        """Return title, subtitle and notes as sentences."""
        texts = (part.strip() for part in (self.title, self.subtitle, *self.notes))
        parts = [
            # a first word with an underscore or a digit is a name, which stays as it is
            part if re.match(r"[^ ]*[_\d]", part) else f"{part[0].upper()}{part[1:]}"
            for part in texts if part
        ]  # fmt: skip
        return [part if part[-1] in ".!?" else f"{part}." for part in parts]

    def write(self, folder: Path, stem: str) -> list[Path]:
        """Write `stem`.caption.txt, and `stem`.caption.tex for a LaTeX figure; return the paths."""
        plain, latex = folder / f"{stem}.caption.txt", folder / f"{stem}.caption.tex"
        plain.write_text("\n".join(self.sentences()) + "\n", encoding="utf-8")
        words = prose(" ".join(self.sentences()))
        # LaTeX prints the short caption in a list of figures.
        short = f"[{{{escape_latex(self.title)}}}]" if self.title else ""
        latex.write_text(f"\\caption{short}{{{words}}}\n\\label{{fig:{stem}}}\n", encoding="ascii")
        return [plain, latex]


def panel_titles(panels: Sequence[tuple[str, str]]) -> tuple[list[str], str]:
    """Return a title for each panel, and a note for below the figure.

    A title has the task and its facts. If the style in force removes subtitles from pictures, it
    has only the task, and the note has the facts.

    Args:
        panels: the task of each panel, and facts about it.
    """
    tasks = [task for task, _ in panels]
    if Surrounding.subtitle not in current_style().style.beside or len(set(tasks)) < len(tasks):
        return readable([f"{task} ({facts})" if facts else task for task, facts in panels]), ""
    facts = "; ".join(f"{task}: {words}" for task, words in panels if words)
    return tasks, facts
