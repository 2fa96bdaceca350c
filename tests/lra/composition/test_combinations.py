"""What is composed here is what Hydra composes, key by key, and a combination what it is alone."""

import copy
import json
import random
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import hydra
import pytest
from fuzz import cases
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf

from lra.composition.combinations import MOST, expand
from lra.composition.composer import Composer
from lra.composition.files import Files, our_files
from lra.composition.hydra_entry import entries
from lra.composition.placement import by_omegaconf
from lra.errors import ConfigError

COMPOSER = "lra.composition.composer"
GROUPS = (
    "model=linear,performer", "model=softmax", "task=listops,text", "size=tiny,small", "size=base",
    "runner=train,scaling", "optim=adamw", "hardware=cpu,h100", "logger=none",
)  # fmt: skip
WORDS = (
    "seed=range(0,3)", "seed=4,2", "optim.steps=100,200", "optim.peak_learning_rate=1e-3,2e-3,0.1",
    "model.backbone.dropout=0,0.1", "task.data_seed=1,2", "optim.clip=null,0.5", "optim.clip=null",
    "sweep=a,b", "runner.dry_run=true,false", "optim.betas=[0.9,0.9],[0.8,0.99]", "optim.steps=7",
    "model.layers=[],[fnet,sdpa]", "results='a b','c,d'", "task.path=null,x,'null','1'",
    "plugins=[a],[b,c]", "++optim.extra=1,2", "+extra=a,b", "optim.batch_size=5",
    "report=null", "+optim.extra=[1]", "++extra.deep.new=1,x", "optim.betas.0=0.5,0.6",
    "optim={steps: 3},{steps: 4, batch_size: 2}", "optim={steps: 9}", "++optim.new={a: 1}",
    "task.data_seed=${seed}", "sweep=s${seed}", "model.backbone={width: ${seed}}",
    "model.backbone={width: 16},{width: 32}", "model.backbone.width=16,32",
    "optim.schedule='a=b',x", "+optim={new: 1}", "model.backbone.softmax_cutoffs=[1,2],[3]",
    "size=glob(t*)", "optim.steps=20,400",
)  # fmt: skip
OF_TABLES = (
    "++for_model={linear: {model: {backbone: {width: 8}}}}",
    "++for_model={performer: {model: {mixer: {features: 8}}}}",
    "++for_task.listops.task.max_depth=3,4", "~for_runner", "++for_runner.train.runner.keep=best",
)  # fmt: skip
PRESETS = (
    "+experiment=quickstart", "+protocol=nystrom", "+protocol=s4,mega", "+experiment=span,families",
    "+experiment=lra_table1", "scale=tiny",
)  # fmt: skip

MOST_COMBINATIONS = 4
"""Of one line."""
SPLIT = re.compile(r" (?=[~+a-z]+[\w.@/]*=|~)")


def line(draw: random.Random, groups: Sequence[str], words: Sequence[str]) -> list[str]:
    """Return words of several keys: of two with one key, Hydra also reads the one that none has."""
    typed = [*draw.sample(groups, draw.randint(0, 2)), *draw.sample(words, draw.randint(1, 4))]
    draw.shuffle(typed)
    return [*{word.partition("=")[0]: word for word in typed}.values()]


def few(words: Sequence[str]) -> bool:
    """Return whether the values of a line's words make few combinations."""
    composer = Composer(our_files())
    try:
        return len(expand([composer.parse(word) for word in words])) <= MOST_COMBINATIONS
    finally:
        GlobalHydra.instance().clear()


def plainly(words: Sequence[str], folder: Path, monkeypatch: Any) -> list[Any]:
    """Return what Hydra as it comes hands to a job: configuration and words."""
    jobs: list[Any] = []

    def job(config: Any) -> None:
        task_words = OmegaConf.to_container(HydraConfig.get().overrides.task, resolve=False)
        jobs.append((OmegaConf.to_container(config, resolve=True), tuple(task_words)))

    places = (f"hydra.sweep.dir={folder}", f"hydra.run.dir={folder}")
    monkeypatch.setattr(sys, "argv", ["lra", *words, *places])
    hydra.main(version_base="1.3", config_path="pkg://lra.conf", config_name="config")(job)()
    return jobs


def result_of(call: Callable[[], Any]) -> Any:
    """Return what a call returns, or that it refused."""
    try:
        return call()
    except Exception as error:  # noqa: BLE001  Hydra and OmegaConf raise many types
        return f"refused: {type(error).__name__}"


def alike(entry: Any, tree: Any) -> bool:
    ours = {key: value for key, value in tree.items() if key != "search"}  # no part of a run
    return json.dumps(entry.config, sort_keys=True) == json.dumps(ours, sort_keys=True)


def without_checks(monkeypatch: Any) -> None:
    """Have entries composed, and not looked at: invalid ones compare as well as others."""
    monkeypatch.setattr("lra.composition.hydra_entry.check", lambda *_: None)
    monkeypatch.setattr("lra.composition.protocol.notes", lambda _: [])
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")


ALONE = (
    "model=linear,performer task=text seed=4,2", "seed=range(0,3) +extra=a,b", "seed=choice(1,2)",
    "optim.peak_learning_rate=1e-3,0.1 model.backbone.dropout=0,0.1 size=small",
    "optim.clip=null,0.5 task.path=null,x,'null','1'", "size=glob(t*) optim.betas.0=0.5,0.6",
    "optim.betas=[0.9,0.9],[0.8,0.99] ++optim.extra=1,2", "runner=train,scaling model.layers=[]",
    "model.layers=[],[fnet,sdpa] model=softmax hardware=cpu,h100", "results='a b','c,d'",
    "plugins=[a],[b,c] ++extra.deep.new=1,x", "optim={steps: 3},{steps: 4, batch_size: 2}",
    "task.data_seed=${seed} seed=1,2", "sweep=s${seed} report=null logger=none",
    "model.backbone={width: ${seed}} seed=3", "model.backbone={width: 16},{width: 32}",
    "optim.schedule='a=b',x optim=adamw", "+optim={new: 1} ++optim.new2={a: 1}", "optim.steps=7",
    "hydra.verbose=true model.backbone.softmax_cutoffs=[1,2],[3]", "+optim.extra=[1] seed=1",
    "model=reformer,tlb task=image size=large runner=decode,span seed=3", "optim={steps: 9}",
    "model=tlb task=listops,image hardware=a100 logger=wandb_online", "task=${oc.env:USER}",
    "optim={new: 1}", "optim.clip={a: 1}", "optim=3", "+seed=3", "model.layer_options={a: 1}",
    "~optim.micro_batch_size", "hydra.sweeper.params={seed: '5,6'}", "model@optim=linear",
    "model=linear model=config", "optim.nope=3", "hydra.mode=nope", "hydra.run.dir=null",
)  # fmt: skip
"""Words without what Hydra does not have: tables, protocols and presets in their places."""


@pytest.mark.share(4)
@pytest.mark.parametrize("typed", ALONE)
def test_a_sweep_is_what_hydra_composes(typed: str, tmp_path: Path, monkeypatch: Any) -> None:
    without_checks(monkeypatch)
    monkeypatch.chdir(tmp_path)
    # A warm-up that a word names is never cut, and Hydra cuts none.
    words = ["-m", *SPLIT.split(typed), "optim.warmup_steps=0"]
    composed = result_of(lambda: entries(words))
    wanted = result_of(lambda: plainly(words, tmp_path / "hydra", monkeypatch))
    if isinstance(wanted, str):
        assert isinstance(composed, str)
        return
    assert not isinstance(composed, str), composed
    for entry, (tree, task_words) in zip(composed, wanted, strict=True):
        assert entry.overrides == task_words
        assert alike(entry, tree)


@pytest.mark.fuzz
def test_a_combination_is_what_it_is_alone(tmp_path: Path, monkeypatch: Any) -> None:
    """Whatever a sweep composes once for many of its runs, tables and presets among it."""
    without_checks(monkeypatch)
    monkeypatch.chdir(tmp_path)
    draw = random.Random(20_260_111)
    compared = 0
    while compared < cases(2):
        words = line(draw, GROUPS + PRESETS, WORDS + OF_TABLES)
        swept = result_of(lambda words=words: entries(["-m", *words])) if few(words) else "many"
        if isinstance(swept, str):
            continue
        compared += 1
        for entry in draw.sample(swept, min(3, len(swept))):
            (alone,) = entries(["--run", *entry.overrides])
            assert alone.config == entry.config, entry.overrides


def counted(monkeypatch: Any, place: str, call: Callable[..., Any]) -> list[Any]:
    """Return a list that holds the arguments of every call of a function from now on."""
    calls: list[Any] = []
    monkeypatch.setattr(place, lambda *a, **k: calls.append(a) or call(*a, **k))
    return calls


def test_combinations_share_what_they_have_in_common(monkeypatch: Any) -> None:
    """Files are merged once for each choice of them, however many values are swept."""
    merged = counted(monkeypatch, f"{COMPOSER}.Composer._compose_files", Composer._compose_files)
    slowly = counted(monkeypatch, "lra.composition.placement.by_omegaconf", by_omegaconf)
    swept = entries(["-m", "model=linear,softmax", "seed=range(0,50)", "optim.steps=1,2"])
    assert (len(swept), len(merged), len(slowly)) == (200, 2, 0)
    first, other = swept[0].config, swept[2].config
    assert first["seed"] != other["seed"]
    assert first["task"] is other["task"]


def test_what_is_kept_compose_files_is_theirs_alone(tmp_path: Path, monkeypatch: Any) -> None:
    """Whatever became of a configuration, and wherever and with what the next one is composed."""
    words = ["model=linear", "size=small"]
    (first,) = entries(words)
    kept = copy.deepcopy(first.config)
    first.config["model"]["mixer"]["chunk"] = 99
    first.config["task"].clear()
    entries(["model=softmax", "size=tiny"])
    assert entries(words)[0].config == kept
    (tmp_path / "experiment").mkdir()
    for name in ("linear", "softmax"):
        preset = f"# @package _global_\nhydra: {{sweeper: {{params: {{model: {name}}}}}}}\n"
        (tmp_path / "experiment" / f"{name}.yaml").write_text(preset)
    composer = Composer(Files([tmp_path]))
    for name in ("linear", "softmax"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        own = composer.own_part([f"model={name}"]).hydra
        assert (own.runtime.choices["model"], own.runtime.cwd) == (name, str(Path.cwd()))
        own = composer.own_part([f"+experiment={name}"]).hydra
        assert own.sweeper.params == {"model": name}


OWN = (
    "defaults: [/size: large]\nname: other",
    "# @package _global_\nseed: 5",
    "name: other\nmixer: {chunk: '${seed}'}",
    "name: other\nmixer: null",
    "name: other\nbackbone: {depth: 7}\nlayers: [fnet]",
    "name: other\nhydra: {verbose: true}",
)
"""Files of models."""


def test_hydra_is_asked_once(monkeypatch: Any) -> None:
    """It says once, with its own part, which files there are and in which order."""
    our_files.cache_clear()
    own_parts = counted(monkeypatch, f"{COMPOSER}.compose", hydra.compose)
    assert len(entries(["-m", "model=reformer,tlb", "task=image,listops", "size=small"])) == 4
    assert (len(our_files().lists), len(own_parts)) == (1, 1)


def test_files_of_ones_own_are_merged_as_hydra_merges_them(
    tmp_path: Path, monkeypatch: Any
) -> None:
    without_checks(monkeypatch)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "conf" / "model").mkdir(parents=True)
    for number, text in enumerate(OWN):
        (tmp_path / "conf" / "model" / f"own{number}.yaml").write_text(text)
    own = ",".join(f"own{number}" for number in range(len(OWN)))
    words = ["--config-dir", "conf", "-m", f"model=linear,{own}", "size=small"]
    swept = entries(words)
    wanted = plainly(words, tmp_path / "hydra", monkeypatch)
    assert len(swept) == len(wanted) == 1 + len(OWN)
    assert all(map(alike, swept, [tree for tree, _ in wanted]))


@pytest.mark.parametrize("word", ["size=small", "model=linear", "hardware=h100"])
def test_a_word_wins_over_what_a_preset_of_ones_own_brings_along(
    word: str, tmp_path: Path, monkeypatch: Any
) -> None:
    """A file in another place, one with files of its own, one that sets a part of Hydra's own."""
    without_checks(monkeypatch)
    for file, text in {
        "experiment/mine": "# @package _global_\ndefaults: [override /size: mine, override /model: "
        "mine, override /hardware: mine]\n",
        "size/mine": "depth: 9\n",
        "model/mine": "defaults: [/extra@extra: a]\nname: mine\n",
        "hardware/mine": "# @package _global_\nhydra: {job: {name: mine}}\n",
        "extra/a": "b: 3\n",
    }.items():
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / f"{file}.yaml").write_text(text)
    words = [f"--config-dir={tmp_path}", "+experiment=mine", word]
    entries([words[0], "+experiment=mine"])
    ((tree, _),) = plainly(words, tmp_path / "hydra", monkeypatch)
    (entry,) = entries(words)
    assert alike(entry, tree)


@pytest.mark.parametrize(
    ("word", "complaint"),
    [
        ("seed=range(0,1000000000)", "seed alone has 1,000,000,000"),
        ("seed=range(0,1,1e-300)", f"at most {MOST:,}"),
        ("seed=range(0,1,0)", "a step other than 0"),
        ("seed=range(3,0)", "seed has no values"),
        ("seed=interval(0,1)", "can only search an interval"),
    ],
)
def test_a_sweep_without_end_is_refused(word: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        entries(["-m", word])


def test_a_long_composition_says_how_far_it_is(monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setattr("lra.terminal.progress.PATIENCE_S", -1.0)
    entries(["-m", "seed=0,1"])
    assert "composing combination 1 of 2" in capsys.readouterr().err
