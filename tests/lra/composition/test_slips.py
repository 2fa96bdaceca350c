"""Plausible slips: each answer names the value seen and the words to type instead."""

import random
import shlex
from functools import cache
from pathlib import Path

import pytest
from fuzz import cases

from lra.cli import main
from lra.composition import answers
from lra.composition.answers import Choices, answer
from lra.composition.binding import schema
from lra.composition.catalogue import names, words
from lra.composition.complaints import keys_of
from lra.composition.compose import locate
from lra.composition.hydra_entry import entries
from lra.composition.runner_class import bundled
from lra.composition.spelling import accepted, meant
from lra.runners.training.optim import OptimConfig

TYPED = (
    ("hydra.sweeper.params={seed:'5,6'}", "what is swept stands as words of their own"),
    ("hydra/sweeper=optuna", "lra searches by a group of its own"),
    ("model=[linear,softmax]", "lra run -m model=linear,softmax"),
    ("task=[text]", "lra run -m task=text"),
    ("model=[]", "wanted one of adaptive_span"),
    ("model=linear,softmax", "lra run -m model=linear,softmax"),
    ("seed=range(0,5)", "lra run -m 'seed=range(0,5)'"),
    ("model.layers=fnet,sdpa", "As one list: 'model.layers=[fnet,sdpa]'"),
    ("model=*", "lra run -m 'model=glob(*)'"),
    ("-m task=all", "lra run -m 'task=glob(*)'"),
    ("hardware=gpu", "unknown hardware 'gpu': a GPU is one of a100, h100, h200, laptop_gpu."),
    ("hardware=cuda", "on this machine: hardware="),
    ("hardware=H100", "did you mean 'h100'"),
    ("hardware=h10", "on this machine: hardware="),
    ("hardware.device=gpu", "did you mean hardware.device=cuda?"),
    ("hardware.precision=fp16", "did you mean hardware.precision=float16?"),
    ("hardware.precision=bf16", "did you mean hardware.precision=bfloat16?"),
    ("hardware.threads=all", "got 'all'; wanted a whole number"),
    ("seed=one", "seed: got 'one'; wanted a whole number from 0 to 9223372036854775807"),
    ("seed=0..4", "-m 'seed=range(0,5)'"),
    ("-m seed=0-4", "-m 'seed=range(0,5)'"),
    ("-m seed=0:5", "-m 'seed=range(0,5)'"),
    ("seed=[0,1,2]", "-m seed=0,1,2"),
    ("seed=3;4", "-m seed=3,4"),
    ("seed=3,", "a comma too many; without it: seed=3;"),
    ("-m seed=3,4,", "a comma too many; without it: -m seed=3,4;"),
    ("-m seed=,3,,4", "a comma too many; without it: -m seed=3,4;"),
    ("runner.lengths=[8,16,]", "a comma too many; without it: 'runner.lengths=[8,16]'"),
    ("seed=,", "have a meaning of their own"),
    ("optim.clip=loguniform(1e-4,1e-2)", "is written 'optim.clip=tag(log, interval(1e-4,1e-2))'"),
    ("optim.clip=log_uniform(1,2)", "is written 'optim.clip=tag(log, interval(1,2))'"),
    ("optim.clip=uniform(1,2)", "is written 'optim.clip=interval(1,2)'"),
    ("optim.steps=randint(1,9)", "is written 'optim.steps=range(1,9)'"),
    ("optim.steps=1k", "optim.steps=1000"),
    ("optim.steps=1e3", "got 1000.0 (float); wanted a whole number: optim.steps=1000"),
    ("optim.steps=ten", "got 'ten'; wanted a whole number"),
    ("optim.steps=yes", "got 'yes'; wanted a whole number"),
    ("optim.steps='8'", "optim.steps=8"),
    ("optim.batch_size=32k", "optim.batch_size=32000"),
    ("optim.peak_learning_rate=fast", "got 'fast'; wanted a number"),
    ("optim.schedule=cosin", "did you mean optim.schedule=cosine?"),
    ("optim.clip=None", "wanted a number, or null: optim.clip=null"),
    ("optim.warmup_steps=5000", "type optim.warmup_steps=1000 or fewer"),
    ("optim.lr=1e-3", "Then type optim.peak_learning_rate=1e-3"),
    ("lr=1e-3", "Then type optim.peak_learning_rate=1e-3"),
    ("optim.learning_rate=1e-3", "Then type optim.peak_learning_rate=1e-3"),
    ("optim.batch=8", "Then type optim.batch_size=8"),
    ("steps=10", "Then type optim.steps=10"),
    ("batch_size=8", "Then type optim.batch_size=8"),
    ("epochs=3", "counted in steps"),
    ("optim=adamv", "did you mean 'adam"),
    ("optim=ftrl", "Known optims: adafactor, adagrad, adam, adamw"),
    ("optim=lion optim.momentum=0.9", "momentum is an option of optim=sgd"),
    ("optim=sgd ++optim.betas=[0.5,0.9]", "betas has nothing to act on under optimiser=sgd"),
    ("optim.schedule=plateau", "type runner.evaluate_every_steps=N, or choose another schedule"),
    ("optim.optimizer=sgd", "Then type optim.optimiser=sgd"),
    ("optim.schedule=noam", "did you mean optim.schedule=inverse_sqrt?"),
    ("task=wikitext103 task.source=sample ++model.backbone.softmax=adaptive "
     "model.backbone.tied_embeddings=false model.backbone.softmax_cutoffs=[100] "
     "optim.label_smoothing=0.1", "set it to 0, or model.backbone.softmax=full"),
    ("size=Tiny", "did you mean 'tiny'?"),
    ("task=ListOps", "did you mean 'listops'?"),
    ("task=cifar10", "it is called 'image' here"),
    ("model=transformer", "it is called 'softmax' here"),
    ("runner=training", "did you mean 'train'?"),
    ("logger=off", "it is called 'none' here"),
    ("logger=false", "wanted one of none, tensorboard, wandb_offline"),
    ("model=sliding_window model.mixer.window=16", "'model.mixer.window=[16]'"),
    ("model=fnet model.layers=fnet", "'model.layers=[fnet]'"),
    ("runner=scaling runner.lengths=256", "'runner.lengths=[256]'"),
    ("runner=scaling runner.lengths=(256,512)", "'runner.lengths=[256,512]'"),
    ("runner.lengths=[256]", "lengths is an option of runner=approximation, runner=decode"),
    ("runner.timeout_s=10m", "runner.timeout_s=600.0"),
    ("runner.shard=1-8", "wanted i/n with 1 <= i <= n, as in 2/8"),
    ("runner=scaling runner.lengths=[256", "a bracket is not closed"),
    ("model=linear model.mixer.features=64", "features is an option of model=performer"),
    ("model.performer.features=64", "model=performer model.mixer.features=64"),
    ("model.linear.chunk=8", "++for_model.linear.model.mixer.chunk=8"),
    ("task.text.max_length=8", "task=text task.max_length=8"),
    ("for_model.linear.model.mixer.chunk=3", "++for_model.linear.model.mixer.chunk=3"),
    ("per_model.linear.mixer.chunk=3", "did you mean 'for_model'"),
    ("model=performer features=64", "Then type model.mixer.features=64"),
    ("model=performer mixer.features=64", "Then type model.mixer.features=64"),
    ("depth=3", "Then type model.backbone.depth=3"),
    ("model.depth=3", "Then type model.backbone.depth=3"),
    ("model.backbone.layers=3", "Then type model.backbone.depth=3"),
    ("d_model=64", "Then type model.backbone.width=64"),
    ("task=text task.length=128", "Then type task.max_length=128"),
    ("task=listops task.units=words", "units is an option of task=corpus, task=wikitext103, task="),
    ("experiment=quickstart", "+experiment=quickstart"),
    ("protocol=s4", "+protocol=s4"),
    ("++protocol=s4", "+protocol=s4"),
    ("+model=linear", "without the plus: model=linear"),
    ("++size=tiny", "without the plus: size=tiny"),
    ("+seed=3", "without the plus it changes: seed=3"),
    ("seed=1,range(0,3)", "wanted range(start,stop,step), of numbers, which stands alone"),
    ("seed=ranges(3)", "did you mean 'range'"),
    ("model=linear;softmax", "-m model=linear,softmax"),
    ("model", "wanted model=NAME: adaptive_span"),
    ("=3", "=3: no key: wanted KEY=VALUE"),
    ("optim.schedule='a", "a quotation mark is not closed; as text it is"),
    ("~optim.clip", "optim.clip=null switches it off"),
    ("hydra/launcher=joblib", "`lra submit` with the same other words"),
    ("quickstart", "wanted +experiment=quickstart"),
    ("linear", "wanted model=linear"),
    ("model linear", "model=linear"),
    ("model:linear", "model=linear"),
    ("model = linear", "model=linear"),
    ("model= linear", "wanted"),
    ("nonsense", "wanted KEY=VALUE or GROUP=NAME"),
    ("sweep=my sweep", "'sweep=my sweep'"),
    ("--model=linear", "words have no dashes: model=linear"),
    ("--seed 3", "words have no dashes: seed=3"),
    ("-model=linear", "words have no dashes: model=linear"),
    ("--experiment quickstart", "words have no dashes: +experiment=quickstart"),
    ("--steps=3", "words have no dashes: steps=3"),
    ("--batch-size 32", "words have no dashes: batch_size=32"),
    ("--dry-run", "words have no dashes: runner.dry_run=true"),
    ("workers=4", "lra submit takes it as cluster.workers=4"),
    ("results=", "results: got ''; wanted the path of a folder, as in results=results"),
    ("results=~/x", "results=$HOME/x"),
    ("report=yes", "report=true"),
    ("plugins=absent_package", "there is no package 'absent_package'"),
    ("task=table task.labels=[0,1]", "a list of texts: \"task.labels=['0','1']\""),
    ("task=table task.labels=[1.5,2]", "got [1.5, 2] (list); wanted a list of texts"),
    ("shard=1/8", "Then type runner.shard=1/8"),
    ("task.train_examples=20", "optim.batch_size=20 or fewer, or raise task.train_examples"),
    ("optim.batch_size=100000", "a batch of 100,000 needs as many training examples"),
)  # fmt: skip
"""What was typed, split as a shell splits it, and a part of the answer."""
KEYS = cache(keys_of)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LRA_DEBUG", raising=False)
    monkeypatch.setattr("lra.composition.complaints.keys_of", lambda words: KEYS((*words,)))


@pytest.mark.parametrize("verb", ["run", "plan", "list", "show", "no verb"])
def test_a_carriage_return_is_shown_and_said(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([verb, "model=linear\r", "seed=1\r"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("lra: 'model=linear\\r' ends with a carriage return, as each line of a")
    assert main(["run", "model=li\rnear"]) == 2
    assert "'model=li\\rnear': wanted at most" in capsys.readouterr().err


def complaint(argv: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    assert main(["run", *argv, "runner.dry_run=true"]) == 2
    out, err = capsys.readouterr()
    assert err.startswith("lra: ")
    assert len(err.splitlines()) <= 4, err
    assert len(err) < 900, err
    return out + err


@pytest.mark.parametrize(("typed", "part"), TYPED)
def test_a_slip_is_answered_with_the_words_to_type(
    typed: str, part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert part in complaint(typed.split(), capsys)


@pytest.mark.fuzz
def test_a_list_that_the_shell_has_split_is_put_together(
    capsys: pytest.CaptureFixture[str],
) -> None:
    draw = random.Random(3)
    for _ in range(cases(12)):
        numbers = [str(draw.randint(1, 9)) for _ in range(draw.randint(2, 4))]
        whole = f"runner.lengths=[{', '.join(numbers)}]"
        words = ["runner=scaling", *whole.split(), "seed=3"]
        tight = shlex.quote(f"runner.lengths=[{','.join(numbers)}]")
        assert tight in complaint(words, capsys)
        (entry,) = entries(["runner=scaling", shlex.split(tight)[0], "seed=3"])
        assert entry.config["runner"]["lengths"] == [int(number) for number in numbers]


def test_every_choice_that_stands_alone_is_given_its_group() -> None:
    choices = Choices.of(None)
    for group, word in words().items():
        for name in names(group):
            for typed in ([name], [f"{group}:{name}"], [group, name], [group, "=", name]):
                assert f"{word}={name}" in str(answer(typed, choices)), typed
            assert answer([f"{word}={name}"], choices) is None
            wrong = f"+{group}={name}" if word == group else f"{group}={name}"
            assert f"{word}={name}" in str(answer([wrong], choices))


def test_every_row_of_the_table_answers_something(monkeypatch: pytest.MonkeyPatch) -> None:
    lines, choices = [typed.split() for typed, _ in TYPED], Choices.of(None)
    for row in answers.TABLE:
        monkeypatch.setattr(answers, "TABLE", (row,))
        assert any(answer(line, choices, row[0]) for line in lines), row


def test_what_is_guessed_fits_the_option() -> None:
    """For every option of every runner, family and of training: a guess is a value it takes."""
    kinds = {field.type for field in schema(OptimConfig).__dataclass_fields__.values()}  # type: ignore[attr-defined]
    for kind in bundled().values():
        kinds |= {field.type for field in schema(kind).__dataclass_fields__.values()}  # type: ignore[attr-defined]
    kinds |= {
        field.type
        for field in schema(
            locate("models.families.sliding_window.SlidingWindow")
        ).__dataclass_fields__.values()  # type: ignore[attr-defined]
    }
    slips = ("1k", "ten", "yes", "None", "3", "1.5", 16, 2.0, True, "a", "256 512", "(1,2)", "")
    for kind in sorted(kinds, key=str):
        assert accepted(kind)
        for value in slips:
            guess = meant(value, kind)
            if guess is not None and not hasattr(kind, "__members__"):
                assert fits(guess, kind), (value, kind, guess)


def fits(guess: str, kind: object) -> bool:
    """Return whether a word's value, as YAML, is of a type."""
    from lra.composition.binding import bind
    from lra.composition.yaml_text import parse

    def target(*, option: kind) -> None: ...  # type: ignore[valid-type]

    target.__annotations__["option"] = kind
    bind(target, {"option": parse(guess, "a guess")}, "house")
    return True
