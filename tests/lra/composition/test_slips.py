"""Good words, one of them spoilt: refused in one line, by key, by value and with the way out."""

import random
import re
import string
from collections.abc import Callable

import pytest
from fuzz import cases

from lra.cli import is_actionable, message
from lra.composition.compose import typed
from lra.composition.hydra_entry import entries

GROUPS = ("model=performer", "task=listops", "runner=scaling", "optim=adamw", "size=small",
          "hardware=h100", "scale=tiny")  # fmt: skip
OPTIONS = (
    "optim.steps=500", "optim.warmup_steps=5", "model.backbone.depth=3", "model.backbone.width=64",
    "model.mixer.features=32", "optim.peak_learning_rate=0.1", "optim.schedule=cosine",
    "runner.lengths=[64,128]", "hardware.precision=float16", "task.max_length=99",
    "task.data_seed=3",
    "hardware.training_processes=2", "runner.timeout_s=9.5", "model.backbone.positions=learned",
)  # fmt: skip
GOOD = (*GROUPS, *OPTIONS)
WRONG = {
    "[0-9]": ("x", "1e3x", "0..4", "3;4", "'8'", "true", "[1]", "{a: 1}", "''", "é", "nan", "½",
              "9" * 30 + "x"),
    "[a-z]": ("3", "true", "''", "nope", "数据", "{a: b}", "[cosine]", "x" * 300),
    r"\[": ("64", "x", "[x]", "[[1]]", "{a: 1}", "true", "[1.5]", "['']"),
}  # fmt: skip
"""By how a good value begins."""
FLAGS = (
    "--resolve", "--cfg", "--cfg=job", "--cfg=nope", "-c", "--package=x", "--package=optim",
    "--info", "--info=defaults", "--info=nope", "--run", "-m", "--multirun", "--config-dir",
    "--config-dir=nowhere", "--config-dir=/dev/null", "--config-name=nope", "--config-path=/",
    "--config-name=model/linear", "--experimental-rerun=x", "--shell-completion", "-sc", "--nope",
    "-x", "--", "-", "---", "--hydra-help", "--version", "-m=3", "-1",
)  # fmt: skip
MALFORMED = (
    "=3", "=", "", " ", "~", "+", "++", "~=3", "+=3", "seed", "model", "a.b", "seed==3", "seed =3",
    "seed= 3", ".seed=3", "seed.=3", "se..ed=3", "seed[0]=3", "model@optim=linear", "@=1", "a/b=1",
    "hydra=3", "hydra.mode=MULTIRUN", "hydra.mode=nope", "hydra/launcher=nope", "~hydra",
    "hydra.sweeper=3", "hydra/sweeper=nope", "hydra.sweeper.params=3", "hydra.run.dir=null",
    "hydra.sweeper.max_batch_size=0", "hydra.sweeper.params={seed: '1,2'}", "~hydra.sweep",
    "hydra.searchpath=[3]", "hydra.searchpath=3", "hydra.callbacks=3", "hydra.verbose=maybe",
    "hydra.launcher._target_=os.system", "hydra.job.name=null", "hydra.output_subdir=x",
    "for_model={linear: 3}", "++for_model={linear: 3}", "++per_model={linear: 3}",
    "++for_task={listops: {task: {name: 3}}}",
    "++for_task={listops: 3}", "++for_task={listops: {seed: 3}}", "++for_task={listops: {no: {}}}",
    "++for_runner={train: {runner: {dry_run: 3}}}", "++about=3", "+foo=3",
    "+model.foo=3", "++model.stack={}",
    "++task.foo=1", "++optim.foo=1", "++runner.foo=1", "~model.mixer", "~model.mixer.class_path",
    "~task.class_path", "~model.name", "~runner.name", "~hardware.name", "~logger.mode", "~seed",
    "+seed=3", "~nope", "~optim.steps=3", "+experiment=nope", "+protocol=3", "+experiment=null",
    "model=linear/../softmax", "model=/etc/passwd", "model=../config", "model=config", "task=.",
)  # fmt: skip
WAY_OUT = re.compile(
    r"one list|in a text|wanted|did you mean|[Kk]nown|plain text write|omit|remove|cannot be "
    r"deleted|`lra"
)


def misspelt(draw: random.Random, name: str) -> str:
    """Return a name with one letter of its last part left out, doubled, swapped or another."""
    at = draw.randrange(name.rfind(".") + 2, len(name) - 1)
    letter = name[at]
    within = draw.choice(["", letter * 2, name[at + 1] + letter, draw.choice("qxz")])
    return name[:at] + within + name[at + (2 if within[1:] and within[0] != letter else 1) :]


def of_key(draw: random.Random) -> tuple[str, str, str, list[str]]:
    good = draw.choice(OPTIONS)
    key, _, value = good.partition("=")
    wrong = misspelt(draw, key)
    return good, f"{wrong}={value}", f"'{wrong}'", [f"'{key}'"]


def of_name(draw: random.Random) -> tuple[str, str, str, list[str]]:
    good = draw.choice(GROUPS)
    group, _, name = good.partition("=")
    wrong = misspelt(draw, name)
    return good, f"{group}={wrong}", f"unknown {group} '{wrong}'", [f"'{name}'"]


def of_value(draw: random.Random) -> tuple[str, str, str, list[str]]:
    good = draw.choice(OPTIONS)
    key, _, value = good.partition("=")
    wrong = draw.choice(next(v for begins, v in WRONG.items() if re.match(begins, value)))
    return good, f"{key}={wrong}", key, [re.escape(wrong.strip("'\"{}[]")[:40]).partition(":")[0]]


def of_brackets(draw: random.Random) -> tuple[str, str, str, list[str]]:
    good = draw.choice(GOOD)
    key, _, value = good.partition("=")
    at = draw.randrange(len(value) + 1)
    wrong = value[:at] + draw.choice("[{}]('\"") + value[at:]
    return good, f"{key}={wrong}", f"{key}={wrong}: ", ["for plain text write"]


def of_shape(draw: random.Random) -> tuple[str, str, str, list[str]]:
    good = draw.choice(GOOD)
    key, _, value = good.partition("=")
    wrong = draw.choice([f"={value}", key, "", " ", "~", "+=", f" ={value}", f"{key}:{value}",
                         f"é{key}={value}", f"{key}é={value}", f"{value}", "="])  # fmt: skip
    return good, wrong, wrong.strip(), ["wanted KEY=VALUE"]


def of_sign(draw: random.Random) -> tuple[str, str, str, list[str]]:
    good = draw.choice([word for word in GOOD if "[" not in word])
    sign = draw.choice(["~", "+", "--"])
    part = {
        "~": "options cannot be deleted",
        "+": "remove the plus|wanted",
        "--": "`lra run --help`",
    }
    return good, sign + good, good, [part[sign]]


def of_many(draw: random.Random) -> tuple[str, str, str, list[str]]:
    good = draw.choice(OPTIONS)
    key, _, value = good.partition("=")
    wrong = draw.choice([f"{value},{value}", f"{value},", "range(1,3)", "nope(1)", "range(1,", ",",
                         "choice(a,b)", "${nope}", "${optim", "a\\,${b.c}"])  # fmt: skip
    return good, f"{key}={wrong}", f"{key}={wrong}: ", []


WAYS = (of_key, of_name, of_value, of_brackets, of_shape, of_sign, of_many)


def refusal(words: list[str]) -> str:
    """Return what is said of words; "" where they are composed."""
    try:
        for entry in entries(words):
            typed(entry.config)
    except Exception as error:  # noqa: BLE001  of which only some are for a person to mend
        return message(error) if is_actionable(error) else f"a bug:\n{error!r}"
    return ""


@pytest.mark.parametrize("way", WAYS)
def test_a_spoilt_word_is_refused_with_the_way_out(way: Callable[..., tuple[str, ...]]) -> None:
    draw = random.Random(way.__name__)
    faults = []
    for _ in range(cases(12)):
        good, wrong, named, parts = way(draw)
        words = draw.sample([word for word in GOOD if word != good], len(GOOD) - 1)
        words.insert(draw.randrange(len(words)), wrong)
        said = refusal(words)
        told = named in said and all(re.search(part, said, re.IGNORECASE) for part in parts)
        if not told or not WAY_OUT.search(said) or len(said) > 900 or "\n" in said:
            faults.append(f"{good} as {wrong!a}: {said or 'composed'}")
    assert not faults, "\n".join(faults)


def test_the_good_words_are_good() -> None:
    assert refusal([*GOOD]) == ""


def test_of_words_that_are_doubled_the_last_holds() -> None:
    for one, other in (("model=linear", "model=fnet"), ("seed=3", "seed=4")):
        (twice,), (once,) = entries([one, other]), entries([other])
        assert twice.config == once.config


@pytest.mark.parametrize(
    ("typed_words", "part"),
    [
        ("model=linear,softmax", "several values need a sweep. Add -m"),
        ("hardware=gpu", "Known hardware: a100, cpu"),
        ("steps=10", "did you mean 'optim.steps'?"),
        ("model=performer mixer.features=64", "did you mean 'model.mixer.features'?"),
        ("for_model.linear.model.mixer.chunk=3", "++for_model.linear.model.mixer.chunk=3"),
        ("model=gated_scan", "in a YAML file of yours, add --config-dir DIR"),
        ("experiment=quickstart", "wanted +experiment=quickstart"),
        ("+model=linear", "wanted model=linear"),
        ("hydra/launcher=joblib", "use `lra submit` to start workers"),
        ("+hydra/launcher=ray", "lra does not use the launchers of Hydra"),
        ("hydra.launcher._target_=os.system", "lra does not use the launchers of Hydra"),
        ("hydra.sweeper.n_trials=3", "search=NAME to search"),
        ("hydra.sweeper.params={seed:'5,6'}", "KEY=1,2"),
        ("-m hydra/sweeper=optuna", "search=NAME to search"),
        ("-model=linear", "odel=linear"),
        ("model=fnet\r", "printable characters"),
    ],
)
def test_ways_out_are_told(typed_words: str, part: str) -> None:
    assert part in refusal(typed_words.split(" "))


@pytest.mark.share(4)
@pytest.mark.parametrize("word", [*FLAGS, *MALFORMED])
def test_a_malformed_word_is_read_or_refused(word: str) -> None:
    for words in ([word], ["-m", "seed=1,2", word, "+experiment=quickstart"]):
        said = refusal(words)
        assert not said.startswith("a bug"), said
        assert len(said) < 900, said


def test_any_bytes_are_read_or_refused() -> None:
    draw = random.Random(7)
    letters = [*string.printable, *"éß数据न🙂\u200d\u3000\u202e\x1b\x7f\ud800−“，"]
    for _ in range(cases(60)):
        word = "".join(draw.choices(letters, k=draw.randint(1, 12)))
        said = refusal([draw.choice(["", "seed=", "task.path=", "model="]) + word])
        assert not said.startswith("a bug"), (word, said)
        assert len(said) < 900, (word, said)
