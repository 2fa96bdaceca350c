"""Every command of README, CONTRIBUTING and docs, as written, from a folder of somebody's own.

The folder holds a package with a mixer, configuration files, a table of texts, folders called as
some of ours are, and of a clone the plug-in `peers` and the published rows. Of `lra run` the cells
are listed, of `lra data` the task is built, of `lra verify` the mixer is found; other verbs do what
they say, on a store of one short training. What goes over much, goes over its first.
"""

import re
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from lra.cli import VERBS, main
from lra.commands import data, doctor, generate, verify
from lra.results.rows import published_with_names
from lra.sweep import overview
from lra.sweep.forecast import Forecast

ROOT = Path(__file__).resolve().parents[1]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
INLINE = re.compile(r"`(lra [a-z][^`]+)`")
BLOCK = re.compile(r"^    (lra [a-z].+)$", re.MULTILINE)
STANDS_FOR = {
    "TASK": "text",
    "FOLDER": ".",
    "DIR": "results",
    "RESULTS": "results",
    "PATH": "aclImdb_v1.tar.gz",
    "FILE": "rows.jsonl",
    "NAME": "performer",
    "SWEEP": "quickstart",
    "tutorial": "quickstart",  # the sweep that the folder has
    "task=…": "task=listops",
    "RUN": "{key}",
    "KEY": "{key}",
    "3fa9": "{key}",
    "hardware=h100": "hardware=cpu",
    "cuda": "cpu",
    "runner.weights=3fa9": "runner.weights={key}",
}
"""What the reader puts for a word."""
FRAGMENTS = {
    "lra run",
    "lra show",
    "lra show --cost",
    "lra report",
    "lra report --rows",
    "lra run ... report.style=NAME",
    "lra report --style",
    "lra report --help",
    "lra verify",
    "lra data",
    "lra data prepare",
    "lra data verify",
    "lra choose",
    "lra plan --against",
    "lra completion bash|zsh|fish",
    "lra compare",
    "lra compare A B",
    "lra submit",
    "lra submit …",
    "lra submit cluster=slurm …",
    "lra submit cluster=slurm cluster.workers=100 …",
    "lra run -m …",
    "lra watch",
    "lra work",
}
"""Named in a sentence, without what they need."""
LONG = {
    "lra doctor --noise",
    "lra doctor --rates",
    "lra doctor --rates h100",
    "lra verify x_transformers.x_transformers:Attention flash=true --wrap operations=n^2 "
    "sees_order=false",
    "lra work SWEEP --workers 8",
    "lra work quickstart --workers 2 --wait 0",
}
"""Take long, or a package that is not ours (tests/parity/test_wrapped_layers.py); the first fails
on a busy machine, that of the H100 without a GPU. See test_noise.py and test_doctor_rates.py in
tests/lra/commands. Several workers are forks, which a process with threads, as this one, cannot
make: test_workers.py in tests/lra/cluster starts them by a program."""
BROUGHT = "source=sample (is|for) a (synthetic )?trial"
"""Said where real data are wanted that are not there."""
MIXER = """\
from torch import nn

from lra.models.mixer import Family, Traits, blanked


class MyMixer(Family):
    def __init__(self, site, *, features: int = 8) -> None:
        super().__init__()
        self.traits = Traits(causal=site.causal, sees_order=False)
        self.down = nn.Linear(site.width, features)
        self.up = nn.Linear(features, site.width)

    def forward(self, x, layout):
        return self.up(self.down(blanked(x, layout, self.traits)))
"""
LAYERS = """\
import lra
from torch import nn


class MyLayer(nn.Module):
    def __init__(self, dim, bias=True, causal=False):
        super().__init__()
        self.map = nn.Linear(dim, dim, bias=bias)

    def forward(self, x, key_padding_mask=None):
        return self.map(x), None


Mine = Bert = Llama = Gla = lra.wrap(MyLayer)
"""
MODEL = """\
name: my_family
about: {summary: "of my own"}
mixer: {class_path: my_package.mixer.MyMixer, features: 8}
"""


def commands(pages: Sequence[Path] = PAGES) -> dict[str, str]:
    """Return every command once, with the page that has it."""
    found: dict[str, str] = {}
    for page in pages:
        text = page.read_text(encoding="utf-8").replace("\\\n", " ")
        for match in (*BLOCK.finditer(text), *INLINE.finditer(text)):
            command = " ".join(re.sub(r"\s[#>|]\s.*", "", match[1]).split())
            if command not in FRAGMENTS | LONG:
                found.setdefault(command, page.name)
    return found


def own_files(folder: Path) -> None:
    """Write what a reader has: a mixer, a layer, files that name them, texts, another project."""
    for name in ("models", "tasks", "my_package", "my_conf/model", "notes"):
        (folder / name).mkdir(parents=True)
    (folder / "models/mine.py").write_text("raise RuntimeError('this is another project')\n")
    (folder / "my_package/__init__.py").touch()
    (folder / "my_package/mixer.py").write_text(MIXER)
    (folder / "my_package/layers.py").write_text(LAYERS)
    (folder / "my_conf/model/my_family.yaml").write_text(MODEL)
    layer = MODEL.replace("my_family", "my_layer").replace(
        "mixer.MyMixer, features: 8", "layers.Mine"
    )
    (folder / "my_conf/model/my_layer.yaml").write_text(layer)
    shards = (
        "training-monolingual.tokenized.shuffled/news.en-00001-of-00100",
        *(f"heldout/news.en.heldout-{number:05}-of-00050" for number in range(2)),
    )
    treebank = [f"ptb.{split}.txt" for split in ("train", "valid", "test")]
    for name in ("notes/monday.txt", "train.txt", "valid.txt", "test.txt", *shards, *treebank):
        (folder / name).parent.mkdir(exist_ok=True)
        lines = (f"as it should be in {name}: {7919 * number:x}\n" for number in range(3000))
        (folder / name).write_text("".join(lines))
    (folder / "story.txt").write_text("once upon a time\n")
    (folder / "mine.safetensors").touch()
    rows = (f"as it should be {number},good\nnot at all {number},bad\n" for number in range(400))
    (folder / "mine.csv").write_text("text,label\n" + "".join(rows))


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Make the folder, with a store of one training that every command finds."""
    folder = tmp_path_factory.mktemp("home")
    own_files(folder)
    for name in ("tests/parity", "reports/published"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).symlink_to(ROOT / name)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("LRA_DATA", str(folder / "data"))
        words = ("task.source=sample", "optim.steps=2", "optim.warmup_steps=0", "logger=none")
        assert main(["run", *words, "sweep=quickstart"]) == 0
        assert main(["report", "--sweep", "quickstart", "--publish", "rows.jsonl"]) == 0
        assert main(["submit", *words, "sweep=quickstart"]) == 0  # complete: a plan and no workers
    yield folder
    for name in [name for name in sys.modules if name.partition(".")[0] == "my_package"]:
        del sys.modules[name]  # other tests know that there is none


def essential(results: Path, checks: Callable[..., Any] = doctor.checks) -> list[doctor.Check]:
    """Return checks of a second; test_doctor.py tries the others, one by one."""
    return [check for check in checks(results) if check.essential]


def rows_of_one_model(file: Path) -> pd.DataFrame:
    rows = published_with_names(file)
    return rows[rows["model"] == rows["model"].iloc[0]]


@pytest.mark.share(6)
@pytest.mark.usefixtures("one_format")
@pytest.mark.parametrize("command", commands(), ids=lambda command: command[:60])
def test_a_documented_command_does_what_it_says(
    command: str, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(home)
    monkeypatch.syspath_prepend(home)
    monkeypatch.setenv("LRA_DATA", str(home / "data"))
    (cell,) = (home / "results/cells").glob("*/*")
    _, verb, *words = [
        STANDS_FOR.get(word, word).format(key=cell.name) if word in STANDS_FOR else word
        for word in shlex.split(command)
    ]
    if "--config-dir" not in words:  # of a family that is added to ours
        words = ["performer" if word == "my_family" else word for word in words]
    if verb == "run":
        words.append("runner.dry_run=true")
        unknown = lambda cells, *_, **__: [(cells[0], Forecast())] if cells else []  # noqa: E731
        monkeypatch.setattr(overview, "forecasts", unknown)  # how long is not looked at
    if (verb == "choose" or "+experiment" in command) and verb in ("choose", "plan"):
        words += [] if "model=" in command else ["model=linear,sdpa,fnet"]
    if verb == "doctor":
        monkeypatch.setattr(doctor, "checks", essential)
    monkeypatch.setattr("lra.results.reporting.published_with_names", rows_of_one_model)
    if verb == "verify":
        chosen = verify.parser().parse_args(words)
        monkeypatch.setattr("lra.models.contract.suite.verify", lambda factory, **_: [])
        assert chosen.max_length
    if verb == "data":
        for name in ("prepare", "verify", "certify", "show"):
            monkeypatch.setattr(data, name, lambda task, _=None: 0)
    if verb == "clean":  # which other commands need
        monkeypatch.setattr("lra.commands.clean.remove", lambda path: None)
    if verb == "generate":
        assert generate.parser().parse_args(words).cell == cell.name
        monkeypatch.setattr("lra.commands.generate.prompt_of", lambda _: "once")
    code = main([verb, *words])
    said = capsys.readouterr()
    refusals = {
        "generate": "has no causal language model",
        "compare": "unknown (model|value|sweep|setting)|no results of",
    }
    wanted = refusals.get(verb, BROUGHT)  # of one training there is nothing to compare
    assert code == (2 if re.search(wanted, said.err) else 0), said.out + said.err
    assert "Traceback" not in said.err


def test_the_documents_speak_of_every_verb() -> None:
    """A page whose commands are not found would not be tested."""
    assert {command.split()[1] for command in commands()} >= set(VERBS) - {"completion"}
    assert "lra completion" in (ROOT / "README.md").read_text(encoding="utf-8")
