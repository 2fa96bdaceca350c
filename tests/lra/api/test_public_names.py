"""What a caller annotates and catches: names of `lra`, typed, documented and raised as they say."""

import inspect
import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from torch import nn

import lra
from lra.models.mixer import Family, Unsupported
from lra.runners.records import COLUMNS
from tests.lra_process import python
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


@pytest.mark.slow
def test_a_typed_script_runs(tmp_path: Path) -> None:
    """`make types` reads it, and beside it what mypy must refuse."""
    ran = python(str(ROOT / "tests/typed/script.py"), cwd=tmp_path, PYTHONPATH=str(ROOT))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.startswith("refused: optim: steps must be at least 0: got -1\n")
    assert ran.stdout.splitlines()[-2:] == ["0 True True ['identity']", "results True listops"]
