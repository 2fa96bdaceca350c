import csv
import io
from html.parser import HTMLParser

import pytest

from lra.reports.page.document import to_html
from lra.reports.statistics.intervals import Interval, Uncertainty
from lra.reports.tables.latex import escape_latex
from lra.reports.tables.latex_tables import to_latex
from lra.reports.tables.table import (
    Column,
    Entry,
    Table,
    TableRow,
    escape_markdown,
    to_csv,
    to_markdown,
)

INTERVAL = Interval(0.1, 1 / 3, Uncertainty.seeds)
TABLE = Table(
    title="Speed & size",
    caption="Of 100 % [by hand].",
    stub="model",
    columns=(
        Column(title="256", group="time_s"),
        Column(title="1,024", key="1024", group="time_s"),
        Column(title="256", group="bytes"),
    ),
    rows=(
        TableRow(
            title="a|b",
            entries=(
                Entry(text="0.2", value=0.2, interval=INTERVAL, facts={"seeds": 3}),
                Entry(text="OOM", status="out_of_memory", notes=("needs 5 GiB", "limit 4_GiB")),
                Entry(text="1", value=1.0),
            ),
        ),
        TableRow(
            title="linear_b",
            section="baselines",
            entries=(
                Entry(text="–", status="missing", notes=("not run",)),
                Entry(text="OOM", status="out_of_memory", notes=("needs 5 GiB",)),
                Entry(text="2", value=2.0),
            ),
        ),
    ),
)


def test_markdown() -> None:
    assert to_markdown(TABLE) == (
        "**Speed & size.** Of 100 % [by hand].\n"
        "\n"
        "| model | time_s · 256 | time_s · 1,024 | bytes · 256 |\n"
        "| --- | ---: | ---: | ---: |\n"
        "| a\\|b | 0.2 | OOM¹˒² | 1 |\n"
        "\n"
        "*baselines*\n"
        "\n"
        "| model | time_s · 256 | time_s · 1,024 | bytes · 256 |\n"
        "| --- | ---: | ---: | ---: |\n"
        "| linear_b | –³ | OOM¹ | 2 |\n"
        "\n"
        "¹ needs 5 GiB  \n"
        "² limit 4_GiB  \n"
        "³ not run\n"
    )


def test_latex() -> None:
    assert to_latex(TABLE) == (
        "\\begin{table}\n"
        "\\centering\n"
        "\\caption[{Speed \\& size}]{Speed \\& size. Of 100 \\% [by hand].}\n"
        "\\small\n"
        "\\begin{tabular}{@{}lrrr@{}}\n"
        "\\toprule\n"
        " & \\multicolumn{2}{c}{time\\_s} & \\multicolumn{1}{c}{bytes} \\\\\n"
        "\\cmidrule(lr){2-3} \\cmidrule(lr){4-4}\n"
        "model & 256 & 1,024 & 256 \\\\\n"
        "\\midrule\n"
        "a\\textbar{}b & 0.2 & OOM\\textsuperscript{1,2} & 1 \\\\\n"
        "\\midrule\n"
        "\\multicolumn{4}{@{}l}{\\emph{baselines}} \\\\\n"
        "linear\\_b & --\\textsuperscript{3} & OOM\\textsuperscript{1} & 2 \\\\\n"
        "\\bottomrule\n"
        "\\end{tabular}\n"
        "\n"
        "\\smallskip\n"
        "\\begin{minipage}{\\linewidth}\\footnotesize\\raggedright\n"
        "\\textsuperscript{1} needs 5 GiB\\par\n"
        "\\textsuperscript{2} limit 4\\_GiB\\par\n"
        "\\textsuperscript{3} not run\\par\n"
        "\\end{minipage}\n"
        "\\end{table}\n"
    )


def test_csv_holds_every_digit_and_every_reason() -> None:
    lines = list(csv.DictReader(io.StringIO(to_csv(TABLE))))
    assert len(lines) == 6
    first, second = lines[0], lines[1]
    assert (first["model"], first["group"], first["column"]) == ("a|b", "time_s", "256")
    assert float(first["high"]) == 1 / 3
    assert (first["interval_source"], first["level"], first["seeds"]) == ("seeds", "0.95", "3")
    assert (second["column"], second["value"], second["status"]) == ("1024", "", "out_of_memory")
    assert second["notes"] == "needs 5 GiB / limit 4_GiB"
    assert lines[3]["section"] == "baselines"


def test_html_is_balanced_and_escaped() -> None:
    class Balance(HTMLParser):
        def __init__(self) -> None:
            super().__init__()
            self.open: list[str] = []

        def handle_starttag(self, tag: str, attrs: object) -> None:
            self.open.append(tag)

        def handle_endtag(self, tag: str) -> None:
            assert self.open.pop() == tag

    table = Table(
        title="<script>", caption="a", stub="m", columns=(Column(title="x"),),
        rows=(TableRow(title="<b>", entries=(Entry(text="1 & 2", notes=("<i>",)),)),),
    )  # fmt: skip
    for text in (to_html(TABLE), to_html(table)):
        parser = Balance()
        parser.feed(text)
        assert parser.open == []
    assert "<script>" not in to_html(table)
    assert '1<span class="rest"> &amp; 2</span><sup>1</sup>' in to_html(table)
    assert '<th data-dt-order="disable" colspan="2">time_s</th>' in to_html(TABLE)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("a_b", "a_b"),
        ("_a_", "\\_a\\_"),
        ("a|b*c", "a\\|b\\*c"),
        ("[0.1, 0.2]", "[0.1, 0.2]"),
        ("[a](http://x)", "\\[a](http://x)"),
        ("[^1]", "\\[^1]"),
        ("<b>`x`\\", "\\<b\\>\\`x\\`\\\\"),
        ("two\nlines", "two lines"),
        ("# head", "\\# head"),
    ],
)
def test_markdown_escapes(text: str, wanted: str) -> None:
    assert escape_markdown(text) == wanted


def test_latex_escapes() -> None:
    text = "\\ & % $ # _ { } ~ ^ < > × ± ≤ ≈ ∞ –"
    assert escape_latex(text) == (
        r"\textbackslash{} \& \% \$ \# \_ \{ \} \textasciitilde{} \textasciicircum{} "
        r"\textless{} \textgreater{} $\times$ $\pm$ $\leq$ $\approx$ $\infty$ --"
    )


def test_ragged_rows_are_refused() -> None:
    with pytest.raises(ValueError, match="2 entries, but the table has 1 columns"):
        Table(
            title="t", caption="", stub="", columns=(Column(title="x"),),
            rows=(TableRow(title="r", entries=(Entry(text="1"), Entry(text="2"))),),
        )  # fmt: skip
