"""What cannot be searched is one sentence, before anything is trained or written."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lra.cli import main
from lra.composition.hydra_entry import entries
from lra.errors import ConfigError
from lra.runners.storage.seals import seal
from lra.tuning.declaration import declared_search
from lra.tuning.record import Arm, Record, SearchOptions, read_record, record_file

RATE = "optim.peak_learning_rate=tag(log, interval(1e-4, 1e-2))"
WORDS = ("search=halton", "task=mqar", "model=linear", "logger=none", "optim.steps=100")
CASES = [
    ((RATE, "search.metric=test_accuracy"), "a search chooses on validation data; test data"),
    ((RATE, "search.metric=accurate"), "accuracy"),
    ((RATE, "search.metric=bits_per_character"), "unknown metric of task=mqar"),
    ((RATE, "seed=0,1"), "search.seeds and search.final_seeds"),
    ((RATE, "seed=3"), "search.seeds and search.final_seeds"),
    ((), "needs an option with a range"),
    (("optim.nothing=interval(0, 1)",), "unknown option 'nothing'"),
    (("model=linear,performer", "model.mixer.features=choice(64, 128)"),
     "If only one family has an option, set its range in search.for_model"),
    ((RATE, "search.for_model.fnet.model.mixer.x=choice(1, 2)"), "unknown model of this search"),
    ((RATE, "optim.peak_learning_rate=0.1"), "got both a value and a range for this option"),
    (("optim.clip=interval(2, 1)",), "the smaller one first"),
    (("search=grid", RATE), "a grid needs single values, but this is an interval; list values, "
    "for example choice("),
    (("search=grid", "optim.clip=range(1, 99)"), "wanted search.trials=98 or more"),
    ((RATE, "search.trials=0"), "search: trials"),
    ((RATE, "search.keep=1.5"), "wanted a fraction between 0 and 1"),
    ((RATE, "search.rungs=[1.5]"), "wanted increasing fractions"),
    ((RATE, "search.rungs=[0.5,0.2]"), "wanted increasing fractions"),
    ((RATE, "search.rungs=[0.001]"), "wanted more than the warm-up"),
    ((RATE, "search.rungs=[0.25]", "optim.warmup_steps=30"), "wanted more than the warm-up"),
    ((RATE, "search.seeds=[0,0]"), "different whole numbers"),
    ((RATE, "search.final_seeds=[1000]"), "different whole numbers"),
    ((RATE, "runner=scaling"), "a search trains models; wanted runner=train"),
    ((RATE, "runner.shard=1/2"), "lra submit divides trials"),
    ((RATE, "runner.until_step=3"), "the search itself sets this option"),
    (("model.backbone.dropout=interval(-0.5, 0.5)",), "dropout"),
    ((RATE, "search.trials=90000", "search.studies=9"), "wanted at most 100,000"),
    ((RATE, "++search.params={optim.clip: 3}"), "wanted a text like"),
    ((RATE, "search.trails=3"), "trials"),
    (("optim.clip=range(16,inf)",), "a finite number of values"),
    (("optim.clip=range(1,1000000000)",), "has 999,999,999 values; wanted at most 10,000, or"),
    (("optim.clip=range(1,1000000)",), "has 999,999 values; wanted at most 10,000, or interval("),
    (("optim.clip=range(0,1,0.0)",), "step other than 0"),
    ((f"optim.clip=range(1,{10**400})",), "a finite number of values"),
    ((RATE, "search.for_model=null"), "search.for_model: got None; wanted a mapping from models"),
    ((RATE, "++search.for_model=3"), "search.for_model: got 3; wanted a mapping"),
    ((RATE, "++search.for_model={linear: 3}"), "search.for_model.linear: got 3; wanted a mapping"),
    ((RATE, "search.params=null"), "search.params: got None; wanted a mapping from options"),
    ((RATE, "++search.params=[1]"), "++search.params=[1]: the files have a mapping"),
    ((RATE, "++search.for_model=[1]"), "++search.for_model=[1]: the files have a mapping"),
    ((RATE, "search.rungs={a: 1}"), "search.rungs={a:1}: the files have a mapping or a list"),
    (("seed=choice(0,1)",), "search.seeds and search.final_seeds"),
    (("search.for_model.linear.seed=range(0,3)",), "search.seeds and search.final_seeds"),
    (("++search.params={seed: 'choice(0,1)'}",), "search.seeds and search.final_seeds"),
    ((RATE, "runner.evaluate_splits=[test]"), "the search itself sets this option"),
    (("runner.evaluate_splits=choice([test],[train])",), "the search itself sets this option"),
    (("runner.until_step=range(1,9)",), "the search itself sets this option"),
    (("++search.params={results: 'choice(a,b)'}",), "does not change the score"),
    (("sweep=choice(a,b)",), "does not change the score"),
    (("runner.timeout_s=choice(8,9)",), "does not change the score"),
    (("search.trials=choice(8,9)",), "does not change the score"),
    (("runner.log_every_steps=choice(8,9)",), "does not change the score"),
    (("task=listops", "task.source=sample", "task.processes=choice(1,2)"), "this option does "
                                                                           "not change the score"),
    (("search.for_model.linear.model=choice(linear,sdpa)",), "a search tunes each model by itself"),
    (("++search.params={task: 'choice(mqar,listops)'}",), "changes the data of task=mqar"),
    (("++search.params={runner: 'choice(train,certify)'}",), "runner=certify: a search trains"),
    (("task.data_seed=choice(0,1)",), "scores on the same validation examples; to compare values"),
    (("task.length=interval(60,200)",), "each is tuned separately: task.length=60,200"),
    (("task.validation_examples=tag(log, interval(10,99))",), "the same validation examples"),
]  # fmt: skip


def of(tmp_path: Path, *words: str) -> None:
    declared_search(entries([*WORDS, f"results={tmp_path / 'r'}", *words])).write(tmp_path / "r")


@pytest.mark.parametrize(("words", "said"), CASES)
def test_it_is_refused(words: tuple[str, ...], said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        of(tmp_path, *words)
    assert said in str(error.value)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "r").exists()


LISTOPS = ("task=listops", "task.source=sample")
DATA = [
    (LISTOPS, "task.max_length=choice(60,200)"),
    (LISTOPS, "scale=choice(full,tiny)"),
    (("task=text", "task.source=sample"), "task.cut=choice(first,random)"),
    (("task=retrieval", "task.source=sample"), "task.max_length=choice(60,200)"),
    (("task=enwik8", "task.source=sample"), "task.evaluation_length=choice(64,128)"),
]


@pytest.mark.parametrize(("words", "range_"), DATA)
def test_what_changes_validation_is_no_dimension_but_sets_arms_apart(
    words: tuple[str, ...], range_: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="scores on the same validation examples"):
        of(tmp_path, *words, range_)
    option, _, values = range_.partition("=choice")
    of(tmp_path, *words, RATE, f"{option}={values.strip('()')}")
    record = read_record(tmp_path / "r", "adhoc")
    assert len(record.arms) == 2


def test_a_nameless_arm_is_one_model(tmp_path: Path) -> None:
    words = [word for word in WORDS if not word.startswith("model=")]
    with pytest.raises(ConfigError, match="a search tunes each model by itself"):
        declared_search(entries([*words, f"results={tmp_path / 'r'}", "model=choice(linear,sdpa)"]))


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("run", ("task=text",)),  # whose data are not there
        ("submit", ("task=corpus", "task.train=nothing.txt")),
        # each of which alone is possible
        ("run", ("task=mqar", "optim.steps=choice(9,100)", "optim.warmup_steps=choice(1,20)")),
    ],
)
def test_a_refused_command_leaves_no_record(
    command: str, words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LRA_DATA", str(tmp_path / "data"))
    shared = [word for word in WORDS if not word.startswith(("task=", "optim."))]
    assert main([command, *shared, RATE, f"results={tmp_path / 'r'}", *words]) == 2
    assert not (tmp_path / "r" / "searches").exists()


def test_rungs_and_agents_beside_what_they_do_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lra.tuning.declaration.check_installed", lambda _: None)
    with pytest.raises(ConfigError, match="proposes points after complete trainings"):
        of(tmp_path, "search=tpe", RATE, "search.rungs=[0.6]")
    monkeypatch.setenv("WANDB_SWEEP_ID", "abc")
    with pytest.raises(ConfigError, match="an agent of W&B starts single trainings"):
        of(tmp_path, RATE)


def test_a_task_without_validation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    from lra.tasks.diagnostics.mqar import MQAR

    spec = MQAR.spec.func  # type: ignore[attr-defined]
    monkeypatch.setattr(
        MQAR, "spec", property(lambda self: replace(spec(self), sizes={"train": 99, "test": 9}))
    )
    with pytest.raises(ConfigError, match="task=mqar has no validation split"):
        of(tmp_path, RATE)


ANOTHER = [
    (("optim.clip=interval(0.5, 2)",), "got params="),
    ((RATE, "search.draw=1"), "got draw="),
    ((RATE, "search.metric=loss"), "got metric="),
    ((RATE, "search.rungs=[0.9]"), "got rungs="),
    ((RATE, "search=random"), "got sampler="),
    ((RATE, "optim.steps=90"), ": got arguments="),
    ((RATE, "search.trials=2"), "wanted at least"),
    ((RATE, "search.final_seeds=[1]"), "got final_seeds="),
]


@pytest.mark.parametrize(("words", "said"), ANOTHER)
def test_another_search_of_the_same_name(words: tuple[str, ...], said: str, tmp_path: Path) -> None:
    of(tmp_path, RATE, "search.trials=3")
    before = record_file(tmp_path / "r", "adhoc").read_bytes()
    with pytest.raises(ConfigError) as error:
        of(tmp_path, "search.trials=3", *words)
    assert said in str(error.value)
    assert "sweep=NAME" in str(error.value)
    assert record_file(tmp_path / "r", "adhoc").read_bytes() == before


def test_more_of_the_same_search(tmp_path: Path) -> None:
    of(tmp_path, RATE, "search.trials=3")
    few = read_record(tmp_path / "r", "adhoc")
    of(tmp_path, RATE, "search.trials=5", "search.studies=2", "model=sdpa",
       "search.final_seeds=[1,2,3,4]", "logger=wandb_offline")  # fmt: skip
    many = read_record(tmp_path / "r", "adhoc")
    assert [arm.model for arm in many.arms] == ["linear", "sdpa"]
    assert many.points["0"][:3] == few.points["0"]
    assert {study: len(points) for study, points in many.points.items()} == {"0": 5, "1": 5}


def test_a_record_that_is_torn_or_newer(tmp_path: Path) -> None:
    of(tmp_path, RATE)
    path = record_file(tmp_path / "r", "adhoc")
    whole = path.read_bytes()
    path.write_bytes(whole[:-100])
    with pytest.raises(ConfigError, match="is damaged"):
        of(tmp_path, RATE)
    content = json.loads(whole)
    del content["digest"]
    path.write_bytes(seal({**content, "schema": 99}))
    with pytest.raises(ConfigError, match="has schema 99"):
        of(tmp_path, RATE)


def put(*path: Any) -> Callable[[Any], None]:
    """Return what replaces the value at a path, whose last part is the new value."""

    def change(content: Any) -> None:
        for key in path[:-2]:
            content = content[key]
        content[path[-2]] = path[-1]

    return change


ODD = [
    (put("options", "trials", "x"), "options.trials: got 'x'; wanted a whole number"),
    (put("options", "seeds", [[1]]), "options.seeds: got"),
    (put("options", "new", 1), "options: unknown option 'new'"),
    (put("options", "studies", 2**60), "trials in all studies; wanted at most 100,000"),
    (put("fixed", 0, 7), "wanted a list[str]"),
    (put("arms", []), "arms must be at least 1"),
    (put("arms", 0, 3), "holds a int; wanted a JSON object"),
    (put("arms", 0, "words", None), "words: got None; wanted a list[str]"),
    (put("arms", 0, "steps", 0), "steps must be at least 1"),
    (put("params", {"optim.clip": "3"}), "a single value is no range"),
    (put("for_model", {"linear": []}), "wanted a dict[str, dict[str, str]]"),
    (put("points", "0", 0, ["x"]), "wanted a dict[str, list[list[float]]]"),
    (put("points", "0", 0, [1.5]), "point must lie in [0, 1)"),
    (put("sampler", "sobol"), "unknown sampler 'sobol'"),
    (put("name", "another"), "name: got another; wanted adhoc"),
    (lambda content: content.pop("arms"), "arms: got None"),
    (lambda content: content["arms"][0].pop("title"), "title: got None; wanted a str"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "said"), ODD, ids=[said for _, said in ODD])
def test_an_odd_record_is_one_sentence(
    change: Callable[[Any], object], said: str, tmp_path: Path
) -> None:
    arm = Arm(("model=linear",), "model=linear", "linear", 9, {"optim.clip": 1.0})
    Record(
        name="adhoc", sampler="random", options=SearchOptions(trials=2), fixed=("optim.steps=9",),
        arms=(arm,), params={"optim.clip": "interval(1, 2)"}, for_model={},
    ).complete().write(tmp_path)  # fmt: skip
    assert read_record(tmp_path, "adhoc") is not None
    path = record_file(tmp_path, "adhoc")
    content = json.loads(path.read_bytes())
    del content["digest"]
    change(content)
    path.write_bytes(seal(content))
    with pytest.raises(ConfigError) as error:
        read_record(tmp_path, "adhoc")
    assert said in str(error.value)
    assert "move it away" in str(error.value)
    assert "\n" not in str(error.value)


def test_words_of_a_search_without_one() -> None:
    with pytest.raises(ConfigError, match="add search=halton"):
        entries(["search.trials=3", "model=linear"])
    for words in (["-m", "optim.clip=interval(1, 2)"], ["optim.clip=interval(1, 2)"]):
        with pytest.raises(
            ConfigError, match="lra can only search an interval, so add search=halton"
        ):
            entries(words)
