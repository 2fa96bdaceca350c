"""What is composed in one go is what Hydra composes one by one, key by key."""

import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import hydra
import pytest
from fuzz import cases
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from lra.composition.combinations import MOST, Composer, expand
from lra.composition.hydra_entry import entries
from lra.composition.loader import Loader
from lra.composition.repository import hydra_of
from lra.errors import ConfigError

GROUPS = (
    "model=linear,performer", "model=softmax", "task=listops,text", "size=tiny,small", "size=base",
    "+experiment=quickstart", "+protocol=nystrom", "runner=train,scaling", "optim=adamw",
    "+protocol=s4,mega", "hardware=cpu,h100", "+experiment=span,families", "logger=none",
)  # fmt: skip
WORDS = (
    "seed=range(0,3)", "seed=4,2", "optim.steps=100,200", "optim.peak_learning_rate=1e-3,2e-3,0.1",
    "model.backbone.dropout=0,0.1", "task.data_seed=1,2", "optim.clip=null,0.5", "optim.clip=null",
    "sweep=a,b", "runner.dry_run=true,false", "optim.betas=[0.9,0.9],[0.8,0.99]", "optim.steps=7",
    "model.layers=[],[fnet,sdpa]", "results='a b','c,d'", "task.path=null,x,'null','1'",
    "plugins=[a],[b,c]", "++optim.extra=1,2", "+extra=a,b", "optim.batch_size=5",
    "report=null",
    "optim={steps: 3},{steps: 4, batch_size: 2}", "optim={steps: 9}", "++optim.new={a: 1}",
    "task.data_seed=${seed}", "sweep=s${seed}",
    "++for_model={linear: {model: {backbone: {width: 8}}}}",
    "model.backbone={width: 16},{width: 32}", "model.backbone.width=16,32",
    "optim.schedule='a=b',x",
    "hydra.verbose=true", "model.backbone.softmax_cutoffs=[1,2],[3]", "seed=choice(1,2)",
    "size=glob(t*)",
    "++for_model={performer: {model: {mixer: {features: 8}}}}",
    "++for_task.listops.task.max_depth=3,4",
    "~for_runner", "++for_runner.train.runner.keep=best", "optim.steps=20,400",
)  # fmt: skip

NEVER = ("~optim.micro_batch_size", "hydra.sweeper.params={seed: '5,6'}")
"""Hydra cannot delete what is null, nor give a mapping to what is null."""

MOST_COMBINATIONS = 4
"""Of one line, which Hydra composes twice each."""


def line(draw: random.Random) -> list[str]:
    groups = draw.sample(GROUPS, draw.randint(0, 2))
    words = [*groups, *draw.sample(WORDS, draw.randint(1, 4))]
    draw.shuffle(words)
    return words


def few(words: Sequence[str]) -> bool:
    """Return whether the values of a line's words make few combinations."""
    parsed = OverridesParser.create(hydra_of(None).config_loader).parse_overrides([*words])
    try:
        return len(expand(parsed, None)) <= MOST_COMBINATIONS
    finally:
        GlobalHydra.instance().clear()


def plainly(words: Sequence[str], folder: Path, monkeypatch: Any) -> list[Any]:
    """Return what Hydra's own sweeper and launcher hand to a job: configuration and words."""
    found: list[Any] = []

    def job(config: Any) -> None:
        told = OmegaConf.to_container(HydraConfig.get().overrides.task, resolve=False)
        found.append((OmegaConf.to_container(config, resolve=True), tuple(told)))

    places = (f"hydra.sweep.dir={folder}", f"hydra.run.dir={folder}")
    monkeypatch.setattr(sys, "argv", ["lra", *words, *places])
    hydra.main(version_base="1.3", config_path="pkg://conf", config_name="config")(job)()
    return found


def told(call: Any) -> Any:
    """Return what a call returns, or that it refused."""
    try:
        return call()
    except Exception as error:  # noqa: BLE001  Hydra and OmegaConf raise many types
        return f"refused: {type(error).__name__}"


def without_checks(monkeypatch: Any) -> None:
    """Have entries composed, and not looked at: invalid ones compare as well as others."""
    monkeypatch.setattr("lra.composition.hydra_entry.check", lambda *_: None)
    monkeypatch.setattr("lra.composition.contradictions.refuse_contradictions", lambda *_: None)
    monkeypatch.setattr("hydra._internal.hydra.ConfigLoaderImpl", Loader)  # hydra.main's, too
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")


@pytest.mark.fuzz
def test_a_sweep_is_what_hydra_composes(tmp_path: Path, monkeypatch: Any) -> None:
    without_checks(monkeypatch)
    monkeypatch.chdir(tmp_path)
    draw = random.Random(20_260_110)
    compared, refused = 0, 0
    while compared < cases(6):
        words = ["-m", *line(draw)]
        found = told(lambda words=words: entries(words)) if few(words[1:]) else []
        if not found or (len(found) > MOST_COMBINATIONS and not isinstance(found, str)):
            continue
        wanted = told(lambda words=words: plainly(words, tmp_path / "hydra", monkeypatch))
        if isinstance(wanted, str):
            refused += 1
            assert isinstance(found, str), (words, wanted)
            assert refused < cases(6), "most lines must say something"
            continue
        assert not isinstance(found, str), (words, found)
        compared += 1
        assert len(found) == len(wanted), words
        for entry, (tree, told_words) in zip(found, wanted, strict=True):
            assert entry.overrides == told_words, words
            assert repr(entry.config) == repr(tree), words


@pytest.mark.parametrize("word", NEVER)
def test_what_hydra_refuses_is_refused(word: str, tmp_path: Path, monkeypatch: Any) -> None:
    """Were it accepted one day, the word would belong among those that are compared."""
    without_checks(monkeypatch)
    monkeypatch.chdir(tmp_path)
    wanted = told(lambda: plainly(["-m", word], tmp_path / "hydra", monkeypatch))
    assert isinstance(wanted, str)
    with pytest.raises(ConfigError):
        entries(["-m", word])


def test_one_run_is_what_hydra_composes(tmp_path: Path, monkeypatch: Any) -> None:
    without_checks(monkeypatch)
    words = ["model=performer", "+protocol=nystrom", "task.data_seed=${seed}", "seed=3"]
    ((tree, told_words),) = plainly(words, tmp_path / "hydra", monkeypatch)
    (entry,) = entries(words)
    assert (repr(entry.config), entry.overrides) == (repr(tree), told_words)


def test_combinations_share_what_they_have_in_common(monkeypatch: Any) -> None:
    """Hydra composes once for the choice of files, however many values are swept."""
    calls: list[list[str]] = []
    base = Composer._base
    monkeypatch.setattr(
        Composer, "_base", lambda self, words: calls.append(words) or base(self, words)
    )
    monkeypatch.setattr(Composer, "_through_hydra", lambda *_: pytest.fail("composed in full"))
    found = entries(["-m", "model=linear,softmax", "seed=range(0,50)", "optim.steps=1,2"])
    assert len(found) == 200
    assert len(calls) == 2
    first, other = found[0].config, found[2].config
    assert first["seed"] != other["seed"]
    assert first["task"] is other["task"]


FILES = (
    "model=reformer,tlb", "task=enwik8,image", "size=small,large", "hardware=cpu,a100",
    "runner=decode,span", "+protocol=s4,lra_paper", "logger=none,wandb_online",
)  # fmt: skip


def test_choices_of_files_are_merged_as_hydra_merges_them(tmp_path: Path, monkeypatch: Any) -> None:
    """Hydra says once which files there are and in which order, and merges none of them."""
    without_checks(monkeypatch)
    monkeypatch.chdir(tmp_path)
    draw = random.Random(5)
    for _ in range(3):
        words = ["-m", *draw.sample(FILES, 2), "seed=3", "optim.steps=7"]
        with monkeypatch.context() as patched:
            patched.setattr(ConfigLoaderImpl, "load_sweep_config", None)
            found = entries(words)
        wanted = plainly(words, tmp_path / "hydra", monkeypatch)
        assert [repr(each.config) for each in found] == [repr(tree) for tree, _ in wanted], words
        assert [each.overrides for each in found] == [told_words for _, told_words in wanted]


@pytest.mark.parametrize(
    "other",
    [
        "defaults: [/size: large]\nname: other",
        "# @package _global_\nseed: 5",
        "name: other\nmixer: {chunk: '${seed}'}",
        "name: other\nmixer: null",
        "name: other\nbackbone: {depth: 7}\nlayers: [fnet]",
        "name: other\nhydra: {verbose: true}",
    ],
)
def test_files_of_ones_own_are_merged_as_hydra_merges_them(
    other: str, tmp_path: Path, monkeypatch: Any
) -> None:
    without_checks(monkeypatch)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "conf" / "model").mkdir(parents=True)
    (tmp_path / "conf" / "model" / "other.yaml").write_text(other)
    words = ["--config-dir", "conf", "-m", "model=linear,other", "size=tiny,small"]
    found = entries(words)
    wanted = plainly(words, tmp_path / "hydra", monkeypatch)
    assert [repr(each.config) for each in found] == [repr(tree) for tree, _ in wanted]


@pytest.mark.parametrize(
    ("word", "complaint"),
    [
        ("seed=range(0,1000000000)", "seed alone has 1,000,000,000"),
        ("seed=range(0,1,1e-300)", f"at most {MOST:,}"),
        ("seed=range(0,1,0)", "step not 0"),
        ("seed=range(3,0)", "seed has no values"),
        ("seed=interval(0,1)", "endless"),
    ],
)
def test_a_sweep_without_end_is_refused(word: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        entries(["-m", word])


def test_a_long_composition_says_how_far_it_is(monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setattr("lra.terminal.progress.PATIENCE_S", -1.0)
    entries(["-m", "seed=0,1"])
    assert "composing combination 1 of 2" in capsys.readouterr().err
