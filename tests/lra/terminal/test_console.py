"""What is printed on terminals of every kind, and that a pipe gets plain text."""

import io
import re

import pytest

from lra.reports.tables.table import Column, Entry, Table, TableRow, to_markdown
from lra.terminal.console import busy, complain, print_table
from lra.terminal.result_table import print_result
from lra.terminal.screen import table

CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
ROWS = [
    ("sparse_transformer", "strided attention of [two] kinds, one of them summaries", "Child 2019"),
    ("fnet", "a Fourier transform – and :smile: nothing else", "Lee-Thorp 2021"),
]
RESULT = Table(
    title="Accuracy on the test split",
    caption="Percent, mean over seeds.",
    stub="model",
    columns=(Column(title="version 1", group="listops"), Column(title="words", words=True)),
    rows=(
        TableRow(title="linear", entries=(Entry(text="40.8 ± 2", rank=1), Entry(text="a"))),
        TableRow(
            title="majority",
            section="baselines",
            entries=(Entry(text="OOM", status="failed", notes=("no room",)), Entry(text="b")),
        ),
    ),
)  # fmt: skip


class Stream(io.TextIOWrapper):
    """A stream that says it is a terminal."""

    def __init__(self, encoding: str = "utf-8", terminal: bool = True) -> None:
        super().__init__(io.BytesIO(), encoding=encoding, write_through=True)
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal

    def written(self) -> str:
        return self.buffer.getvalue().decode(self.encoding)  # type: ignore[attr-defined]


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch):
    """Make stdout and stderr a stream, and return it."""

    def made(columns: int = 100, term: str = "xterm-256color", **stream: object) -> Stream:
        for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setenv("TERM", term)
        found = Stream(**stream)  # type: ignore[arg-type]
        monkeypatch.setattr("sys.stdout", found)
        monkeypatch.setattr("sys.stderr", found)
        return found

    return made


def words(text: str) -> set[str]:
    return {*CODES.sub("", text).split()}


@pytest.mark.parametrize("stream", [{"terminal": False}, {"term": "dumb"}])
def test_a_pipe_and_a_terminal_of_text_alone_get_plain_text(on, stream) -> None:
    out = on(**stream)
    print_table(ROWS)
    print_result(RESULT)
    complain("optim.steps: got 'x'")
    with busy("drawing"):
        pass
    wanted = f"{table(ROWS)}\n\n{to_markdown(RESULT).rstrip()}\nlra: optim.steps: got 'x'\n"
    assert out.written() == wanted


@pytest.mark.parametrize("columns", [24, 40, 70, 120])
def test_a_terminal_gets_lines_that_fit_and_every_word(on, columns: int) -> None:
    out = on(columns)
    print_table(ROWS)
    shown = out.written()
    assert max(len(line) for line in CODES.sub("", shown).splitlines()) <= columns
    assert words(shown) == {word for row in ROWS for text in row for word in text.split()}
    assert "\x1b[1m" in shown


def test_a_result_on_a_terminal(on) -> None:
    out = on()
    print_result(RESULT)
    shown = out.written()
    assert "─" in shown
    assert re.search(r"\x1b\[1m *40\.8\x1b\[0m", shown)
    plain = CODES.sub("", shown)
    assert "OOM [1]" in plain
    assert plain.rstrip().endswith("[1] no room")
    assert {"listops", "baselines", "majority", "Percent,"} <= words(shown)
    narrow = on(12)
    print_result(RESULT)
    assert narrow.written() == f"\n{to_markdown(RESULT).rstrip()}\n"


def test_no_colour_where_none_is_wanted(on, monkeypatch: pytest.MonkeyPatch) -> None:
    out = on()
    monkeypatch.setenv("NO_COLOR", "1")
    complain("unknown key 'optim.step'")
    print_result(RESULT)
    assert not re.search(r"\x1b\[[0-9;]*(3[0-7]|9[0-7])[;m]", out.written())
    assert "'optim.step'" in out.written()


def test_a_terminal_that_cannot_show_boxes(on) -> None:
    out = on(encoding="ascii")
    print_table(ROWS)
    print_result(RESULT)
    complain("a – b")
    shown = out.written()
    assert shown.isascii()
    assert "40.8 \\xb1 2" in CODES.sub("", shown)
    assert "a \\u2013 b" in CODES.sub("", shown)


def test_an_error_stands_out_and_stays_whole(on) -> None:
    message = "unknown key 'optim.step': did you mean optim.steps=5? " + "word " * 60
    out = on(40)
    complain(message)
    shown = out.written()
    assert CODES.sub("", shown) == f"lra: {message}\n"
    assert "\x1b[1;31mlra: \x1b[0m" in shown
    assert "\x1b[36moptim.steps=5" in shown
