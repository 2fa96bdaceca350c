"""A store from a stranger: no verb imports what its cells name, unless the command names it too."""

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lra.cli import main
from lra.cluster.engine import started_by
from lra.cluster.local import LocalEngine
from lra.composition import class_path
from lra.composition.class_path import NotNamed, check_named, locate, named_plugins
from lra.composition.compose import build_task, typed
from lra.errors import ConfigError
from lra.execution.executor import Executor
from lra.runners.storage.seals import seal
from lra.runners.store import Store
from lra.sweep.sweep import SweepOutcome
from lra.tuning.record import record_file

MODULE = "strange_package"
CODE = """\
from dataclasses import dataclass
from pathlib import Path

Path("imported").touch()

from lra.models.families.linear import LinearAttention
from lra.runners.records import Measurement
from lra.runners.runner import Runner
from lra.tasks.language.characters import Characters


class Mixer(LinearAttention):
    pass


class Letters(Characters):
    pass


@dataclass(frozen=True, kw_only=True)
class Sizes(Runner):
    outcome = "parameters"
    by_length = True
    lengths: list[int]
    modes: list[str]

    def cells(self, name, length):
        return [(mode, each) for mode in self.modes for each in self.lengths]

    def run(self, work):
        yield Measurement(metric="parameters", value=1.0)
"""
RUNNER = f"""\
name: sizes
about: {{summary: "how many numbers a model has"}}
class_path: {MODULE}.Sizes
lengths: [16]
modes: [small, large]
timeout_s: 300.0
"""
OURS = (
    "task=text8", "task.source=sample", "task.length=16", "model=linear", "optim.steps=2",
    "optim.warmup_steps=0", "optim.batch_size=8", "model.backbone.depth=1",
    "model.backbone.width=16", "runner.evaluate_splits=[]", "runner.evaluate_every_steps=0",
    "logger=none", "report=false",
)  # fmt: skip
NAMED = f"plugins=[{MODULE}]"
OWN = (
    f"model.mixer.class_path={MODULE}.Mixer", f"task.class_path={MODULE}.Letters", "sweep=own",
    NAMED,
)  # fmt: skip
SIZES = (
    *(word for word in OURS if not word.startswith("runner.")), *OWN, "--config-dir=own_conf",
    "runner=sizes",
)  # fmt: skip
SEARCHED = (
    *(word for word in OURS if not word.startswith("runner.")), "search=halton",
    "search.trials=1", "search.final_seeds=[1]", "optim.peak_learning_rate=choice(0.001,0.01)",
)  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package, the store that was made with it, and a plan of its sweep."""
    folder = tmp_path_factory.mktemp("made")
    (folder / f"{MODULE}.py").write_text(CODE)
    (folder / "own_conf/runner").mkdir(parents=True)
    (folder / "own_conf/runner/sizes.yaml").write_text(RUNNER)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("LRA_DATA", str(folder / "data"))
        patch.setattr(sys, "path", [*sys.path])
        assert main(["run", *OURS, *OWN]) == 0
        assert main(["run", "-m", *SIZES]) == 0
        patch.setattr(LocalEngine, "submit", lambda *_: [])
        assert main(["submit", *OURS, *OWN, "seed=1"]) == 0
        assert main(["submit", *SEARCHED, *OWN, "sweep=tuned"]) == 0
        assert main(["submit", *SEARCHED, "sweep=plain"]) == 0
    assert (folder / "imported").exists()
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of it as the current folder, in a process that has named and imported nothing."""
    copy = tmp_path / "copy"
    shutil.copytree(made, copy)
    (copy / "imported").unlink()
    monkeypatch.chdir(copy)
    monkeypatch.setenv("LRA_DATA", str(copy / "data"))
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each not in ("", str(made))])
    monkeypatch.setattr(class_path, "_named", set())
    sys.modules.pop(MODULE, None)
    yield copy
    sys.modules.pop(MODULE, None)


def cell(runner: str, mode: str | None = None) -> str:
    store = Store(Path("results"))
    (key,) = [
        folder.name
        for folder in store.root.glob("cells/*/*")
        if (columns := store.cell(folder.name)["columns"])["runner"] == runner
        and mode in (None, columns["mode"])
    ]
    return key


CELL, SIZE = "CELL", "SIZE"
REFUSED = {
    "generate": ("generate", CELL, "--prompt", "ab", "--tokens", "3"),
    "cost": ("show", "--cost", CELL),
    "weights": ("run", *OURS, f"runner.weights={CELL}"),
    "weights of a dry run": ("run", *OURS, f"runner.weights={CELL}", "runner.dry_run=true"),
    "weights of a plan": ("plan", *OURS, f"runner.weights={CELL}"),
    "weights of a submission": ("submit", *OURS, f"runner.weights={CELL}"),
    "work": ("work", "own", "--wait", "0"),
    "work of a search": ("work", "tuned", "--wait", "0"),
    "what a search chose": ("run", *OURS, "search=halton", "search.from=tuned", "sweep=again"),
}
"""What cannot go on without the package, and says what to type."""
READING = {
    "show": ("show", CELL),
    "show a runner": ("show", SIZE),
    "show as JSON": ("show", SIZE, "--json"),
    "plan": ("plan", *OURS, "sweep=own"),
    "dry run": ("run", *OURS, "sweep=own", "runner.dry_run=true"),
    "run": ("run", *OURS, "sweep=own", "seed=3"),
    "submit": ("submit", *OURS, "sweep=own", "seed=4"),
    "stop": ("submit", "--stop", "own"),
    "watch": ("watch", "own", "--workers"),
    "report": ("report", "--sweep", "own"),
    "publish": ("report", "--sweep", "own", "--publish", "published"),
    "dashboard": ("dashboard", "--sweep", "own"),
    "doctor": ("doctor", "--store"),
    "data": ("data", "verify", "text8", "source=sample"),
    "list": ("list", "models"),
    "verify": ("verify", "identity", "--max-length", "16"),
    "completion": ("completion", "bash"),
}


def called(words: tuple[str, ...], *more: str) -> int:
    keys = {CELL: cell("train"), SIZE: cell("sizes", "small")}
    named = [word.replace(CELL, keys[CELL]) if CELL in word else word for word in words]
    return main([*(keys[SIZE] if word == SIZE else word for word in named), *more])


@pytest.mark.parametrize("name", REFUSED)
def test_what_needs_the_package_says_what_to_type(
    name: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert called(REFUSED[name]) == 2
    said = "".join(capsys.readouterr())
    assert not (folder / "imported").exists()
    assert NAMED in said
    assert f"--plugin {MODULE}" in said
    assert "Traceback" not in said


@pytest.mark.share(3)
@pytest.mark.parametrize("name", READING)
def test_what_reads_a_store_imports_nothing_from_it(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalEngine, "submit", lambda *_: [])
    assert called(READING[name]) in (0, 3)
    assert not (folder / "imported").exists()


def in_arms(record: dict[str, Any]) -> None:
    for arm in record["arms"]:
        arm["words"] += OWN


def in_steering(record: dict[str, Any]) -> None:
    record["steering"] += OWN


def in_ranges(record: dict[str, Any]) -> None:
    ranges = {
        "plugins": f"choice([{MODULE}],[{MODULE},json])",
        "model.mixer.class_path": f"choice({MODULE}.Mixer,{MODULE}.Letters)",
    }
    record["for_model"]["linear"] = ranges
    record["points"] = {study: [[*point, 0.0, 0.0] for point in points]
                        for study, points in record["points"].items()}  # fmt: skip


def in_a_folder_of_files(record: dict[str, Any]) -> None:
    folder = Path("own_conf/model")
    folder.mkdir()
    mixer = f"mixer: {{class_path: {MODULE}.Mixer}}"
    (folder / "strange.yaml").write_text(
        f"# @package _global_\nplugins: [{MODULE}]\nmodel: {{name: strange, {mixer}}}\n"
    )
    record["place"] = {"folder": str(Path.cwd()), "config_dir": "own_conf"}
    for arm in record["arms"]:
        arm["words"] += ["model=strange"]


@pytest.mark.parametrize("plant", [in_arms, in_steering, in_ranges, in_a_folder_of_files])
def test_a_package_planted_in_a_search_is_not_imported(
    plant: Callable[[dict[str, Any]], None], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The words of its record are composed again: by whoever goes on with it, or reads on."""
    monkeypatch.setattr(LocalEngine, "submit", lambda *_: [])
    monkeypatch.setattr(Executor, "run", lambda _: SweepOutcome())
    file = record_file(Path("results"), "plain")
    record = json.loads(file.read_text())
    del record["digest"]
    plant(record)
    for words in (
        ("run", *SEARCHED, "sweep=plain", "runner.dry_run=true"),
        ("plan", *SEARCHED, "sweep=plain"),
        ("submit", *SEARCHED, "sweep=plain"),
        ("run", *OURS, "search=halton", "search.from=plain", "sweep=again"),
        ("work", "plain", "--wait", "0"),
    ):
        file.write_bytes(seal(record))  # which some of them write again
        main([*words])
        assert not (folder / "imported").exists(), words
    file.write_bytes(seal(record))
    main(["work", "plain", "--wait", "0", "--plugin", MODULE])
    assert (folder / "imported").exists()  # so it was found


def test_every_stored_file_that_names_the_package_is_tried(made: Path) -> None:
    """A new kind of file with words, or with a configuration, needs a line above."""
    files = (path for path in (made / "results").rglob("*") if path.is_file())
    naming = {path.relative_to(made / "results") for path in files if
              MODULE in path.read_text(errors="replace")}  # fmt: skip
    kinds = {f"{path.parts[0]}/{path.name.partition('-')[0]}" for path in naming}
    assert kinds == {"cells/cell.json", "cells/environment", "plans/cells", "plans/plan.json",
                     "searches/search.json"}  # fmt: skip


@pytest.mark.parametrize(
    "words",
    [
        ("generate", CELL, "--prompt", "ab", "--tokens", "3", "--plugin", MODULE),
        ("show", "--cost", CELL, "--plugin", MODULE),
        ("show", SIZE, "--plugin", MODULE),
        ("run", *OURS, f"runner.weights={CELL}", "runner.dry_run=true", NAMED),
        ("plan", "--against", "results", "--plugin", MODULE),
        ("report", "--plugin", MODULE),
    ],
    ids=lambda words: words[0],
)
def test_a_package_that_the_command_names_is_imported(words: tuple[str, ...], folder: Path) -> None:
    assert called(words) == 0
    assert (folder / "imported").exists()


def test_what_is_left_out_of_a_comparison_is_said(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", "--against", "results"]) == 0
    assert f"--plugin {MODULE}" in capsys.readouterr().err
    assert not (folder / "imported").exists()


def test_the_command_that_repeats_a_cell_names_its_package(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert called(("show", SIZE)) == 0
    command = capsys.readouterr().out.partition("\nrerun ")[2].splitlines()[0]
    assert NAMED in command
    assert "'runner.modes=[small]' 'runner.lengths=[16]'" in command


def test_workers_that_submit_starts_have_the_packages_of_its_command(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where they are started elsewhere; without the folder they would not find it."""
    commands = []
    monkeypatch.setattr(
        LocalEngine, "submit", lambda *words: commands.append([*words[3][3:]]) or []
    )
    assert main(["submit", *OURS, *OWN, "seed=1"]) == 0
    (command,) = commands
    assert command[2:] == [f"--plugin={MODULE}", f"--plugin-folder={folder}"]
    monkeypatch.setattr(class_path, "_named", set())
    monkeypatch.chdir(tmp_path)
    assert main([*command, "--wait", "0"]) == 0
    assert main(["watch", "own", "--results", str(folder / "results"), "--once"]) == 0


def test_a_class_of_ours_is_called_where_it_is_what_is_wanted_alone(tmp_path: Path) -> None:
    """A stored task, and the engine of a stored submission, may name whatever is ours."""
    victim = tmp_path / "victim"
    victim.write_text("kept")
    for name in ("lra.runners.storage.atomic.remove", "lra.tasks.data.sources.data_root"):
        with pytest.raises(ConfigError, match="wanted a class with the attributes of "):
            build_task({"name": "text8", "class_path": name, "path": str(victim)})
    assert victim.exists()
    options = {"class_path": "lra.__main__.main", "workers": 1}
    assert isinstance(started_by({"cluster": "local", "options": options}), LocalEngine)


@pytest.mark.parametrize("plugins", ["strange", 3, {"a": 1}, None])
def test_what_is_no_list_of_packages_is_refused(plugins: object) -> None:
    with pytest.raises(ConfigError):
        locate("strange.Thing", plugins)  # type: ignore[arg-type]


def test_python_names_packages_by_the_call(folder: Path) -> None:
    import lra

    config = json.loads((Store(Path("results")).cell_folder(cell("train")) / "cell.json")
                        .read_text())["config"]  # fmt: skip
    lra.table(lra.rows("results"), "metrics", runner="sizes")
    with pytest.raises(NotNamed, match=MODULE):
        typed(config)
    assert not (folder / "imported").exists()
    lra.model("linear", task="text8", plugins=[MODULE])
    assert named_plugins() == [MODULE]
    check_named([MODULE])
    typed(config)
    assert (folder / "imported").exists()
