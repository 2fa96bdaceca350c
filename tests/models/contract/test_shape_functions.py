"""A pass is recorded without PyTorch's compiler, and nothing of that stays."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
CODE = """
import sys
import torch
from torch import nn
from lra.models.contract.shape_functions import MARK, _marked
from lra.models.contract.trace import Tracer

def run():
    with torch.device("meta"):
        layer, x = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 4)), torch.empty(2, 3, 4)
    out = layer(torch.cat((x, x), dim=1))
    torch.where(out > 0, out, 2.0).mean().backward()

trace = Tracer("cpu").trace(run)
left = sum(hasattr(function, MARK) for function in _marked())
print(trace.operators, len(_marked()) > 50, left, "torch._dynamo" in sys.modules)
import torch._dynamo
print(Tracer("cpu").trace(run).operators, sum(hasattr(f, MARK) for f in _marked()) > 0)
"""


def test_a_pass_is_recorded_without_the_compiler():
    done = subprocess.run(
        [sys.executable, "-c", CODE], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    first, several, left, compiler, again, marked = done.stdout.split()
    assert (several, left, compiler) == ("True", "0", "False")
    assert (again, marked) == (first, "True")
