"""A runner of the user's own: one file, one YAML, and nothing else."""

import csv
from pathlib import Path

import pytest
from small_sweeps import TINY, run

from lra.composition.runner_class import bundled, runner_class
from lra.errors import ConfigError, UnknownName
from runners.store import Store, read_rows

RUNNER = """\
from dataclasses import dataclass
from runners.records import Measurement
from runners.runner import Runner

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


def test_its_options_are_its_fields(
    own: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (*own, "runner=sizes", "model=linear", *TINY)
    assert run(tmp_path / "results", *words, "runner.times=many") == 2
    assert "runner.times: got 'many'" in capsys.readouterr().err


def test_what_is_no_runner_is_refused() -> None:
    with pytest.raises(ConfigError, match="is no runner"):
        runner_class({"name": "train", "class_path": "models.families.linear.LinearAttention"})
    with pytest.raises(ConfigError, match=r"has no method run\(work\)"):
        runner_class({"name": "train", "class_path": "runners.runner.Runner"})
    with pytest.raises(UnknownName, match="train"):
        runner_class({"name": "trian"})


def test_every_runner_of_lra_says_what_it_is() -> None:
    kinds = bundled()
    assert {name for name, kind in kinds.items() if kind.by_length} == {
        "approximation", "decode", "parallel", "peers", "scaling",
    }  # fmt: skip
    assert {name for name, kind in kinds.items() if kind.trains} == {
        "compress", "train", "transfer",
    }  # fmt: skip
    assert [name for name, kind in kinds.items() if not kind.models] == ["certify"]
