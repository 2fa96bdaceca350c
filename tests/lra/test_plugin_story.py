"""A mixer in a user's own repository, which has folders `models` and `tasks` as well.

Every command is run as the documents spell it, in that folder, in processes of its own; where
Python starts anew for it, the test says how.
"""

import json
import os
import random
import shlex
import subprocess
import sys
from itertools import permutations
from pathlib import Path

import pytest

from lra.composition.hydra_entry import entries
from lra.conf.rooms import ROOMS
from lra.runners.store import Store
from tests import lra_process
from tests.lra_process import HOME

MIXER = '''
"""A moving average of the tokens around, each direction decayed alike."""

import torch
from torch import nn

from lra.models.mixer import Family, Growth, Traits, Unsupported
from acme_mixer.weights import decays


class Ema(Family):
    """Each token gets the sum of all tokens, decayed by their distance.

    Args:
        decay: What remains of a token after one step, from 0 to 1.
    """

    def __init__(self, site, *, decay: float = 0.9) -> None:
        super().__init__()
        if site.causal:
            raise Unsupported("this average looks both ways")
        self.decay, self.value = decay, nn.Linear(site.width, site.width)
        self.traits = Traits(operations=Growth(2.0), memory=Growth(2.0))

    def forward(self, x, layout):
        values = self.value(x)
        if layout.keep is not None:
            values = torch.where(layout.keep[..., None], values, 0.0)
        weights = decays(x.shape[1], self.decay).to(values)
        return torch.einsum("ij,bjc->bic", weights, values)
'''
WEIGHTS = '''
import torch


def decays(length, decay):
    """Return [length, length]: decay ** |i - j|."""
    places = torch.arange(length)
    return decay ** (places[:, None] - places[None]).abs().double()
'''
STRANGER = "raise SystemExit('a stranger was imported')\n"
OWN = ("--config-dir", "my_conf", "plugins=[acme_mixer]")
SHORT = (
    "task.source=sample", "optim.steps=1", "optim.warmup_steps=0", "optim.batch_size=2",
    "task.max_length=200", "logger=none",
)  # fmt: skip


def repository(folder: Path) -> Path:
    """Write what a user has, strangers with all our names included."""
    for name in ROOMS:
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text(STRANGER)
    package = folder / "acme_mixer"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "mixer.py").write_text(MIXER)
    (package / "weights.py").write_text(WEIGHTS)
    (folder / "my_conf" / "model").mkdir(parents=True)
    (folder / "my_conf" / "model" / "ema.yaml").write_text(
        "name: ema\nabout: {summary: a moving average}\n"
        "mixer:\n  class_path: acme_mixer.mixer.Ema\n  decay: 0.9\n"
    )
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return repository(tmp_path_factory.mktemp("acme"))


PROGRAM = Path(sys.executable).with_name("lra")
INSTALLED = (str(PROGRAM),) if PROGRAM.exists() else (sys.executable, "-P", "-m", "lra")


def lra(folder: Path, *words: str, how: tuple[str, ...] = (), path: str = "") -> str:
    """Run a command in the folder and return what it printed; it must succeed."""
    done = attempt(folder, *words, how=how, path=path)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def attempt(
    folder: Path, *words: str, how: tuple[str, ...] = (), path: str = ""
) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "LRA_DATA")}
    environment |= {"LRA_DATA": str(folder / "data"), "OMP_NUM_THREADS": "1"}
    if not how:
        environment["PYTHONSAFEPATH"] = "1"  # as in the installed command
        prepare = lra_process.count_short if words[0] == "verify" else None
        done = lra_process.run(words, cwd=folder, env=environment, prepare=prepare)
    else:
        done = subprocess.run(
            [*how, *words],
            cwd=folder,
            env=environment | ({"PYTHONPATH": path} if path else {}),
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    assert "a stranger was imported" not in done.stdout + done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return done


@pytest.mark.slow
def test_the_whole_story(folder: Path) -> None:
    """Verify, list, train, measure, show, repeat, report: one after the other."""
    short = ("--max-length", "64")
    assert "checks passed" in lra(folder, "verify", "acme_mixer.mixer:Ema", "decay=0.5", *short)
    own = ("--config-dir", "my_conf", "--plugin", "acme_mixer")
    assert "checks passed" in lra(folder, "verify", "ema", *own, *short)
    assert "a moving average" in lra(folder, "list", "models", "--config-dir", "my_conf")

    lra(folder, "run", "model=ema", *OWN, *SHORT)
    (trained,) = [file.parent.name for file in (folder / "results").glob("cells/*/*/cell.json")]
    measured = (
        "runner=scaling", "runner.lengths=[64]", "runner.modes=[forward]",
        "runner.references=[]", "runner.timed_steps=3", "runner.long_timed_steps=3",
        "runner.warmup_steps=1", "runner.repeat_limit_s=0", "hardware.token_budget=64",
        "results=measured", "logger=none",
    )  # fmt: skip
    lra(folder, "run", "-m", "model=ema,identity", *OWN, *measured)
    assert len([*(folder / "measured").glob("cells/*/*/rows-*.jsonl")]) == 2

    shown = lra(folder, "show", trained[:8])
    command = shlex.split(shown.partition("\nrerun ")[2].splitlines()[0])
    assert command[:2] == ["lra", "run"]
    lra(folder, *command[1:])
    repeated = Store(folder / "results-repeated")
    assert repeated.find("") == trained
    rows = {root: losses(folder / root, trained) for root in ("results", "results-repeated")}
    assert rows["results"] == rows["results-repeated"]

    assert "ema" in (folder / lra(folder, "report").split()[0]).read_text()


def losses(root: Path, key: str) -> list[float]:
    (file,) = root.glob(f"cells/*/{key}/rows-*.jsonl")
    rows = map(json.loads, file.read_text().splitlines())
    return [row["value"] for row in rows if "loss" in row["metric"]]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["path", "wheel"])
def test_strangers_do_not_matter_however_lra_is_called(
    folder: Path, tmp_path: Path, how: str
) -> None:
    """The parent composes, the fork server preloads, the child computes: each has its own path."""
    words = ("run", "model=ema", *OWN, *SHORT, f"results={tmp_path / 'results'}")
    if how == "path":
        listed = lra(folder, *words, "runner.dry_run=true", how=INSTALLED)  # as a clone has it
        assert "train ema on listops" in listed
        lra(folder, *words, how=INSTALLED, path=f"{folder}{os.pathsep}{HOME}")
    else:  # as pip unpacks it, behind the strangers on the path
        lra_process.unpacked(tmp_path / "site")
        program = (sys.executable, "-P", "-m", "lra")
        lra(folder, *words, how=program, path=f"{folder}{os.pathsep}{tmp_path / 'site'}")
    assert len([*(tmp_path / "results").glob("cells/*/*/rows-*.jsonl")]) == 1
    log = next((tmp_path / "results").glob("cells/*/*/log.txt"), None)
    assert log is None or "stranger" not in log.read_text()


WRONG = {
    "plugins=[acme_mixr]": ["no package 'acme_mixr'", "did you mean 'acme_mixer'"],
    "plugins=[models]": [
        "'models' always means the package of lra",
        "write a file own_mixers.py next to its package",
    ],
    "model.mixer.class_path=acme_mixer.mixer.Emma": ["unknown class 'Emma'", "'Ema'"],
    "model.mixer.class_path=acme_mixer.mixr.Ema": ["unknown module 'mixr'", "'mixer'"],
    "model.mixer.class_path=acme_mixer.torn.Ema": ["SyntaxError", "acme_mixer.torn"],
    "model.mixer.class_path=acme_mixer.lacks.Ema": ["imports 'no_such_thing'"],
    "model.mixer.class_path=acme_mixer.theirs.Ema": [
        "acme_mixer.theirs",
        "import it as lra.models",
    ],
    "model.mixer.class_path=acme_mixer.leaves.Ema": ["SystemExit", "acme_mixer.leaves"],
}
"""What is wrong with a plug-in, and what the answer says."""
ONE_AFTER_ANOTHER = """\
import sys
from lra.cli import main
for word in sys.argv[2:]:
    own = ["--config-dir", "my_conf", *([] if word.startswith("plugins") else [sys.argv[1]])]
    status = main(["run", "model=ema", *own, word, "runner.dry_run=true"])
    print(f"<{status}>", file=sys.stderr)
"""


@pytest.mark.slow
def test_what_is_wrong_with_a_plug_in_is_one_sentence(tmp_path: Path) -> None:
    folder = repository(tmp_path / "own")
    (folder / "acme_mixer" / "torn.py").write_text("def (:\n")
    (folder / "acme_mixer" / "lacks.py").write_text("import no_such_thing\n")
    (folder / "acme_mixer" / "theirs.py").write_text("from models.mine import Mine\n")
    (folder / "acme_mixer" / "leaves.py").write_text("raise SystemExit(3)\n")
    program = (sys.executable, "-P", "-c", ONE_AFTER_ANOTHER)
    done = attempt(folder, OWN[2], *WRONG, how=program, path=str(HOME))
    answers = done.stderr.strip().split("<2>")[:-1]
    assert len(answers) == len(WRONG), done.stderr
    for answer, (word, wanted) in zip(answers, WRONG.items(), strict=True):
        (line,) = answer.strip().splitlines()
        for text in wanted:
            assert text in line, word


def test_flags_and_words_mix_in_any_order(folder: Path) -> None:
    """Orders of four, each word first in some, and draws of six."""
    four = [("model=ema,linear",), ("--config-dir", str(folder / "my_conf")), ("-m",), ("seed=3",)]
    six = [*four, ("plugins=[acme_mixer]",), ("optim.steps=7",)]
    draw = random.Random(0)
    orders = [*[*permutations(four)][::4], *(draw.sample(six, len(six)) for _ in range(6))]
    for order in orders:
        found = entries([word for group in order for word in group])
        assert [e.config["model"]["name"] for e in found] == ["ema", "linear"], order
        assert all(entry.config["seed"] == 3 for entry in found)
        assert not any("config-dir" in word for entry in found for word in entry.overrides)


@pytest.mark.parametrize(
    "word", ["plugins=acme_mixer", "plugins=[acme_mixer]", "plugins='acme_mixer'"]
)
def test_a_lone_plug_in_needs_no_brackets(word: str) -> None:
    (entry,) = entries(["model=linear", word])
    assert entry.config["plugins"] == ["acme_mixer"]
