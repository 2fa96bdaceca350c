import re
import sys

import pytest
import torch

import lra
from lra.cli import main
from lra.commands.verify import options
from lra.composition.lookup import resolve
from lra.models.contract.suite import CHECKS
from tests.lra_process import HOME, python

GOOD = '''
import torch
from torch import nn
from lra.models.mixer import Traits

class Mean(nn.Module):
    """Every token gets the mean of the projected real tokens."""

    def __init__(self, site, *, scale: float = 1.0, rounds: int = 1) -> None:
        super().__init__()
        if not isinstance(scale, float) or not isinstance(rounds, int):
            raise TypeError(f"options came unconverted: {scale!r}, {rounds!r}")
        if site.causal:
            from lra.models.mixer import Unsupported
            raise Unsupported("the mean needs every token")
        self.scale, self.value = scale, nn.Linear(site.width, site.width)
        self.traits = Traits(sees_order=False)

    def forward(self, x, layout):
        keep = torch.ones_like(x[..., :1]) if layout.keep is None else layout.keep[..., None].to(x)
        mean = (self.value(x) * keep).sum(1, True) / keep.sum(1, True).clamp(min=1)
        return self.scale * mean.expand_as(x)
'''
FAULT = ("layout.keep is None", "True")
"""One of many: the contract's own tests plant a fault for each of its checks."""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A current directory that holds someone's mixers, importable by nobody else."""
    assert GOOD.count(FAULT[0]) == 1
    faulty = GOOD.replace(*FAULT).replace("class Mean", "class IgnoresPadding")
    (tmp_path / "their_mixers.py").write_text(GOOD + faulty)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    sys.modules.pop("their_mixers", None)


def test_a_good_mixer_from_the_current_directory_passes(folder, capsys):
    assert main(["verify", "their_mixers:Mean", "scale=2", "rounds=3"]) == 0
    text = capsys.readouterr().out
    assert "checks passed" in text
    assert "the mean needs every token" in text
    assert "NO " not in text


def test_the_check_at_work_is_told_on_stderr(folder, capsys, monkeypatch):
    monkeypatch.setattr("lra.terminal.progress.AGAIN_S", -1.0)
    assert main(["verify", "their_mixers:Mean", *SMALL]) == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if " of " in line]
    number, many = list(CHECKS).index("padding"), len(CHECKS)
    assert len(lines) == many
    assert lines[number] == f"bidirectional.padding … ({number + 1} of {many})"


def test_a_faulty_mixer_fails(folder, capsys):
    assert main(["verify", "their_mixers:IgnoresPadding", "--quiet"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert all(line.startswith("NO ") for line in lines[:-1])
    assert len(lines) > 1


LAYERS = '''
import lra
from torch import nn

class Pointwise(nn.Module):
    """No token sees another."""

    def __init__(self, dim, bias=True):
        super().__init__()
        self.map = nn.Linear(dim, dim, bias=bias)

    def forward(self, x, attention_mask=None):
        return self.map(x), None

class Narrow(Pointwise):
    def forward(self, x, attention_mask=None):
        return self.map(x)[..., 1:]

class Blank(nn.Module):
    def __init__(self, config):
        super().__init__()

def ready(site, *, bias: bool = False):
    return Pointwise(site.width, bias)

Ready = lra.wrap(ready, causal=None, mask="keep", sees_order=False)
'''
CLAIMS = ("causal=false", "mask=keep", "sees_order=false")
PAST = """

class Past(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.map = nn.Linear(width, width)

    def forward(self, x):
        return self.map(x).cumsum(1)


class Future(Past):
    def forward(self, x):
        return super().forward(x.flip(1))
"""
SMALL = ("--max-length", "32", "--width", "8")


@pytest.fixture
def layers(folder):
    """Layers of somebody who knows nothing of mixers, and how they are given a name here."""
    (folder / "their_layers.py").write_text(LAYERS)
    (folder / "their_conf/model").mkdir(parents=True)
    (folder / "their_conf/model/ready.yaml").write_text(
        "name: ready\nabout: {summary: theirs}\n"
        "mixer: {class_path: their_layers.Ready, bias: true}\n"
    )
    yield folder
    sys.modules.pop("their_layers", None)


def test_a_module_that_is_no_mixer_is_wrapped(layers, capsys):
    words = ["their_layers:Pointwise", "bias=false", *SMALL, "--wrap", *CLAIMS]
    assert main(["verify", *words]) == 0
    text = capsys.readouterr().out
    assert "Pointwise attends to later tokens (causal=false)" in text
    assert "0 failed" in text


def test_a_claim_that_fails_is_told_as_wrap_takes_it(layers, capsys):
    words = ["their_layers:Pointwise", "--quiet", *SMALL, "--wrap", *CLAIMS[:2]]
    assert main(["verify", *words]) == 1
    text = capsys.readouterr().out
    assert "outputs are permuted alike: set sees_order=false (with --wrap" in text
    assert "Traits(" not in text


def test_one_cause_is_one_line_at_the_end(layers, capsys):
    assert main(["verify", "their_layers:Narrow", *SMALL, "--wrap", *CLAIMS]) == 1
    *lines, failed, counts = capsys.readouterr().out.splitlines()
    assert not any(line.startswith("NO") for line in lines)
    assert failed.startswith("NO  bidirectional.lengths")
    assert "returned shape [3, 1, 7] for hidden states of shape [3, 1, 8]" in failed
    assert "bidirectional.form, bidirectional.copies, bidirectional.upkeep and" in failed
    passed, number, idle = map(int, re.findall(r"\d+", counts.partition(": ")[2]))
    assert number > 20
    assert len(lines) == passed + idle
    assert sum(line.startswith("--") for line in lines) == idle


def test_a_module_that_looks_back_alone_is_listed_once(layers, capsys):
    (layers / "their_layers.py").write_text(LAYERS + PAST)
    for name, code in (("Past", 0), ("Future", 1)):
        words = [f"their_layers:{name}", *SMALL, "--wrap", "causal=true"]
        assert main(["verify", *words]) == code
        lines = capsys.readouterr().out.splitlines()
        assert lines[0].startswith("--  bidirectional ")
        assert "this mixer reads earlier tokens only, so these checks are those of the" in lines[0]
        assert any(line.endswith("works, and reads earlier tokens only") for line in lines)
        assert not any("bidirectional." in line for line in lines)
        assert sum("causal.no_lookahead" in line for line in lines) == 1


def test_a_wrapped_module_has_a_name_and_weights_of_its_seed(layers):
    own = {"config_dir": "their_conf", "plugins": ["their_layers"], "backbone": {"width": 8}}
    first, again, other = (lra.model("ready", seed=seed, **own).state_dict() for seed in (0, 0, 1))
    name = "stack.blocks.0.mixer.inner.map.weight"
    assert torch.equal(first[name], again[name])
    assert not torch.equal(first[name], other[name])
    assert not torch.equal(first[name], first[name.replace("0", "1")])
    assert first[name.replace("weight", "bias")].shape == (8,)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["their_layers:Blank", "--wrap"], "cannot be built from width and heads alone: its"),
        (["their_layers:Pointwise", "--wrap"], "cannot find out whether Pointwise attends"),
        (["their_layers:Pointwise", "--wrap", CLAIMS[0]], "form of this mask: set mask to ones"),
        (["their_layers:Pointwise", "--wrap", "masks=ones"], "'masks': did you mean 'mask'"),
        (["their_layers:Pointwise", "--wrap", "mask=one"], "did you mean --wrap.mask=ones"),
        (["their_layers:Pointwise", "bais=1", "--wrap", *CLAIMS], "'bais': did you mean 'bias'"),
        (["their_layers:Pointwise"], "has no parameter `site`; "),
        (["linear", "--wrap"], "--wrap: got the name "
        "'linear'"),
        (["their_layers:Blank", "--wrap", "bias=1"], "Type arguments of the constructor before"),
        (["their_layers/there.py:A", "--wrap"], "or a class as in their_layers.there:A"),
        (["lineer"], "unknown model 'lineer': did you mean 'linear'"),
        (["linear", "chunks=8"], "unknown option 'chunks': did you mean 'chunk'?"),
        (["linear", "chunk=many"], "'many'"),
        (["linear", "chunk"], "wanted option=value"),
        (["their_mixers:Maen"], "did you mean 'Mean'?"),
        (["no_such_package:Mixer"], "no package 'no_such_package'"),
        (["their_mixers:Mean", "scale=tall"], "tall"),
    ],
)  # fmt: skip
def test_what_cannot_be_built_or_wrapped_is_answered(layers, capsys, words, complaint):
    assert main(["verify", *words]) == 2
    text = capsys.readouterr().err
    assert complaint in text
    assert "Traceback" not in text


def test_a_family_of_ours_is_named_alone(capsys):
    assert main(["verify", "identity", "--max-length", "64", "--width", "16"]) == 0
    assert "identity: " in capsys.readouterr().out


def test_a_folder_of_the_users_does_not_take_the_place_of_ours(folder):
    (folder / "tasks").mkdir()
    (folder / "tasks" / "__init__.py").write_text("raise SystemExit('a stranger was imported')\n")
    code = (
        "from lra.composition.class_path import see; see(''); "
        "from lra.commands.verify import resolve; "
        "resolve('their_mixers:Mean', {}); import lra.tasks.task"
    )
    done = python("-P", "-c", code, cwd=folder, PYTHONPATH=str(HOME), OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stderr
    assert "a stranger was imported" not in done.stderr


def test_options_are_read_as_yaml():
    read = options(["a=1", "model.mixer.b=[1, 2]", "c=elu1", "d=null", "e=x=y"])
    assert read == {"a": 1, "b": [1, 2], "c": "elu1", "d": None, "e": "x=y"}


def test_options_of_the_yaml_stand_unless_given():
    bound = resolve("linear", {"chunk": 8})
    assert bound.func.__name__ == "LinearAttention"
    assert bound.keywords["chunk"] == 8
    assert resolve("linear", {}).keywords["chunk"] != 8
