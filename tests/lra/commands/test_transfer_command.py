"""Fine-tuning from other weights as users run it: the source first, once, and files by content."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import lra
from lra.cli import main
from lra.runners.store import Store, read_rows

TINY = (
    "runner=transfer", "task=listops", "task.source=sample", "optim.steps=4",
    "optim.warmup_steps=0", "optim.batch_size=8", "runner.evaluate_every_steps=2",
    "runner.validation_examples=8", "runner.evaluate_splits=[test]", "runner.timeout_s=300",
    "model.backbone.depth=1", "logger=none",
)  # fmt: skip


pytestmark = pytest.mark.usefixtures("shared_cache")


def run(results: Path, *words: str) -> int:
    return main(["run", *TINY, f"results={results}", *words])


def test_the_source_is_trained_once_and_its_options_differ(tmp_path: Path, capsys) -> None:
    words = (
        "-m", "model=longformer,reformer", "runner.source=softmax,scratch", "sweep=t",
        "runner.pretraining={optim:{steps:6}}",
    )  # fmt: skip
    assert run(tmp_path, *words) == 0
    text = capsys.readouterr().out
    begun = [line for line in text.splitlines() if line.endswith(": begun")]
    assert sum("train softmax on listops" in line for line in begun) == 1
    assert "transfer longformer from scratch on listops" in text
    rows = read_rows(tmp_path)
    (trained,) = set(rows[rows["runner"] == "train"]["cell"])
    store = Store(tmp_path)
    about = store.describe(trained)
    assert about["identity"]["optim"]["steps"] == 6
    assert {"optim.steps=6", "runner=train", "model=softmax"} <= set(about["overrides"])
    assert "optim.steps=4" not in about["overrides"]

    own = rows[rows["runner"] == "transfer"]
    labels = own["labels"].map(dict)
    tuned = own[
        (own["model"] == "longformer") & labels.map(lambda found: found["start"] == "softmax")
    ]
    steps = tuned[(tuned["metric"] == "loss") & tuned["step"].notna()]["step"]
    assert list(steps) == [0, 2, 4]
    origins = {
        found["origin"]: value
        for found, value in zip(tuned["labels"], tuned["value"], strict=True)
        if "origin" in found
    }
    assert origins["started"] == 3 * (64 * 64 + 64)
    assert origins["drawn"] == origins["extended"] == 0
    (refused,) = own[own["status"] != "ok"].itertuples()
    assert (refused.model, refused.status) == ("reformer", "unsupported")
    assert "no place for stack.blocks.0.mixer." in refused.reason
    report = (tmp_path / "reports" / "t" / "report.md").read_text()
    assert "longformer, weights of softmax" in report
    assert "longformer (from scratch)" in report

    assert run(tmp_path, *words, "report=false") == 0
    assert "5 of 5 runs are finished already" in capsys.readouterr().out


def test_a_source_of_a_shorter_task(tmp_path: Path) -> None:
    words = (
        "task=text8", "task.length=48", "model=sliding_window", "report=false",
        "runner.pretraining={task: {length: 32}}",
    )  # fmt: skip
    assert run(tmp_path, *words) == 0
    rows = read_rows(tmp_path)
    assert set(rows[rows["runner"] == "train"]["length"]) == {32}
    own = rows[rows["runner"] == "transfer"]
    assert set(own["length"]) == {48}
    counts = {
        dict(labels).get("origin"): v for labels, v in zip(own["labels"], own["value"], strict=True)
    }
    assert counts["extended"] == 48 * 64


def weights(path: Path, scale: float = 1.0) -> Path:
    """A file with GPT-2's names in the size of the runs above; listops has 18 tokens."""
    from lra.composition.lookup import named_task

    vocabulary = named_task("listops", ["source=sample"]).spec.vocabulary
    generator = torch.Generator().manual_seed(0)
    shapes = {
        "wte.weight": (vocabulary, 64), "wpe.weight": (40, 64),
        "ln_f.weight": (64,), "ln_f.bias": (64,),
        "h.0.ln_1.weight": (64,), "h.0.ln_1.bias": (64,),
        "h.0.ln_2.weight": (64,), "h.0.ln_2.bias": (64,),
        "h.0.attn.c_attn.weight": (64, 192), "h.0.attn.c_attn.bias": (192,),
        "h.0.attn.c_proj.weight": (64, 64), "h.0.attn.c_proj.bias": (64,),
        "h.0.mlp.c_fc.weight": (64, 128), "h.0.mlp.c_fc.bias": (128,),
        "h.0.mlp.c_proj.weight": (128, 64), "h.0.mlp.c_proj.bias": (64,),
    }  # fmt: skip
    path.parent.mkdir(exist_ok=True)
    save_file(
        {k: scale * torch.randn(shape, generator=generator) / 8 for k, shape in shapes.items()},
        path,
    )
    return path


def test_a_file_counts_by_its_content(tmp_path: Path, capsys) -> None:
    path = weights(tmp_path / "one" / "tiny.safetensors")
    words = ("model=linear", "model.backbone.feed_forward=gelu_tanh", "runner.source=null")
    assert run(tmp_path / "r", *words, f"runner.weights={path}", "report=true") == 0
    rows = read_rows(tmp_path / "r")
    assert {dict(labels)["start"] for labels in rows["labels"]} == {"tiny"}
    extended = [
        value
        for labels, value in zip(rows["labels"], rows["value"], strict=True)
        if dict(labels).get("origin") == "extended"
    ]
    assert extended[0] > 40 * 64

    (tmp_path / "two").mkdir()
    moved = Path(shutil.copy(path, tmp_path / "two" / "tiny.safetensors"))
    capsys.readouterr()
    assert run(tmp_path / "r", *words, f"runner.weights={moved}", "report=false") == 0
    assert "1 of 1 runs are finished already" in capsys.readouterr().out
    weights(moved, scale=2.0)
    assert run(tmp_path / "r", *words, f"runner.weights={moved}", "report=false") == 0
    assert read_rows(tmp_path / "r")["cell"].nunique() == 2
    identities = [
        json.loads(p.read_text())["identity"] for p in tmp_path.glob("r/cells/*/*/cell.json")
    ]
    assert len({each["runner"]["weights"] for each in identities}) == 2
    assert not any("safetensors" in json.dumps(each) for each in identities)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("runner.pretraining={optim:{stepz:6}}",), "stepz"),
        (("runner.pretraining={runner:{}}",), "wanted options of the groups optim and task"),
        (("runner.source=sofmax",), "softmax"),
    ],
)
def test_bad_words_are_explained_before_anything_runs(
    words: tuple[str, ...], sentence: str, tmp_path: Path, capsys
) -> None:
    assert run(tmp_path, *words) == 2
    assert sentence in capsys.readouterr().err


def test_a_checkpoint_is_scored_as_it_is_and_known_by_its_content(tmp_path: Path, capsys) -> None:
    """With no step; in two files, one of which changes; and in a model that it does not fit."""
    words = {"task.source": "sample", "backbone": {"depth": 1}}
    tensors = lra.model("linear", seed=5, task="listops", **words).state_dict()
    places = {
        name: f"w-0000{number % 2 + 1}-of-00002.safetensors" for number, name in enumerate(tensors)
    }
    files = tmp_path / "files"
    files.mkdir()
    for file in {*places.values()}:
        save_file({name: tensors[name] for name in tensors if places[name] == file}, files / file)
    index = files / "w.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": places}))
    shared = (word for word in TINY if not word.startswith(("runner", "optim.steps")))
    score = (*shared, "runner=train", "optim.steps=0", "runner.evaluate_splits=[test]")
    results = f"results={tmp_path / 'store'}"

    def scored(path: Path, *more: str) -> int:
        return main(["run", *score, results, "model=linear", f"runner.weights={path}", *more])

    assert scored(index) == 0
    rows = read_rows(tmp_path / "store")
    assert {labels["start"] for labels in map(dict, rows["labels"])} == {"w"}
    (accuracy,) = rows[rows["metric"] == "accuracy"]["value"]
    assert rows[rows["metric"] == "examples_seen"]["value"].item() == 0
    moved = shutil.copytree(files, tmp_path / "moved") / index.name
    capsys.readouterr()
    assert scored(moved) == 0
    assert "finished already" in capsys.readouterr().out

    changed = {name: tensors[name] + 1 for name in tensors if "00001" in places[name]}
    save_file(changed, moved.with_name("w-00001-of-00002.safetensors"))
    assert scored(moved) == 0
    assert read_rows(tmp_path / "store")["cell"].nunique() == 2
    assert 0 <= accuracy <= 1

    scored(index, "model.backbone.width=32")
    rows = read_rows(tmp_path / "store")
    (refused,) = rows[rows["status"] != "ok"].itertuples()
    assert refused.status == "unsupported"
    assert "w.safetensors.index.json has shape" in refused.reason
    assert scored(tmp_path / "nowhere.safetensors") == 2
    assert "runner.weights: there is no file" in capsys.readouterr().err


def test_a_probe_takes_a_checkpoint(tmp_path: Path) -> None:
    words = {"task.source": "sample", "backbone": {"depth": 1}}
    save_file(
        lra.model("softmax", task="listops", **words).state_dict(), tmp_path / "mine.safetensors"
    )
    score = [word for word in TINY if not word.startswith(("runner", "optim"))]
    file = f"runner.weights={tmp_path / 'mine.safetensors'}"
    results = f"results={tmp_path / 'store'}"
    assert main(["run", *score, results, "runner=attention_maps", "model=softmax", file]) == 0
    rows = read_rows(tmp_path / "store")
    assert rows[rows["metric"] == "distance"]["status"].eq("ok").all()
    assert {dict(labels)["start"] for labels in rows["labels"]} == {"mine"}
    origins = rows[rows["metric"] == "initial_parameters"]
    taken = origins["value"].where(
        origins["labels"].map(lambda labels: dict(labels)["origin"] == "copied"), 0
    )
    assert taken.sum() == origins["value"].sum() > 0
