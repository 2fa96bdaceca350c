"""Every verb and every report has a family, and one with a budget, in a copy of the project."""

import json
from pathlib import Path

import pytest

import family_pages
from lra.cli import main
from lra.composition.hydra_entry import entries
from lra.composition.selection import expand_sets, kinds, sets
from lra.reports.figures import drawing
from lra.reports.figures.panels import panels

FAMILY, KIND, APPROXIMATION = "running_mean", "running means", "key_means"
FEW = (
    "runner.timed_steps=3", "runner.long_timed_steps=3", "runner.warmup_steps=1",
    "hardware.token_budget=64", "logger=none",
)  # fmt: skip


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(drawing, "FORMATS", ("svg", "png"))  # of the page, and of the report


def swept(experiment: str) -> list[str]:
    """Return the families of a sweep."""
    found = entries(("-m", f"+experiment={experiment}", "logger=none"))
    return sorted({entry.config["model"]["name"] for entry in found})


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main([*words]) == 0
    return capsys.readouterr().out


def test_it_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert FAMILY in [line.split()[0] for line in said(capsys, "list", "models").splitlines()[1:]]
    assert "model.mixer.gate=sigmoid" in said(capsys, "list", FAMILY)
    traits = json.loads(said(capsys, "list", "models", "--traits", "--json"))["models"][FAMILY]
    assert traits["directions"] == ["bidirectional", "causal"]
    assert traits["state"] is True


def test_sets_and_sweeps_have_it() -> None:
    known = sets()
    assert known["_".join(KIND.split())] == [FAMILY]
    every = expand_sets("model=all").partition("=")[2].split(",")
    for families in (
        known["all"], known["causal"], every, swept("families"), swept("families_train"),
    ):  # fmt: skip
        assert families.count(FAMILY) == 1
        assert len(families) > 10
    for families in (known["approximations"], swept("approximation")):
        assert families.count(APPROXIMATION) == 1
        assert FAMILY not in families
        assert len(families) > 10


def test_its_error_is_measured() -> None:
    words = (
        f"model={APPROXIMATION}", "runner=approximation", "runner.lengths=[32]",
        "runner.budgets=[4,32]", *FEW, "sweep=second", "report=false",
    )  # fmt: skip
    assert main(["run", *words]) == 0
    assert main(["report", "--sweep", "second", "--publish", "second"]) == 0
    rows = [json.loads(line) for line in Path("second.jsonl").read_text().splitlines()]
    errors = {
        row["labels"]["budget"]: row["value"]
        for row in rows
        if (row["model"], row["metric"]) == (APPROXIMATION, "output_error")
    }
    assert errors["32"] < 1e-12 < errors["4"]


def test_its_contract_is_verified(capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = said(capsys, "verify", FAMILY, "--max-length", "64", "--quiet").splitlines()
    name, _, counts = line.partition(": ")
    passed, _, _, failed, *_ = counts.split()
    assert (name, failed) == (FAMILY, "0")
    assert int(passed) > 40


def test_report_and_pages_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    words = (
        f"model={FAMILY}", "runner=scaling", "runner.lengths=[16,32]", "runner.modes=[step]",
        "runner.references=[sdpa]", *FEW, "sweep=first", "report=true",
    )  # fmt: skip
    assert main(["run", "-m", *words]) == 0
    assert main(["report", "--sweep", "first", "--publish", "first"]) == 0
    (report,) = Path("results/reports").iterdir()
    (table,) = report.glob("efficiency*.csv")
    assert FAMILY in table.read_text()
    assert any("time" in file.name for file in report.glob("*.png"))
    write = family_pages.page  # of all others their own tests
    page = lambda name, *rest: write(name, *rest) if name == FAMILY else []  # noqa: E731
    monkeypatch.setattr(family_pages, "page", page)
    family_pages.write_pages(Path("pages"), [Path("first.jsonl")])
    text, overview = (Path("pages", name).read_text() for name in (f"{FAMILY}.md", "README.md"))
    for part in ("attention with equal weights", "`gate=sigmoid`", "## Measured"):
        assert part in text
    assert f"## {KIND.capitalize()}" in overview
    assert f"[{FAMILY}]({FAMILY}.md)" in overview
    assert [*Path("pages/figures").glob(f"{FAMILY}-*.png")]


def test_it_has_a_panel_of_its_kind_and_a_look_of_its_own() -> None:
    every = sets()["all"]
    assert panels(every, kinds())[KIND] == [FAMILY]
    looks = drawing.looks(every)
    assert looks[FAMILY] not in [look for name, look in looks.items() if name != FAMILY]
