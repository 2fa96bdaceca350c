"""Run the exact attention models of the rotary protocol's source; store their answers.

    python -P tests/lra/released_models/rotary_models.py CHECKOUT

CHECKOUT is a clone of github.com/pablomiralles22/long-transformers (commit ec33dc6). Its models are
run as they stand, in float64, with weights by the rule of `cases.py` and the settings of its files;
what they import and do not call is left out, as is a file that the repository does not have.
Each answer is stored twice: as released, and with a departure of ours in place of its own
(`rotary`: each head is rotated, every pair).
"""

import importlib
import json
import sys
from pathlib import Path
from unittest.mock import MagicMock

import numpy as np
import torch
from torch import Tensor, nn

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
import cases  # noqa: E402
from settings import ROTARY_FILES  # noqa: E402

SPECIAL = {"text": 3, "retrieval": 3}
"""Rows of the table before those of tokens: padding, CLS and, with texts, a mask; elsewhere two."""
TOKENS = {"listops": 15}
"""Rows of tokens; elsewhere 256."""
CLASSES = {"listops": 10, "image": 10}
UNREAD = ("einops", "opt_einsum", "src.models.functional.absdiff_attention")
VARIANTS = ("", "rotary")


def each_head(heads: int):
    """Return a rotation of each head by itself, which pairs channels half a head apart."""

    def apply(x: Tensor, thetas: None = None, freq: float = 10_000) -> Tensor:
        """Return queries or keys [b, l, d], rotated."""
        split = x.unflatten(-1, (heads, -1))
        half = split.shape[-1] // 2
        places = torch.arange(x.shape[-2], dtype=x.dtype)[:, None, None]
        angle = places * freq ** (-torch.arange(half, dtype=x.dtype) / half)
        left, right = split.chunk(2, dim=-1)
        turned = (
            left * angle.cos() - right * angle.sin(),
            right * angle.cos() + left * angle.sin(),
        )
        return torch.cat(turned, dim=-1).flatten(-2)

    return apply


def built(checkout: Path, task: str) -> tuple[nn.Module, int]:
    """Return a released model with weights by the rule, and how many heads it has."""
    tree = json.loads((checkout / "configs" / f"{ROTARY_FILES[task]}.json").read_text())
    heads = tree["model_params"]["params"]["layers"][0][1]["nhead"]
    builder = importlib.import_module("src.models.model_builder").ModelBuilder
    rows = SPECIAL.get(task, 2) + TOKENS.get(task, 256)
    model = builder.build_model(**tree["model_params"], vocab_size=rows, padding_idx=0)
    head = importlib.import_module("src.heads.classification_head").ModelWithClassificationHead
    given = {"num_classes": CLASSES.get(task, 2), **tree["head_params"]}
    found = head(model, model.get_output_embedding_dim(), **given).double().eval()
    with torch.no_grad():
        for name, value in found.named_parameters():
            value.copy_(cases.weight(name, tuple(value.shape)))
    return found, heads


def inputs(task: str) -> Tensor:
    """Return ids behind the CLS token's, texts of a pair in turn; pictures have no padding."""
    ids = cases.tokens(task).flatten(0, 1) + (task in cases.SHARE_OF_PADDING)
    there = torch.where(ids > 0, ids - 1 + SPECIAL.get(task, 2), 0)
    return nn.functional.pad(there, (1, 0), value=1)


def main(checkout: Path) -> None:
    """Store the answers of every task."""
    sys.path.insert(0, str(checkout))
    for name in UNREAD:
        sys.modules[name] = MagicMock()
    rotation = importlib.import_module("src.utils.rotary_embedding").RotaryEmbedding
    own, found = rotation.apply, {}
    for task in ROTARY_FILES:
        model, heads = built(checkout, task)
        for variant in VARIANTS:
            rotation.apply = each_head(heads) if "rotary" in variant else own
            ids = inputs(task)
            with torch.no_grad():
                found[f"{task}.{variant}"] = model(ids, ids != 0).numpy()
    np.savez_compressed(HERE / "rotary.npz", **found)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
