"""Style files: every slip is answered by name, and what is shipped can be read."""

import re
import warnings
from pathlib import Path

import pytest
from matplotlib import rcParamsDefault

from lra.composition.configuration import ReportChoice, long_forms
from lra.errors import ConfigError, UnknownName
from lra.reports.style import DEFAULT
from lra.results.style import HELD, read_style, shipped_styles, style_of

WRONG = {
    "widht: 3": "unknown option of a style 'widht': did you mean 'width'?",
    "width: huge": "width: got 'huge'; wanted column (3.25 inches), full (6.75 inches)",
    "aspect: 99": "aspect: got 99.0; wanted a ratio from 0.1 to 5",
    "font: 3": "font: got 3; wanted a mapping",
    "font: {sise: 3}": "font: unknown option 'sise'",
    "font: {title: big}": "font.title: got 'big'; wanted a number",
    "font: {family: [DejaVu Sams]}": "'DejaVu Sams' is not installed. Similar names: DejaVu Sans",
    "models: {a: {colour: red}}": "models.a: unknown option 'colour': did you mean 'color'?",
    "models: {a: {color: rad}}": "models.a.color: got 'rad'; wanted a colour",
    "models: {a: {marker: Q}}": "models.a.marker: got 'Q'; wanted one of",
    "models: {a: {name: x}, b: {name: x}}": "models: a and b have the same name 'x'",
    "beside: [tittle]": "wanted one of title, subtitle, notes, legend: did you mean title?",
    "tables: {width: wide}": "tables.width: got 'wide'; wanted one of page, column, full",
    "tables: {label_prefix: 'a}b'}": "label_prefix: got 'a}b'; wanted ASCII letters",
    "lengths: [1.5]": "lengths: got [1.5] (list); wanted a list of whole numbers",
    "order: [a, a]": "order: a occurs twice in the list",
    "matplotlib: {axes.gird: true}": "'axes.gird': did you mean 'axes.grid'",
    "matplotlib: {axes.grid: maybe}": "matplotlib.axes.grid: got 'maybe'",
    "matplotlib: {savefig.dpi: 1000000}": "got 1000000; wanted numbers from 10 to 1200",
    "matplotlib: {savefig.dpi: .nan}": "savefig.dpi: got nan; wanted numbers from 10 to 1200",
    "{width: 40, matplotlib: {savefig.dpi: 1200}}": "that are 48,000 dots wide; wanted at most",
    "models: {a: {dashes: [1.0e+9, 1]}}": "wanted lengths of dashes and gaps, alternately",
    "matplotlib: {text.usetex: true}": "matplotlib.text.usetex is fixed: names of models",
}


@pytest.mark.parametrize("text", WRONG)
def test_a_slip_is_answered_with_its_key_and_what_is_wanted(text: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_style(str(path))
    assert str(caught.value).startswith(f"{path}: ")
    assert WRONG[text] in str(caught.value)


def test_a_name_that_is_no_style_is_answered_with_those_that_are() -> None:
    with pytest.raises(
        UnknownName, match=r"did you mean 'paper_column'.*You can also give the path"
    ):
        read_style("paper_colum")


def test_the_shipped_styles_can_be_read_and_the_first_is_the_default() -> None:
    styles = {name: read_style(name)[0] for name in shipped_styles()}
    assert styles["default"] == DEFAULT == read_style(None)[0]
    assert styles["paper_column"].inches() == 3.25
    assert styles["paper_full"].inches() == 6.75
    assert styles["slides"].direct_labels


def test_a_file_of_matplotlib_is_taken_and_what_is_not_is_said(tmp_path: Path) -> None:
    path = tmp_path / "journal.mplstyle"
    path.write_text(
        "# a journal\naxes.prop_cycle: cycler('color', ['0C5DA5', '00B945'])\n"
        "figure.figsize: 3.5, 2.6  # inches\nfont.family: serif\n"
        "font.serif: No Such Font, STIXGeneral\nfont.size: 8\nlegend.fontsize: small\n"
        "text.usetex: True\n"
    )
    style, told = read_style(str(path))
    assert style.inches() == 3.5
    assert style.palette == ["#0C5DA5", "#00B945"]
    assert (style.font.family, style.font.labels) == (["STIXGeneral"], 8)
    assert style.font.legend == pytest.approx(8 * 0.833, abs=0.01)
    assert [line.partition(": ")[2].split(" is ")[0] for line in told] == [
        "text.usetex", "the width of figure.figsize",
    ]  # fmt: skip
    path.write_text("axes.gird: True\n")
    with pytest.raises(ConfigError, match=r"line 1: no setting .* did you mean 'axes.grid'"):
        read_style(str(path))


def test_both_forms_of_the_key_say_the_same() -> None:
    assert long_forms(["report=true"]) == ["report=true"]
    assert long_forms(["report=True", "report.style=x"]) == ["report.write=true", "report.style=x"]
    for node, write, style in (
        (True, True, None), (None, None, None),
        ({"write": False, "style": "x"}, False, "x"), ({"style": "x"}, None, "x"),
    ):  # fmt: skip
        assert ReportChoice.of({"report": node}) == (write, style)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -1e6, 1e9, 10**400])
def test_no_setting_of_matplotlib_takes_any_number(number: float, tmp_path: Path) -> None:
    sized = {
        key: value for key, value in rcParamsDefault.items()
        if type(value) in (int, float) or key in ("figure.figsize", "lines.dashed_pattern")
    }  # fmt: skip
    assert len(sized) > 50
    for key, value in sized.items():
        given = [number, number] if isinstance(value, list) else number
        with pytest.raises(ConfigError, match=re.escape(f"here: matplotlib.{key}")):
            style_of({"matplotlib": {key: given}}, "here")


def test_every_default_of_matplotlib_is_taken() -> None:
    own = {key: value for key, value in rcParamsDefault.items() if key not in HELD}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        style_of({"matplotlib": own}, "here")


def test_a_file_of_matplotlib_with_a_size_beyond_reason_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "large.mplstyle"
    for text, told in (
        ("savefig.dpi: 1000000", "line 1.savefig.dpi: got '1000000'; wanted numbers from 10"),
        ("figure.figsize: 30, 2\nsavefig.dpi: 1200", "that are 36,000 dots wide"),
        ("lines.linewidth: -1", "lines.linewidth: got '-1'; wanted numbers from 0"),
        ("\udcff", "save the file as UTF-8"),
    ):
        path.write_bytes(text.encode(errors="surrogateescape"))
        with pytest.raises(ConfigError, match=re.escape(told)):
            read_style(str(path))
