"""LaTeX of any text: plain ASCII without commands of its own; compiled where there is a TeX."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lra.reports.tables.latex import breakable, escape_latex, prose
from lra.reports.tables.latex_tables import to_latex
from lra.reports.tables.table import Column, Entry, Table, TableRow

# What may stand in a cell: every command here exists in LaTeX itself, in its oldest encoding.
_KNOWN = re.compile(
    r"\\(?:textbackslash|dag|textasciitilde|textasciicircum|textless|textgreater|textbar|ldots|ss|ae|AE"
    r"|o|O|oe|OE|l|L|i|S|P|copyright|pounds|allowbreak)\{\}"
    r"|\\[&%$#_{}]"
    r"|\\`\{\}"
    r"|\\[`'^~=\".uvHrdcb]\{(?:[A-Za-z]|\\[ij])\}"
    r"|\$(?:[-^_]|\{?\\[A-Za-z]+\{?|[A-Za-z0-9]|\}|\\circ)+\$"
    r"|\{\}"
    r"|~"
    r"|[A-Za-z0-9 !\"'()*+,\-./:;<=>?@\[\]|`]"
)
ENGINES = [name for name in ("pdflatex", "lualatex") if shutil.which(name)]


def leftover(text: str) -> str:
    return _KNOWN.sub("", text)


def test_every_character_of_unicode_becomes_plain_latex() -> None:
    # Behind two planes of 65,536 come ideographs and what is private, all treated alike.
    for code in (*range(0x20000), *range(0x20000, sys.maxunicode + 1, 251)):
        letter = chr(code)
        found = escape_latex(letter)
        assert found.isascii(), hex(code)
        assert leftover(found) == "", (hex(code), found)
        if found.strip() and letter not in " ":
            assert found not in {"&", "%", "$", "#", "_", "{", "}", "~", "^", "\\"}, hex(code)


def test_signs_do_not_run_together() -> None:
    for pair in ("--", "---", ",,", "?`", "!`", "''", "``", "-–"):
        found = escape_latex(f"a{pair}b")
        assert "{}" in found, pair
    assert escape_latex("<<>>") == r"\textless{}\textless{}\textgreater{}\textgreater{}"
    assert escape_latex("ᵉ") == r"$^{\mathrm{e}}$"


@pytest.mark.parametrize("text", ["x" * 300, r"a_b=c,d/" * 40, "\\{}$&#^~" * 30, "ᵉäß中" * 30])
def test_long_words_may_break_and_lose_nothing(text: str) -> None:
    escaped = escape_latex(text)
    assert breakable(escaped).replace(r"\allowbreak{}", "") == escaped
    longest = max(map(len, breakable(escaped).split(r"\allowbreak{}")))
    assert longest <= 12 * 18


def test_captions_and_notes_name_no_option() -> None:
    note = "8,192 tokens were too many (skipped: the limit is 3 s (runner.step_limit_s))"
    assert prose(note) == "8,192 tokens were too many (skipped: the limit is 3 s)"
    assert prose("with (linear) and f(x.y)") == "with (linear) and f(x.y)"


def document(*tables: str) -> str:
    return "\n".join(
        [r"\documentclass{article}", r"\usepackage{array,booktabs}", r"\begin{document}",
         "\\clearpage\n".join(tables), r"\end{document}", ""]
    )  # fmt: skip


def compiled(engine: str, text: str, folder: Path) -> str:
    """Return the log of a compilation that worked."""
    (folder / "t.tex").write_text(text, encoding="ascii")
    done = subprocess.run(
        [engine, "-interaction=nonstopmode", "-halt-on-error", "t.tex"],
        cwd=folder, capture_output=True, text=True, errors="replace", check=False,
    )  # fmt: skip
    log = (folder / "t.log").read_text(errors="replace")
    assert done.returncode == 0, done.stdout[-2000:]
    assert (folder / "t.pdf").stat().st_size > 1000
    return log


def overfull(log: str) -> list[str]:
    """Boxes that stand out of the page by more than a letter."""
    return [m[0] for m in re.finditer(r"Overfull \\hbox \((\d+)\.[^\n]*", log) if int(m[1]) > 6]


@pytest.mark.slow
@pytest.mark.skipif(not ENGINES, reason="no pdflatex or lualatex on this machine")
@pytest.mark.parametrize("engine", ENGINES)
def test_every_table_compiles_and_fits_its_page(engine: str, tmp_path: Path) -> None:
    signs = "".join(map(chr, [*range(32, 0x250), *range(0x370, 0x400), *range(0x1D2C, 0x1D6B)]))
    words = ["linear", "performer (" + "mixer.features=64, " * 6 + ")", "中" * 40, "x" * 120,
             signs[:60], "a_b#c%d&{f}~^i\\j$k", "\u202ertl \u05d0\u05d1", "😀 e\u0301"]  # fmt: skip
    reason = "needs 5 GiB; " * 60
    many = tuple(Column(title=f"{'generated, v 1, ' * (i % 3)}{2**i:,}", group=f"t {i // 3}"
                        * (1 + i % 2)) for i in range(14))  # fmt: skip
    entries = tuple(
        Entry(text=f"{i}.0 [{i}.1, {i}.2; 3 seeds]", notes=(reason,) if i % 2 else ())
        for i in range(14)
    )
    tables = [
        Table(title="Signs", caption=signs[:300], stub="model", columns=many[:1],
              rows=tuple(TableRow(title=signs[n : n + 30], entries=entries[:1])
                         for n in range(0, len(signs), 30))),
        Table(title="Wide", caption="c" * 200, stub="model", columns=many,
              rows=tuple(TableRow(title=w, entries=entries, section=reason[:90]) for w in words)),
        Table(title="Long", caption="", stub="model", columns=many[:2],
              rows=tuple(TableRow(title=f"m{i}", entries=entries[:2]) for i in range(130))),
        Table(title="One", caption="", stub="model", columns=many[:1],
              rows=(TableRow(title="m", entries=(Entry(text="z" * 150, notes=("y" * 900,)),)),)),
    ]  # fmt: skip
    log = compiled(engine, document(*map(to_latex, tables)), tmp_path)
    assert overfull(log) == []
