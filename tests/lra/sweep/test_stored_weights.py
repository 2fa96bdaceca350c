"""A training that starts from the weights of a completed one."""

import shutil
from pathlib import Path

import pytest
import torch

from lra.cli import main
from lra.runners.store import Store, read_rows

TINY = (
    "task=listops", "task.source=sample", "model=softmax", "model.backbone.width=16",
    "optim.steps=1", "optim.warmup_steps=0", "optim.batch_size=8",
    "runner.evaluate_splits=[test]", "logger=none", "report=false",
)  # fmt: skip
STILL = "optim.peak_learning_rate=1e-30"  # what is taken over stays as it came


def run(results: Path, *words: str) -> int:
    return main(["run", *TINY, f"results={results}", *words])


def cells(results: Path) -> set[str]:
    return set(read_rows(results)["cell"])


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> tuple[Path, str]:
    """Results with one completed training on the tokens."""
    results = tmp_path_factory.mktemp("source")
    assert run(results, "task.objective=masked", "optim.peak_learning_rate=1e-2") == 0
    (key,) = cells(results)
    return results, key


@pytest.fixture
def copied(source, tmp_path) -> tuple[Path, str]:
    shutil.copytree(source[0], tmp_path / "r")
    return tmp_path / "r", source[1]


def weights(results: Path, key: str) -> dict[str, torch.Tensor]:
    (path,) = results.glob(f"cells/*/{key}/checkpoint-*/weights.pt")
    return torch.load(path, weights_only=True)


def test_weights_are_taken_over_exactly_and_rows_say_what_is_new(copied, capsys):
    results, key = copied
    assert run(results, f"runner.weights={key[:7]}", STILL) == 0
    (tuned,) = cells(results) - {key}
    given, found = weights(results, key), weights(results, tuned)
    stack = [name for name in given if name.startswith("stack.")]
    assert stack
    for name in stack:
        assert torch.allclose(found[name], given[name], rtol=0, atol=1e-25)
    assert torch.equal(found["embedding.weight"], given["embedding.weight"][:-1] * 4)
    assert torch.equal(found["positions.table"][1:], given["positions.table"])
    rows = read_rows(results)
    own = rows[rows["cell"] == tuned]
    assert {dict(labels)["start"] for labels in own["labels"]} == {key}
    parts = {
        dict(labels)["origin"]: dict(labels).get("parts")
        for labels in own[own["metric"] == "initial_parameters"]["labels"]
    }
    assert parts["copied"] == "embedding, stack"
    assert parts["extended"] == "positions"
    assert parts["drawn"] == "cls, head"
    identity = Store(results).cell(tuned)["identity"]
    assert identity["trainings"] == {"weights": key}
    assert "weights" not in identity["runner"]

    assert main(["show", tuned, "--results", str(results)]) == 0
    folder = Store(results).cell_folder(key)
    shown = capsys.readouterr().out
    assert f"runner.weights={folder.resolve()}" in shown.replace("'", "").replace('"', "")

    # the same cell by the folder's path: nothing is left to do
    assert run(results, f"runner.weights={folder}", STILL) == 0
    assert cells(results) == {key, tuned}


def test_what_does_not_fit_is_a_row_before_the_first_step(copied):
    results, key = copied
    assert run(results, f"runner.weights={key}", "model.backbone.feed_forward_width=32") == 1
    rows = read_rows(results)
    (bad,) = rows[rows["status"] != "ok"].itertuples()
    assert bad.status == "unsupported"
    assert "feed_forward_width=128, but this model has 32" in bad.reason
    assert "set model.backbone.feed_forward_width=128" in bad.reason


def test_a_misshapen_parameter_is_named_with_both_shapes(copied):
    results, key = copied
    (path,) = results.glob(f"cells/*/{key}/checkpoint-*/weights.pt")
    words = ("model=linformer", "model.mixer.projected_length=[4]")
    assert run(results, *words, "task.objective=masked") == 0
    (other,) = cells(results) - {key}
    assert path.is_file()
    assert run(results, *words, "model.mixer.projected_length=[5]", f"runner.weights={other}") == 1
    rows = read_rows(results)
    (bad,) = rows[rows["status"] != "ok"].itertuples()
    assert bad.status == "unsupported"
    assert "has shape [" in bad.reason
    assert "this model needs [" in bad.reason


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ("ffffffffffffffffffff", "runner.weights: no run in"),
        ("{results}/cells", "has no `cell.json`"),
    ],
)
def test_a_cell_that_is_not_there(copied, capsys, named, message):
    results, _ = copied
    assert run(results, f"runner.weights={named.format(results=results)}") == 2
    assert message in capsys.readouterr().err


def test_a_cell_without_weights(copied, capsys):
    results, key = copied
    (path,) = results.glob(f"cells/*/{key}/checkpoint-*/weights.pt")
    path.unlink()
    assert run(results, f"runner.weights={key}") == 2
    error = capsys.readouterr().err
    assert f"got the run {key} (runner=train model=softmax task=listops), which saved no" in error
    assert f"`lra show {key}`" in error
