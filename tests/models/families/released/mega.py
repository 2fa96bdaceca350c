"""Run the moving average and the gated attention of the Mega repository; store what they give.

    python -P tests/models/families/released/mega.py CHECKOUT

CHECKOUT is a clone of github.com/facebookresearch/mega (commit aeaa4b4), a fork of fairseq. Of it
the modules are run as they stand, but in float64: `float` and `torch.float` mean it here.
"""

import importlib
import sys
import types
from pathlib import Path
from unittest.mock import MagicMock

import numpy as np
import torch

OUTPUTS = Path(__file__).with_suffix(".npz")
ROWS, LENGTH, REAL, CHUNK, TRUNCATION = 2, 12, 7, 4, 5
"""Of the second row REAL tokens are no padding, so that its last chunk is padding alone."""
WIDTH, VALUE_WIDTH, KEY_WIDTH, STATES, LONGEST = 6, 5, 4, 3, 20
AVERAGES = {
    "one-sided": {"bidirectional": False, "truncation": None},
    "two-sided": {"bidirectional": True, "truncation": None},
    "truncated": {"bidirectional": True, "truncation": TRUNCATION},
}
PIECES = [5, 1, 6]
"""Of a stream."""
BOTH = {
    f"{sides}, {attention}, {'chunks' if chunk else 'whole'}": {
        "bidirectional": sides == "two-sided", "attention": attention, "chunk": chunk,
        "relative": "simple", "before": True,
    }
    for sides in ("two-sided", "one-sided")
    for attention in ("softmax", "laplace")
    for chunk in (None, CHUNK)
}  # fmt: skip
ATTENTIONS = BOTH | {
    "rotary": BOTH["two-sided, softmax, whole"] | {"relative": "rotary"},
    "rotary in chunks": BOTH["one-sided, laplace, chunks"] | {"relative": "rotary"},
    "norm behind": BOTH["two-sided, softmax, chunks"] | {"before": False},
}


def drawn(*shape: int, seed: int) -> torch.Tensor:
    """Return N(0, 1) in float64."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def weight(name: str, shape: tuple[int, ...]) -> torch.Tensor:
    """Return a parameter, by its name there; gains of norms are around 1."""
    found = drawn(*shape, seed=sum(name.encode()))
    return 1 + 0.1 * found if name == "norm.norm.weight" else 0.7 * found


def tokens() -> torch.Tensor:
    """Return tokens, batch first."""
    return drawn(ROWS, LENGTH, WIDTH, seed=1)


def keep() -> torch.Tensor:
    """Return which tokens are real."""
    return torch.arange(LENGTH) < torch.tensor([[LENGTH], [REAL]])


def direction() -> torch.Tensor:
    """Return what gradients are taken along: real tokens alone."""
    return drawn(ROWS, LENGTH, WIDTH, seed=2) * keep()[..., None]


def prepare(checkout: Path) -> None:
    """Make the modules importable, without what they do not need; float64 throughout."""
    torch.Tensor.float = lambda tensor: tensor
    torch.float = torch.float64
    stand_ins = {"fairseq.data": {"iterators": None}, "fairseq.logging.meters": {"safe_round": 0},
                 "fairseq.modules.multihead_attention": {"MultiheadAttention": None}}  # fmt: skip
    for name in ("", ".modules", ".logging"):
        path = str(checkout / f"fairseq{name}".replace(".", "/"))
        stand_ins[f"fairseq{name}"] = {"__path__": [path]}
    for name, content in stand_ins.items():
        sys.modules[name] = types.ModuleType(name)
        vars(sys.modules[name]).update(content)
    sys.modules["fairseq.modules"].__getattr__ = lambda _: MagicMock()  # type: ignore[method-assign]


def filled(module: torch.nn.Module) -> torch.nn.Module:
    """Return it in evaluation mode with weights by the rule."""
    module = module.double().eval()
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(weight(name, tuple(parameter.shape)))
    return module


def stored(case: str, module: torch.nn.Module, y: torch.Tensor, x: torch.Tensor) -> dict:
    """Return outputs, batch first, and gradients of a case."""
    names, leaves = zip(*module.named_parameters(), strict=True)
    gradients = torch.autograd.grad(y, [x, *leaves], direction())
    found = dict(zip(("x", *names), gradients, strict=True)) | {"y": y * keep()[..., None]}
    return {f"{case}: {name}": value.detach().numpy() for name, value in found.items()}


def main(checkout: Path) -> None:
    """Store every case."""
    prepare(checkout)
    padding = ~keep()
    utils = importlib.import_module("fairseq.utils")
    utils.softmax = lambda x, dim, onnx_trace=False: torch.softmax(x, dim)  # float32 there
    average = importlib.import_module("fairseq.modules.exponential_moving_average").MultiHeadEMA
    attention = importlib.import_module("fairseq.modules.moving_average_gated_attention")
    found = {}
    for case, options in AVERAGES.items():
        module, x = filled(average(WIDTH, ndim=STATES, **options)), tokens().requires_grad_()
        y = module(x.transpose(0, 1), padding).transpose(0, 1)
        found |= stored(case, module, y, x)
    module, state, outputs = filled(average(WIDTH, ndim=STATES)), {}, []
    with torch.no_grad():
        for piece in tokens().transpose(0, 1).split(PIECES):
            outputs.append(module(piece, None, state))
    (after,) = state.values()
    found |= {"stream: y": torch.cat(outputs).transpose(0, 1).numpy(),
              "stream: state": after["prev_state"].numpy()}  # fmt: skip
    for case, options in ATTENTIONS.items():
        module = attention.MovingAverageGatedAttention(
            WIDTH, KEY_WIDTH, VALUE_WIDTH, STATES, attention_activation=options["attention"],
            bidirectional=options["bidirectional"], chunk_size=options["chunk"] or -1,
            prenorm=options["before"], rel_pos_bias=options["relative"], max_positions=LONGEST,
        )  # fmt: skip
        module, x = filled(module), tokens().requires_grad_()
        size, mask = options["chunk"] or LENGTH, None
        if not options["bidirectional"]:  # as its decoder makes it
            mask = torch.ones(size, size).double().tril()
            mask = mask.log() if options["attention"] == "softmax" else mask
        y, _ = module(x.transpose(0, 1), padding, attn_mask=mask)
        found |= stored(case, module, y.transpose(0, 1), x)
    np.savez_compressed(OUTPUTS, **found)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
