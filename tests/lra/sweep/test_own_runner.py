"""A runner of the user's own: one file, one YAML, and nothing else."""

import csv
from pathlib import Path

import pytest
from small_sweeps import TINY, run

from lra.composition.runner_class import our_runners, runner_class, sections
from lra.errors import ConfigError, UnknownName
from lra.runners.store import Store, read_rows

RUNNER = """\
from dataclasses import dataclass
from lra.runners.records import Measurement
from lra.runners.runner import Runner

@dataclass(frozen=True, kw_only=True)
class Sizes(Runner):
    outcome = "parameters"
    times: int = 1

    def run(self, work):
        weights = sum(p.numel() for p in work.build().parameters())
        yield Measurement(metric="parameters", value=float(self.times * weights))

    @classmethod
    def headline(cls, rows):
        return f"{rows[0].value:.0f} numbers"
"""
YAML = """\
name: sizes
about: {summary: "how many numbers a model has"}
class_path: own_runner.Sizes
times: 1
timeout_s: 300.0
"""
SECTION = """\
from lra.reports.figures.lines import LineDrawing
from lra.reports.sections.section import PagesPart, Section
from lra.reports.tables.pivot import SeedMeans, Pivot
from lra.reports.tables.table import Column, Entry

def numbers(rows):
    (value,) = rows["value"]
    return Entry(text=f"{value:.0f}", value=value)

section = Section(
    name="sizes", heading="How large models are",
    data=SeedMeans(metrics=["parameters"], labels=[]),
    table=Pivot(title="Sizes", caption="", columns=[(Column(title="numbers"), numbers)]),
    figure=PagesPart("sizes-by-length", "Sizes by length", "a point for each model", LineDrawing(
        title="Sizes", panel=("task", "source"), x="length", across="length",
        along=lambda data: ("numbers", 1.0),
    )),
)
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    (tmp_path / "own_runner.py").write_text(RUNNER)
    (tmp_path / "conf/runner").mkdir(parents=True)
    (tmp_path / "conf/runner/sizes.yaml").write_text(YAML)
    monkeypatch.syspath_prepend(tmp_path)
    return [f"--config-dir={tmp_path / 'conf'}", "plugins=[own_runner]"]


def test_a_runner_is_one_file_and_one_yaml(
    own: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (*own, "-m", "runner=sizes,train", "model=linear,sdpa", *TINY, "report=true")
    assert run(tmp_path / "results", *words) == 0
    out = capsys.readouterr().out
    assert "numbers" in out
    rows = read_rows(tmp_path / "results")
    row, other = rows[rows["runner"] == "sizes"].itertuples()
    (page,) = tmp_path.glob("results/reports/*/report.md")
    (table,) = page.parent.glob("metrics-sizes.csv")
    assert "## Runner sizes" in page.read_text()
    lines = [*csv.DictReader(table.read_text().splitlines())]
    assert {line["column"] for line in lines} == {"parameters"}
    values = {line["model"]: float(line["value"]) for line in lines}
    assert values == {row.model: row.value, other.model: other.value}
    assert (row.metric, row.status, row.mode) == ("parameters", "ok", "sizes")
    assert row.value > 1000
    described = Store(tmp_path / "results").describe(row.cell)
    assert described["identity"]["runner"] == {"name": "sizes"}
    assert described["described"]["runner"] == {"name": "sizes", "times": 1}


def test_its_section_is_one_more_file(
    own: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own_section.py").write_text(SECTION)
    yaml = tmp_path / "conf/runner/sizes.yaml"
    yaml.write_text(YAML + "section: own_sections\n")
    words = (
        *own[:1],
        "plugins=[own_runner,own_section]",
        "-m",
        "runner=sizes",
        "model=linear,sdpa",
    )
    assert run(tmp_path / "results", *words, *TINY, "report=true") == 2
    assert "runner.section 'own_sections' lies outside" in capsys.readouterr().err
    yaml.write_text(YAML + "section: own_section\n")
    assert run(tmp_path / "results", *words, *TINY, "report=true") == 0
    (page,) = tmp_path.glob("results/reports/*/report.md")
    titles = ("## How large models are", "## Sizes by length")
    assert all(title in page.read_text() for title in titles)
    names = {path.name for path in page.parent.iterdir()}
    assert {"sizes.md", "sizes.csv", "sizes.tex", "sizes-by-length.svg"} <= names
    assert "metrics-sizes.md" not in names
    (key,) = {row.cell for row in read_rows(tmp_path / "results").itertuples()
              if row.model == "linear"}  # fmt: skip
    described = Store(tmp_path / "results").describe(key)
    assert described["identity"]["runner"] == {"name": "sizes"}
    config = described["config"]
    stored = {"none": {**config, "plugins": []}, "stranger": {**config, "plugins": ["unnamed"]}}
    lost, foreign = (sections({key: {**described, "config": each}}) for each in stored.values())
    assert "lies outside" in str(lost["sizes"])
    assert "sizes" not in foreign


def test_its_options_are_its_fields(
    own: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (*own, "runner=sizes", "model=linear", *TINY)
    assert run(tmp_path / "results", *words, "runner.times=many") == 2
    assert "runner.times: got 'many'" in capsys.readouterr().err


def test_a_metric_of_its_own_is_refused_before_it_runs(
    own: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own_runner_2.py").write_text(RUNNER.replace('"parameters"', '"size_of_me"'))
    (tmp_path / "conf/runner/sizes.yaml").write_text(YAML.replace("own_runner.", "own_runner_2."))
    words = (own[0], "plugins=[own_runner_2]", "runner=sizes", "model=linear", *TINY)
    assert run(tmp_path / "results", *words) == 2
    assert "got the metric 'size_of_me' in `outcome` or `tabled`" in capsys.readouterr().err
    assert not [*tmp_path.glob("results/cells/*")]


def test_a_fault_of_its_section_is_not_laid_to_lra(
    own: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own_section_2.py").write_text(SECTION.replace('["value"]', '["valve"]'))
    (tmp_path / "conf/runner/sizes.yaml").write_text(YAML + "section: own_section_2\n")
    words = (own[0], "plugins=[own_runner,own_section_2]", "runner=sizes", "model=linear", *TINY)
    assert run(tmp_path / "results", *words, "report=true") == 1
    said = capsys.readouterr().err
    assert "KeyError: 'valve'" in said
    assert "own_section_2.py:7 in numbers; your input is not the cause" in said
    assert "a bug in lra" not in said


def test_what_is_no_runner_is_refused() -> None:
    with pytest.raises(ConfigError, match="is not a runner"):
        runner_class({"name": "train", "class_path": "models.families.linear.LinearAttention"})
    with pytest.raises(ConfigError, match=r"must have a method run\(work\)"):
        runner_class({"name": "train", "class_path": "runners.runner.Runner"})
    with pytest.raises(UnknownName, match="train"):
        runner_class({"name": "trian"})


def test_every_runner_of_lra_says_what_it_is() -> None:
    kinds = our_runners()
    assert {name for name, kind in kinds.items() if kind.by_length} >= {
        "approximation", "decode", "parallel", "scaling",
    }  # fmt: skip
    assert {name for name, kind in kinds.items() if kind.trains} >= {
        "compress", "train", "transfer",
    }  # fmt: skip
    assert "certify" in {name for name, kind in kinds.items() if not kind.models}
