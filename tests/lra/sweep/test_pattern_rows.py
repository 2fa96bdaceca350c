"""A sweep over two patterns of one family: rows, titles, table, figure and report name both."""

import csv
from pathlib import Path

from lra.cli import main
from lra.runners.store import read_rows

WORDS = (
    "-m", "+pattern=qwen3_next,olmo_hybrid", "model.backbone.depth=4", "model.backbone.width=16",
    "model.backbone.heads=2", "model.backbone.feed_forward_width=16", "task=mqar", "task.length=16",
    "task.pairs=2", "task.vocabulary=32", "task.train_examples=40", "task.validation_examples=16",
    "task.test_examples=16", "optim.steps=4", "optim.batch_size=8", "optim.warmup_steps=0",
    "runner.evaluate_every_steps=2", "seed=0,1", "logger=none", "sweep=hybrids",
    "++for_runner.train.runner.baselines=false",
)  # fmt: skip
NAMES = ("qwen3_next", "olmo_hybrid")


def test_every_place_has_the_name_of_the_pattern(tmp_path: Path, capsys) -> None:
    assert main(["run", *WORDS, f"results={tmp_path}"]) == 0
    printed = capsys.readouterr().out
    rows = read_rows(tmp_path, "hybrids")
    assert {*rows["model"]} == {*NAMES}
    assert {labels["layers"] for labels in rows["labels"]} == {"4 layers"}
    report = tmp_path / "reports" / "hybrids"
    table = (report / "accuracy.md").read_text()
    for name in NAMES:
        assert f"train {name} on mqar, seed 1" in printed
        assert table.count(f"| {name} (4 layers) |") == 1  # a line for both seeds
        assert name in (report / "report.html").read_text()
    drawn = [path.with_suffix(".csv") for path in report.glob("*.svg")]
    models = []
    for path in drawn:
        with path.open(newline="") as file:
            models.append({line.get("model", "") for line in csv.DictReader(file)})
    assert {f"{name} (4 layers)" for name in NAMES} in models
    assert "gated_delta_net" not in table
    key = rows["cell"][rows["model"] == "qwen3_next"].iloc[0]
    assert main(["show", key, "--results", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "model=qwen3_next task=mqar" in shown
    assert "+pattern=qwen3_next" in shown  # the command that repeats it
