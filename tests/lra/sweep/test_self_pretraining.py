"""A classifier that starts from the same model, trained on the tokens of its own inputs."""

from pathlib import Path

from lra.cli import main
from lra.composition.compose import typed
from lra.composition.hydra_entry import entries
from lra.runners.store import Store, read_rows
from lra.sweep.trainings import trainings
from lra.tasks.classification.objectives import InputObjective

TINY = (
    "task=listops", "task.source=sample", "model=identity", "model.backbone.width=16",
    "model.backbone.pooling=mean", "optim.steps=3", "optim.warmup_steps=0", "optim.batch_size=8",
    "runner.evaluate_splits=[test]", "logger=none", "report=false",
)  # fmt: skip


def run(results: Path, *words: str) -> int:
    return main(["run", *TINY, f"results={results}", *words])


def test_the_published_rates_of_both_phases():
    words = ["+protocol=self_pretraining", "model=softmax", "runner=transfer", "task.source=sample"]
    rates = {}
    for entry in entries(["-m", *words, "runner.source=model", "task=text,retrieval,image"]):
        found = typed(entry.config)
        (source,) = trainings(found).values()
        assert source.task.objective is InputObjective.masked
        assert source.config["runner"]["name"] == "train"
        rates[found.task_name] = (
            found.optim.peak_learning_rate, source.optim.peak_learning_rate,
            source.optim.steps, source.task.masked_share,
        )  # fmt: skip
    assert rates == {
        "text": (1e-4, 5e-4, 24992, 0.15),
        "retrieval": (5e-4, 5e-3, 147072, 0.15),
        "image": (1e-3, 1e-3, 70300, 0.5),
    }


def test_pretrained_beside_from_scratch(tmp_path):
    words = ("runner=transfer", "runner.source=model,scratch", "runner.evaluate_every_steps=3",
             "runner.validation_examples=16",
             "runner.pretraining={optim: {steps: 2}, task: {objective: masked}}")  # fmt: skip
    assert run(tmp_path, "-m", *words) == 0
    rows = read_rows(tmp_path)
    assert set(rows["status"]) == {"ok"}
    store = Store(tmp_path)
    (source,) = set(rows[rows["runner"] == "train"]["cell"])
    cell = store.cell(source)
    assert cell["config"]["model"]["backbone"]["pooling"] == "cls"  # which the tokens never read
    assert cell["config"]["task"]["objective"] == "masked"
    assert "model.backbone.pooling=cls" in cell["overrides"]
    starts = {dict(labels).get("start") for labels in rows[rows["runner"] == "transfer"]["labels"]}
    assert starts == {"model", "scratch"}
    regime = [dict(labels)["regime"] for labels in rows[rows["cell"] == source]["labels"]]
    assert set(regime) == {"masked tokens, 10%"}
    made = rows[rows["metric"] == "initial_parameters"]
    taken = {
        dict(labels)["origin"]: value
        for labels, value in zip(made["labels"], made["value"], strict=True)
    }
    assert taken["copied"] > taken["drawn"] > 0
