"""Where the cells of a sweep run: what is shown, what is stored, and what is refused."""

import io
import json
import os

import pytest
from screen import Screen
from test_board import Feed, cell

import lra.sweep.cells
from lra.composition.hydra_entry import entries
from lra.errors import ConfigError
from lra.execution.foreground import execute as execute_words
from lra.runners.isolation.progress import Progress
from lra.runners.measurement import training_places
from lra.runners.measurement.gpus import Gpu
from lra.sweep.cell_list import build
from lra.sweep.estimate import lanes_of
from lra.sweep.places import places_for
from lra.terminal.board import ProgressBoard
from lra.terminal.screen import Region
from lra.terminal.volume import Volume

CARDS = (Gpu("0", "H100", "a"), Gpu("1", "H100", "b"))


def swept(*words: str, elsewhere: bool = False):
    return build(entries([*words, "optim.batch_size=8"]), elsewhere=elsewhere)


def test_where_a_cell_runs_is_drawn_and_said_to_those_who_ask() -> None:
    screen, now, first = Screen(60, 12), [0.0], cell(0)
    stream = Feed(screen)
    region = Region(stream, lambda: os.terminal_size((60, 12)))
    titles = {first.key: "cell 0"}
    board = ProgressBoard([first], titles, out=stream, clock=lambda: now[0], region=region)
    board.start(first, place="GPU 3")
    board.advance(first, Progress(phase="validating"))
    now[0] = 1.0
    board.tick()
    assert any(line.endswith("validating, for 1 s, GPU 3") for line in screen.text)
    out = io.StringIO()
    loud = ProgressBoard([first], titles, out=out, volume=Volume.verbose)
    loud.start(first, place="core 1")
    assert out.getvalue().endswith("[1/1] cell 0: begun on core 1\n")


def test_more_processes_than_devices_are_refused_where_cells_run_and_planned_elsewhere(monkeypatch):
    for module in (lra.sweep.cells, training_places, lra.sweep.estimate):
        monkeypatch.setattr(module, "gpus", lambda: CARDS)
    words = ("hardware=h100", "hardware.processes=4", "hardware.precision=float32")
    with pytest.raises(ConfigError, match=r"processes: got 4; wanted at most 2, .* 2 GPUs"):
        swept(*words)
    assert len(swept(*words, elsewhere=True).planned) == 1
    both = swept("hardware=h100", "hardware.processes=2").planned
    assert places_for(both).most == 2
    assert lanes_of(both[0].run) == 1
    assert lanes_of(swept("hardware=h100").planned[0].run) == 2


def test_a_dry_run_refuses_more_processes_than_this_processor_takes_as_the_run_does():
    words = ("-m", "model=linear", "task=listops", "hardware.processes=64", "optim.batch_size=64")
    found = entries([*words, "runner.dry_run=true"])
    with pytest.raises(ConfigError, match=r"processes: got 64; wanted at most \d+, .* cores"):
        execute_words(found)


def test_rows_say_on_which_cores_they_were_made(tmp_path, monkeypatch):
    from lra.execution.in_memory import execute

    cores = sorted(os.sched_getaffinity(0))[-1:]
    monkeypatch.setattr(training_places, "usable_cores", lambda: cores)
    sweep = swept(
        "task=listops", "task.source=sample", "optim.steps=1", "optim.warmup_steps=0",
        "model.backbone.depth=1", "runner.validation_examples=8", f"results={tmp_path}",
    )  # fmt: skip
    execute(sweep, Volume.quiet)
    (folder,) = (sweep.store.cell_folder(each.cell.key) for each in sweep.planned)
    (file,) = folder.rglob("environment-*.json")
    assert json.loads(file.read_text())["cores"] == str(cores[0])
