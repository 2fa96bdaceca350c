"""Run the exact attention models of the rotary protocol's source; store their answers.

    python -P tests/lra/released_models/rotary_models.py CHECKOUT

CHECKOUT is a clone of github.com/pablomiralles22/long-transformers (commit ec33dc6). Its models are
run as they stand, in float64, with weights by the rule of `cases.py` and the settings of its files:
its trainers build them, and answer batches of their loaders, for which texts are made up as files,
pictures as what these hold. What they import and do not call is left out, as is a file that the
repository does not have; texts begin at their first byte, where there a draw says.
Each answer is stored twice: as released, and with a departure of ours in place of its own
(`rotary`: each head is rotated, every pair).
"""

import importlib
import json
import os
import random
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
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
UNREAD = (
    "einops", "opt_einsum", "src.models.functional.absdiff_attention", "torchmetrics",
    "torchvision", "pytorch_lightning", "pytorch_lightning.callbacks",
)  # fmt: skip
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


def files(task: str, folder: Path) -> None:
    """Write made-up rows as a task's data set reads them, the same in every split."""
    rows = [[cases.text(task, part) for part in row] for row in cases.printable(task)]
    for split in ("train", "val", "eval", "test"):
        if task == "listops":
            lines = ["Source\tTarget", *(f"{text}\t0" for (text,) in rows)]
            (folder / f"basic_{split}_compressed.tsv").write_text("\n".join(lines))
            continue
        inside = folder / split / ("pos" if task == "text" else "")
        inside.mkdir(parents=True)
        inside.with_name("neg").mkdir(exist_ok=True)
        for number, row in enumerate(rows):
            pair = json.dumps({"text1": row[0], "text2": row[-1], "label": 0})
            (inside / f"{number}").write_text(row[0] if task == "text" else pair)


def listed(folder: str) -> list[str]:
    """Stand for `os.listdir`, in an order."""
    return sorted(file.name for file in Path(folder).iterdir())


def pictures(task: str) -> list:
    """Return pictures and classes, in place of those that files hold."""
    length = cases.LENGTHS.get(("rotary", task), cases.LENGTH)
    return [(levels, 0) for levels in cases.tokens(task, length)]


def built(checkout: Path, task: str, folder: Path) -> tuple[nn.Module, dict, int]:
    """Return a trainer whose weights are by the rule, a batch of its loader, and its heads."""
    tree = json.loads((checkout / "configs" / f"{ROTARY_FILES[task]}.json").read_text())
    heads = tree["model_params"]["params"]["layers"][0][1]["nhead"]
    data = tree["data_module_params"]
    code = importlib.import_module(f"src.data_loaders.{data['name'].replace('-', '_')}")
    small = {"data_path": str(folder), "batch_size": cases.ROWS, "num_workers": 0}
    if task in cases.SHARE_OF_PADDING:
        small["max_len"] = pictures(task)[0][0].numel() + 1
        code.build_dataset = lambda _: pictures(task)
        code.random_split = lambda rows, *_, **__: (rows, rows)
        sys.modules["torchvision"].datasets.CIFAR10 = lambda *_, **__: pictures(task)
    else:
        files(task, folder)
        code.os = SimpleNamespace(path=os.path, listdir=listed)
        code.random = SimpleNamespace(**{**vars(random), "randint": lambda least, _: least})
    data["params"] |= small
    parts = {key: tree[key] for key in ("model_params", "head_params", "optimizer_params")}
    build = importlib.import_module("src.trainers.trainer_builder").TrainerBuilder.build_trainer
    trainer = build(data_module_params=data, **parts).double().eval()
    whole = {"": getattr(trainer, "model_with_head", None)}
    texts = {"model.": trainer.model, "": getattr(trainer, "head", None)}
    with torch.no_grad():
        for prefix, part in (texts if texts[""] else whole).items():
            for name, value in part.named_parameters():
                value.copy_(cases.weight(prefix + name, tuple(value.shape)))
    module = trainer.data_module
    loader = module.test_dataloader if task == "image" else module.val_dataloader
    return trainer, next(iter(loader())), heads


class Lightning(nn.Module):
    """Stand for `pytorch_lightning.LightningModule`."""

    def save_hyperparameters(self) -> None:
        """Keep nothing."""


class Loaders:
    """Stand for `pytorch_lightning.LightningDataModule`."""


def main(checkout: Path) -> None:
    """Store the answers of every task."""
    sys.path.insert(0, str(checkout))
    sys.modules |= {name: MagicMock() for name in UNREAD}
    lightning = sys.modules["pytorch_lightning"]
    lightning.LightningModule, lightning.LightningDataModule = Lightning, Loaders
    sys.modules["torchvision"].transforms.Compose = lambda _: lambda picture: picture
    rotation = importlib.import_module("src.utils.rotary_embedding").RotaryEmbedding
    own, found = rotation.apply, {}
    for task in ROTARY_FILES:
        with tempfile.TemporaryDirectory() as folder:
            trainer, batch, heads = built(checkout, task, Path(folder))
        for variant in VARIANTS:
            rotation.apply = each_head(heads) if "rotary" in variant else own
            with torch.no_grad():
                *_, logits, _ = trainer._step(batch, 0)
            found[f"{task}.{variant}"] = logits.numpy()
    np.savez_compressed(HERE / "rotary.npz", **found)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
