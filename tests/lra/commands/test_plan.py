"""`lra plan`: the words of `lra run`, a table, nothing run and nothing written."""

import csv
import io
import json
import os
import re
from pathlib import Path

import pytest

from lra.cli import main
from lra.commands.plan import COLUMNS
from lra.composition.hydra_entry import entries
from lra.runners.records import Measurement
from lra.runners.store import Store
from lra.sweep.cell_list import build

WORDS = ["task=listops", "task.source=sample", "optim.warmup_steps=0", "optim.steps=50"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Be in an empty folder."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    return here


def test_a_sweep_for_another_machine_in_json(folder: Path, capsys) -> None:
    words = ["-m", "model=linear,fnet", "seed=0,1", "hardware=h100", *WORDS]
    words += ["runner.baselines=false"]
    assert main(["plan", *words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found) == {"schema", "sweep", "results", "machines", "total", "cells"}
    assert found["schema"] == 2
    assert found["machines"] == [{"hardware": "h100", "measured": False, "kernels": "auto"}]
    linear, fnet = found["cells"]
    assert set(linear) == set(COLUMNS)
    assert (linear["model"], linear["seeds"], linear["steps"]) == ("linear", [0, 1], 50)
    assert linear["fits"] is True
    assert linear["hours"] == pytest.approx(linear["hours_to_do"] / 2)
    assert linear["gpu_hours_to_do"] == linear["hours_to_do"] > 50 * linear["step_s"] / 3600
    assert fnet["basis"] == "refused"
    assert "padding" in fnet["reason"]
    total = found["total"]
    assert (total["cells"], total["to_do"], total["done"], total["unknown"]) == (4, 4, 0, 0)
    assert total["gpu_hours"] == pytest.approx(sum(c["gpu_hours_to_do"] for c in found["cells"]))
    assert os.listdir(folder) == []  # noqa: PTH208 - hidden files, too


def test_a_table_names_what_is_not_known_and_what_does_not_fit(folder: Path, capsys) -> None:
    words = ["-m", "runner=span,train", "hardware.memory_limit_bytes=1048576", *WORDS]
    assert main(["plan", *words]) == 0
    text = capsys.readouterr().out
    assert "Span does not declare how many passes through a model a run needs" in text
    assert "The time of 1 run is unknown, so the sum excludes it" in text
    assert "1 run will lack memory. To save memory, set " in text
    assert re.search(r" to do, [\d.]+ (s|min)\b", text)
    assert " NO " in text
    assert [*folder.iterdir()] == []


COST = ["runner=scaling", "runner.lengths=[512]", "hardware=h100", "runner.modes=[forward,step]"]


def test_the_memory_of_references_stands_apart_with_mode_and_limit(capsys) -> None:
    def cells(*words: str) -> list[dict]:
        assert main(["plan", "model=linformer", *COST, *WORDS, *words, "--json"]) == 0
        return json.loads(capsys.readouterr().out)["cells"]

    alone, beside = cells("runner.references=[]"), cells()
    assert [cell["mode"] for cell in beside] == ["forward", "step"]
    for one, both in zip(alone, beside, strict=True):
        assert both["need_bytes"] == one["need_bytes"]
        assert (one["reference"], one["reference_need_bytes"]) == ("", None)
        assert both["reference"] == "softmax"  # needs more than sdpa
        assert both["reference_need_bytes"] > both["need_bytes"]
    between = (beside[1]["need_bytes"] + beside[1]["reference_need_bytes"]) // 2
    limit = f"hardware.memory_limit_bytes={between}"
    step = cells(limit)[1]
    assert (step["fits"], step["reference_fits"], step["room_bytes"]) == (True, False, between)
    assert main(["plan", "model=linformer", *COST, *WORDS, limit]) == 0
    table, *_, sentences = capsys.readouterr().out.partition("\n\n")
    head, *lines = table.splitlines()
    assert head.split()[2] == "mode"
    assert [head.index(word) for word in ("limit", "memory", "fits", "reference", "it fits")]
    assert re.search(r"step .* GiB .* yes  softmax .* GiB +NO", lines[-1])
    assert (
        "run, the reference needs more memory than the machine has. Set runner.reference"
        in sentences
    )
    assert "runs need more memory" not in sentences


def test_tokens_of_a_text_have_a_forecast(capsys) -> None:
    words = ["-m", "model=linear,sdpa,reformer", "runner=decode", "runner.lengths=[256,4096]"]
    assert main(["plan", *words, "--json"]) == 0
    cells = json.loads(capsys.readouterr().out)["cells"]
    found = {(cell["model"], cell["mode"], cell["length"]): cell for cell in cells}
    for cell in cells:
        stateless = cell["model"] == "reformer" and cell["mode"] == "state"
        assert cell["basis"] == ("refused" if stateless else "counted")
    for model in ("linear", "sdpa"):
        near, far = (found[model, "state", length] for length in (256, 4096))
        again = found[model, "recompute", 4096]
        assert (far["step_s"] > 1.05 * near["step_s"]) is (model == "sdpa")  # whose state grows
        assert again["step_s"] > 5 * far["step_s"]
        assert far["hours"] * 3600 > 30 * far["step_s"]
        assert far["parameters"] > near["parameters"]  # of learned positions
    assert main(["choose", "length=4128", "causal", "model=sdpa", "--json"]) == 0
    (family,) = json.loads(capsys.readouterr().out)["families"]
    assert family["token_s"] == found["sdpa", "state", 4096]["step_s"]


def test_csv_has_a_line_for_each_cell(capsys) -> None:
    words = ["-m", "model=linear", "task.max_length=100,120", "task.source=generated",
             "task.min_length=20", "optim.warmup_steps=0", "optim.steps=9"]  # fmt: skip
    assert main(["plan", *words, "--csv"]) == 0
    lines = [*csv.DictReader(io.StringIO(capsys.readouterr().out))]
    assert [line["runner"] for line in lines] == ["certify", "certify", "train", "train"]
    lines = lines[2:]
    assert [line["length"] for line in lines] == ["100", "120"]
    assert tuple(lines[0]) == COLUMNS
    assert [line["options"] for line in lines] == ["max_length=100", "max_length=120"]


def test_what_is_done_is_not_to_do_and_is_compared(capsys) -> None:
    words = ["model=linear", *WORDS]
    (one,) = build(entries(words)).planned
    found = {"train_step_time": 0.5, "train_time": 20.0, "process_peak_bytes": 4e8}
    rows = [Measurement(metric=name, value=value) for name, value in found.items()]
    Store(Path("results")).write(one.cell, rows, (), {"took_s": 21.0})
    assert main(["plan", *words, "--json"]) == 0
    total = json.loads(capsys.readouterr().out)["total"]
    assert total | {"done": 1, "to_do": 0, "hours": 0} == total
    assert main(["plan", "--against", "results", "--json"]) == 0
    compared = json.loads(capsys.readouterr().out)
    quantities = {line["quantity"] for line in compared["cells"]}
    assert quantities == set(found)
    for line in compared["cells"]:
        assert line["ratio"] == pytest.approx(line["measured"] / line["predicted"])
    assert compared["train_step_time"]["cells"] == 1
    assert main(["plan", "--against", "results"]) == 0
    assert "within a factor of 1.5" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["model=nope"], "nope"),
        (["hardware=nope"], "Known hardware"),
        (["--json", "--csv", *WORDS], "got both --json and --csv; give only one"),
        (["--against", "nope"], "no results folder nope"),
        (["--against", ".", "model=linear"], "remove model=linear"),
        (["+hardware.typical.speed=3"], "speed"),
    ],
)
def test_bad_words_are_answered(words, text, capsys) -> None:
    assert main(["plan", *words]) == 2
    message = capsys.readouterr().err
    assert text in message
    assert "Traceback" not in message
