"""Plausible slips are refused in one line, which names the key and the value seen."""

import re
from pathlib import Path

import pytest

from lra.cli import main

TYPED = """
hydra.sweeper.params={seed:'5,6'} | hydra/sweeper=optuna | hydra/launcher=joblib | seed=1,range(0,3)
model=[linear,softmax] | task=[text] | model=[] | optim=[1] | model=* | -m task=all | model | model=
hardware=gpu | hardware=cuda | hardware.device=gpu | hardware.precision=fp16 | hardware.threads=all
seed=one | seed=0..4 | -m seed=0-4 | -m seed=0:5 | seed=[0,1,2] | seed=3;4 | seed=3, | -m seed=3,4,
-m seed=,3,,4 | seed=, | seed=ranges(3) | runner.lengths=[8,16,] | optim.clip=uniform(1,2) | seed==3
optim.clip=loguniform(1e-4,1e-2) | optim.steps=randint(1,9) | optim.steps=1k | optim.steps=ten
optim.steps=yes | optim.steps='8' | optim.batch_size=32k | optim.peak_learning_rate=fast | =3
optim.clip=None | optim.warmup_steps=5000 | optim.lr=1e-3 | lr=1e-3 | epochs=3 | workers=4 | a.b
optim=ftrl | optim=3 | optim=lion optim.momentum=0.9 | optim=sgd ++optim.betas=[0.5,0.9]
d_model=64 | optim.schedule=plateau | optim.schedule=noam | logger=false
model=fnet model.layers=fnet
task=wikitext103 task.source=sample ++model.backbone.softmax=adaptive \
    model.backbone.tied_embeddings=false model.backbone.softmax_cutoffs=[100] \
    optim.label_smoothing=0.1
model=sliding_window model.mixer.window=16 | runner=scaling runner.lengths=256
runner=scaling runner.lengths=(256,512) | runner=scaling runner.lengths=[256 | runner.timeout_s=10m
runner.lengths=[256] | runner.shard=1-8 | model=linear model.mixer.features=64
model.performer.features=64 | model.linear.chunk=8 | per_model.linear.mixer.chunk=3
model.backbone.layers=3 | model.backbone=[1]
task=text task.length=128 | task=listops task.units=words | +seed=3 | model=linear;softmax
optim.schedule='a | ~optim.clip | quickstart | linear | model linear | model:linear | model = linear
model= linear | nonsense | sweep=my sweep | --model=linear | --seed 3 | --steps=3 | --batch-size 32
--dry-run | --experiment quickstart | results= | results=~/x | report=yes | plugins=absent_package
task=table task.labels=[0,1] | task=table task.labels=[1.5,2] | seed=${nope} | optim.steps=${optim}
task.train_examples=20 | optim.batch_size=100000 | task=table task.train=it's.csv
"""
"""Each split as a shell splits it."""
ANSWERED = (
    ("model=linear,softmax", "lra run -m model=linear,softmax"),
    ("seed=range(0,5)", "lra run -m 'seed=range(0,5)'"),
    ("model.layers=fnet,sdpa", "As one list: 'model.layers=[fnet,sdpa]'"),
    ("hardware=H100", "did you mean 'h100'"),
    ("hardware=gpu", "unknown hardware 'gpu'. Known hardware: a100, cpu"),
    ("hardware.precision=bf16", "did you mean hardware.precision=bfloat16?"),
    ("optim.steps=1e3", "got 1000.0 (float); wanted a whole number"),
    ("optim.schedule=cosin", "did you mean optim.schedule=cosine?"),
    ("optim.learning_rate=1e-3", "did you mean 'optim.peak_learning_rate'?"),
    ("optim.batch=8", "did you mean 'optim.batch_size'"),
    ("steps=10", "did you mean 'optim.steps'?"),
    ("depth=3", "did you mean 'model.backbone.depth'?"),
    ("model=performer mixer.features=64", "did you mean 'model.mixer.features'?"),
    ("task.text.max_length=8", "did you mean 'task.max_length'?"),
    ("for_model.linear.model.mixer.chunk=3", "++for_model.linear.model.mixer.chunk=3"),
    ("optim=adamv", "did you mean 'adam"),
    ("size=Tiny", "did you mean 'tiny'?"),
    ("task=cifar10", "it is called 'image' here"),
    ("hardware=rtx4090", "Another card: one of these with hardware.memory_limit_bytes=…"),
    ("runner=scaling runner.lengths=256", "wanted a list of whole numbers, as in [1024]"),
    ("model=gated_scan", "One of your own: --config-dir DIR, with plugins=PACKAGE"),
    ("runner=training", "did you mean 'train'?"),
    ("experiment=quickstart", "wanted +experiment=quickstart"),
    ("++protocol=s4", "wanted +protocol=s4"),
    ("+model=linear", "wanted model=linear"),
    ("hydra/launcher=joblib", "`lra submit` hands them to workers"),
    ("seed=1,range(0,3)", "wanted range(start,stop,step), of numbers, which stands alone"),
    ("seed=ranges(3)", "did you mean 'range'"),
    ("-model=linear", "ignored explicit argument 'odel=linear'"),
)
"""What was typed, and a part of the answer: near matches, and ways out."""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LRA_DEBUG", raising=False)


@pytest.mark.parametrize("verb", ["run", "plan", "list", "show", "no verb"])
def test_a_carriage_return_is_shown_and_said(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([verb, "model=linear\r", "seed=1\r"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("lra: 'model=linear\\r' ends with a carriage return, as each line of a")
    assert main(["run", "model=li\rnear"]) == 2
    assert "'model=li\\rnear': wanted at most" in capsys.readouterr().err


def complaint(typed: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["run", *typed.split(), "runner.dry_run=true"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("lra: ")
    assert len(err.splitlines()) == 1, err
    assert len(err) < 900, err
    return err


def names(err: str, word: str) -> bool:
    """Return whether an answer has a word's key, and its value, however spaced."""
    key, _, value = word.lstrip("+~").partition("=")
    if f"unknown key {key!r}" in err:
        return True
    seen, wanted = (re.sub("[ ,]", "", text) for text in (err, value))
    return key.rpartition(".")[2] in err and wanted in seen


@pytest.mark.parametrize("typed", re.split(r" \| |\n", TYPED.strip()))
def test_a_slip_is_refused_by_key_and_value(typed: str, capsys: pytest.CaptureFixture[str]) -> None:
    err = complaint(typed, capsys)
    assert any(names(err, word) for word in typed.removeprefix("-m ").split()), err


@pytest.mark.parametrize(("typed", "part"), ANSWERED)
def test_near_matches_and_ways_out_are_told(
    typed: str, part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert part in complaint(typed, capsys)
