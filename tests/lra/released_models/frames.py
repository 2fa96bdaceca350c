"""Run whole models of the S4 code, or the frame of its first version; store their answers.

    python -P tests/lra/released_models/frames.py s4 CHECKOUT LIBRARIES

CHECKOUT is a clone of github.com/state-spaces/s4 (commit e757cef) for `s4`, the same at its tags
v3.0.0 for `s4_v3` and `s4d` and v1 for `s4_v1`, of github.com/ctlllll/SGConv at its branch preview
(commit 0c2b3ab) for `sgconv`, and of github.com/IdoAmos/not-from-scratch (commit f919137) for
`self_pretraining`. LIBRARIES holds what they import, as `pip install --no-deps --target LIBRARIES
einops opt_einsum pillow torchvision` leaves it; Hydra and transformers are installed.

Each answer is what the trainer's own `forward` makes of a batch of its own loader (`trainers.py`):
texts with their lengths, pictures as it normalises them. Of `s4` there is S4D as well, its kernel
put in the place of S4's. The S4 of the tag v1 is not among the models here: what stands around it
is compared, encoder, norms, residuals, pooling and classifier, around layers that hand on their
input.
"""

import re
import sys
from pathlib import Path

import numpy as np
import torch

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
import cases  # noqa: E402
import trainers  # noqa: E402

WORDS = {"s4_v1": ["~model.layer", "+model.layer._name_=id"], "s4d": cases.S4D}
DIAGONAL = {"s4": ["model.layer.mode=diag"]}
GIVEN = ("pe", "multiplier", "kernel_norm", "layer.decay")
"""Positions, and decays and norms of kernels, which are no weights."""


def numbered(name: str) -> str:
    """Return a parameter's name with the number that version 1 leaves out of encoder, decoder."""
    return re.sub(r"^(encoder|decoder)\.(?!\d)", r"\1.0.", name)


def answer(protocol: str, task: str, checkout: Path, words: list[str]) -> np.ndarray:
    """Return the logits of the trainer of a task with weights by the rule."""
    module = trainers.trainer(protocol, task, checkout, words).eval()
    with torch.no_grad():
        for name, value in [*module.named_parameters(), *module.named_buffers()]:
            if value.is_floating_point() and not name.endswith(GIVEN):
                value.copy_(cases.weight(numbered(name), tuple(value.shape)))
        logits, *_ = module(trainers.batch(module))
    return logits.numpy()


def main(protocol: str, checkout: Path, libraries: Path) -> None:
    """Store the answers of every task."""
    trainers.enter(checkout, libraries)
    found = {}
    for task in trainers.tasks(protocol, checkout):
        found[task] = answer(protocol, task, checkout, WORDS.get(protocol, []))
        if protocol in DIAGONAL:
            found[f"{task} diagonal"] = answer(protocol, task, checkout, DIAGONAL[protocol])
    np.savez_compressed(HERE / f"{protocol}.npz", **found)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
