"""Nothing that rows hold is a path."""

import re
from itertools import product

import pytest

from lra.reports.figures.drawing import legend_name
from lra.reports.stems import fit_stem, stem
from lra.reports.tables.latex import escape_latex
from lra.reports.tables.table import csv_text

HOSTILE = ("", ".", "..", "../../x", "/etc/passwd", "a/b", "a\\b", "a-b", "a b", "a+b", "a", "A",
           "x" * 500, "x" * 501, "漢字", "漢", "\ud800", "<b>", '"', "a.b", "~", "\n",
           "a\x00")  # fmt: skip


def test_what_is_safe_stays():
    assert stem("forward", "listops_v2", "H200") == "forward-listops_v2-H200"


@pytest.mark.parametrize("text", HOSTILE)
def test_whatever_the_text_the_name_is_one_of_a_file(text):
    assert re.fullmatch(r"[A-Za-z0-9_-]*(\+[0-9a-f]{12})?", stem(text))
    assert 1 <= len(stem(text)) < 70


def test_different_parts_give_different_names():
    pairs = list(product(HOSTILE, HOSTILE))
    assert len({stem(*pair) for pair in pairs} | {stem(text) for text in HOSTILE}) == len(
        pairs
    ) + len(HOSTILE)


def test_a_name_of_many_parts_is_cut_and_stays_its_own():
    names = [stem(*("x" * 60, "y") * 5, last) for last in ("a", "b")]
    assert min(map(len, names)) > 255
    cut = [fit_stem(name) for name in names]
    assert max(len(f"{name}.legend.caption.txt".encode()) for name in cut) < 255
    assert cut[0] != cut[1] == fit_stem(names[1])
    assert len(fit_stem("\u6f22" * 90).encode()) <= 200
    assert fit_stem("time-forward") == "time-forward"


@pytest.mark.parametrize("text", ["=1+1|x", "@SUM(A1)", "+cmd|' /C calc'!A0", "-a", "\tx", "-1+a"])
def test_a_formula_is_text(text):
    assert csv_text(text) == "'" + text


@pytest.mark.parametrize("value", ["-0.5 [-0.6, -0.4]", "+3 %", "a=b", "–", "", 1.5, None, -2])
def test_what_is_no_formula_stays(value):
    assert csv_text(value) is value


def test_a_cell_of_latex_is_no_option_of_the_line_break_before():
    assert escape_latex("[x] $") == "{}[x] \\$"
    assert escape_latex("*x").startswith("{}*")
    assert escape_latex("0.5 [0.4, 0.6]") == "0.5 [0.4, 0.6]"


def test_a_legend_holds_every_name():
    assert legend_name("linear") == "linear"
    assert not legend_name("_linear").startswith("_")
