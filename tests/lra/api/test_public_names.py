"""What a caller annotates and catches: names of `lra`, typed, documented and raised as they say."""

import inspect
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from torch import nn

import lra
from lra.models.mixer import Family, Unsupported
from lra.runners.records import COLUMNS
from tests.lra_process import python, unpacked
from tests.reports.rows_of_tables import rows_in

ROOT = Path(__file__).resolve().parents[3]
PUBLISHED = ROOT / "reports/published/quickstart-epyc-2026-11-29.jsonl"
TYPES = [name for name in lra.__all__ if name[0].isupper()]


def test_every_type_is_where_the_page_says(tmp_path: Path) -> None:
    page = (ROOT / "docs/python.md").read_text(encoding="utf-8")
    reference = (ROOT / "docs/api/lra.md").read_text(encoding="utf-8")
    reference += (ROOT / "docs/api/runners.md").read_text(encoding="utf-8")
    code = "".join(f"from lra import {name}\nassert isinstance({name}, type)\n" for name in TYPES)
    assert python("-c", code, cwd=tmp_path, PYTHONPATH=str(ROOT)).returncode == 0
    for name in TYPES:
        assert f"`lra.{name}`" in page, name
        assert f"::: {lra._MODULES[name]}" in reference or name in ("Backbone", "Task"), name


def test_what_functions_return_is_there() -> None:
    """By the types of others, a frame, a figure or a path, or by a name of `lra`."""
    theirs = {"pd.DataFrame", "Figure", "Path"}
    for name in {*lra.__all__} - {*TYPES}:
        returned = inspect.signature(getattr(lra, name)).return_annotation
        words = returned if isinstance(returned, str) else getattr(returned, "__name__", returned)
        if name != "wrap":  # a function that builds any mixer
            assert words in {*TYPES, *theirs}, name


class Refusing(Family):
    """Works in no direction."""

    def __init__(self, site) -> None:
        raise Unsupported("nothing works")


def damaged(folder: Path) -> Path:
    (folder / "bad.jsonl").write_text("{}\n")
    return folder / "bad.jsonl"


def bad_style(folder: Path) -> Path:
    (folder / "style.yaml").write_text("fond: 1\n")
    return folder / "style.yaml"


example = PUBLISHED
RAISED: dict[str, tuple[type[Exception], Callable[[Path], object]]] = {
    "a name": (lra.ConfigError, lambda _: lra.model("perfomer")),
    "a value": (lra.ConfigError, lambda _: lra.model("performer", features=-1)),
    "what does not go together": (lra.ConfigError, lambda _: lra.model("fnet", task="mqar")),
    "a device": (lra.ConfigError, lambda _: lra.run("hardware=h100")),
    "what Hydra refuses": (lra.ConfigError, lambda _: lra.run("optim.steps=${no_such:1}")),
    "a mixer's name": (lra.ConfigError, lambda _: lra.verify("perfomer")),
    "a number of heads": (lra.ConfigError, lambda _: lra.verify("linear", heads=0)),
    "a result's name": (lra.ConfigError, lambda _: lra.compare(example, "linear", "lineal")),
    "a sweep of a file": (
        lra.ConfigError, lambda _: lra.compare(example, "linear", "sdpa", sweep="x")
    ),
    "no rows": (lra.ConfigError, lambda _: lra.table(lra.rows(example)[:0])),
    "a style": (lra.ConfigError, lambda at: lra.table(lra.rows(example), style=bad_style(at))),
    "a range": (lra.ConfigError, lambda _: lra.search("model=linear", params={"seed": (1,)})),
    "a rank": (lra.ConfigError, lambda _: lra.choose(64, by="tim")),
    "data that are not here": (lra.NotPrepared, lambda at: lra.task("text", path=str(at / "x"))),
    "data that are none": (lra.BadData, lambda at: lra.task("corpus", train=str(damaged(at)))),
    "a damaged file": (lra.BadStore, lambda at: lra.rows(damaged(at))),
    "a damaged file to compare": (
        lra.BadStore, lambda at: lra.compare(damaged(at), "linear", "sdpa")
    ),
    "no file": (FileNotFoundError, lambda at: lra.rows(at / "nowhere")),
    "no claim": (ValueError, lambda _: lra.wrap(nn.Linear)),
    "no class": (ValueError, lambda _: lra.wrap(3)),  # type: ignore[arg-type]
}  # fmt: skip


@pytest.mark.share(4)
@pytest.mark.parametrize("debug", ["0", "1"])
@pytest.mark.parametrize("case", RAISED)
def test_what_is_refused_has_the_type_that_the_page_says(
    case: str, debug: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where LRA_DEBUG asks for the frames."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LRA_DEBUG", debug)
    kind, call = RAISED[case]
    with pytest.raises(kind) as caught:
        call(tmp_path)
    if kind in (lra.ConfigError, ValueError):
        assert type(caught.value) is kind
    assert "\n" not in str(caught.value)


def test_what_a_mixer_of_ones_own_raises_stays_its_own() -> None:
    class Broken(Family):
        def __init__(self, site) -> None:
            raise KeyError("mine")

    for kind in (Broken, Refusing):
        assert not lra.verify(kind, max_length=16).passed


def test_a_row_is_what_files_and_frames_hold() -> None:
    assert tuple(lra.Row.__annotations__) == COLUMNS
    stored = [json.loads(line) for line in PUBLISHED.read_text().splitlines()]
    read = [{**row, "created": row["created"].isoformat()} for row in rows_in(lra.rows(PUBLISHED))]
    assert len(read) == len(stored) > 0
    for row in (*stored, *read):
        msgspec.convert({name: row[name] for name in COLUMNS}, lra.Row)
        assert row["status"] in [*lra.Status]
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({**stored[0], "length": "64"}, lra.Row)


SCRIPT = '''
"""What a user writes who checks types: a run, a refusal, rows, a search, a table."""

import json
from pathlib import Path

import lra

SMALL = "task.source=sample logger=none report=false"


def trained(steps: int) -> lra.CompletedSweep | None:
    try:
        return lra.run(
            SMALL, model="identity", task="listops", optim={"steps": steps, "warmup_steps": 0}
        )
    except lra.ConfigError as error:
        print(f"refused: {error}")
    except (lra.NotPrepared, lra.BadData, lra.BadStore) as error:
        print(f"no data: {error}")
    return None


def losses(done: lra.CompletedSweep) -> list[float]:
    kept: list[float] = []
    for file in done.results.glob("cells/*/*/rows-*.jsonl"):
        for line in file.read_text().splitlines():
            row: lra.Row = json.loads(line)
            if row["metric"] == "loss" and row["value"] is not None:
                kept.append(row["value"])
    return kept


def words(search: lra.Search, findings: lra.Findings) -> list[str]:
    tuned: lra.ResultTable = search.table()
    failed: list[lra.Finding] = findings.failed
    return [tuned.to_markdown(), *(each.detail for each in failed)]


assert trained(-1) is None
done = trained(2)
assert done is not None
found = lra.rows(done.results, done.sweep)
ended = found[found["status"] == lra.Status.ok]
print(done.exit_code, len(losses(done)) > 0, len(ended) > 0, sorted(set(ended["model"])))
model: lra.Backbone = lra.model("identity")
task: lra.Task = lra.task("listops", source="sample")
print(Path(done.results).name, model.training, task.spec.name)
'''
WRONG = """import lra
lra.run(model="linear").exit_cod
lra.run(model="linear").rows(3)
row: lra.Row = {"valu": 1.0}
lra.choose("long")
lra.task("listops").batchez
lra.verify("linear").failed[0].chek
lra.table(lra.rows()).to_latec()
lra.search("", params={}).chosen.choice
"""


@pytest.mark.slow
def test_a_strict_script_is_typed_and_runs(tmp_path: Path) -> None:
    """Beside lra as pip unpacks it: mypy follows no path that a clone's `__init__` makes."""
    site, folder = tmp_path / "site", tmp_path / "work"
    assert (unpacked(site) / "py.typed").is_file()
    folder.mkdir()
    (folder / "script.py").write_text(SCRIPT)
    (folder / "wrong.py").write_text(WRONG)

    words = ("-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"))
    said = python(*words, "script.py", "wrong.py", cwd=folder, PYTHONPATH=str(site)).stdout
    faults = re.findall(r"^(\w+).py:(\d+): error", said, re.MULTILINE)
    assert {*faults} == {("wrong", str(line)) for line in range(2, WRONG.count("\n") + 1)}, said
    ran = subprocess.run(
        [sys.executable, "script.py"], cwd=folder, capture_output=True, text=True, check=False,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(site), "LRA_DATA": str(tmp_path / "data")},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.startswith("refused: optim: steps must be at least 0: got -1\n")
    assert ran.stdout.splitlines()[-2:] == ["0 True True ['identity']", "results True listops"]
