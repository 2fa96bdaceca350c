"""The trainers of the S4 code and of what has grown from it, as their `train.py` builds them.

Hydra composes a checkout's own files, its dataset class reads a few made-up rows in place of its
data, and `SequenceLightningModule` makes encoder, model, decoder and task. So who asks it for an
answer, or for its optimiser, enters by the trainer's door: its loader, its `forward`, its
`configure_optimizers`.
"""

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from tempfile import mkdtemp
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

import hydra
import numpy as np
import torch
from omegaconf import DictConfig, OmegaConf
from torch import nn
from torch.utils.data import Dataset

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
import cases  # noqa: E402

TASKS = {
    "listops": "listops", "text": "imdb", "retrieval": "aan", "image": "cifar",
    "pathfinder": "pathfinder", "pathx": "pathx",
}  # fmt: skip
FILES = {
    "s4": "lra/s4-{}", **dict.fromkeys(("s4_v3", "s4d"), "lra/s4-lra-{}"), "s4_v1": "s4-lra-{}",
    "sgconv": "lra/gconv-lra-{}", "self_pretraining": "lra/transformer-lra-{}",
}  # fmt: skip
"""Experiments of each checkout, by what it calls a task."""
ROWS = 257
"""Of the table of tokens."""
UNREAD = {
    "IPython", "celluloid", "fast_transformers", "gluonts", "local_attention", "matplotlib",
    "pytorch_lightning", "rich", "rotary_embedding_torch", "sklearn", "sktime", "timm",
    "torchaudio", "torchmetrics", "torchtext", "wandb",
}  # fmt: skip
"""What is imported, and not called on the way."""


class LightningModule(nn.Module):
    """What a trainer needs of the class of that name."""

    device = torch.device("cpu")

    def save_hyperparameters(self, config: DictConfig, **_: Any) -> None:
        """Hold the configuration."""
        self.hparams = config


class StandIns(MetaPathFinder, Loader):
    """Stand for packages of logs, sound and the like."""

    def find_spec(self, name: str, *_: Any) -> ModuleSpec | None:
        """Return a stand-in for what is not read."""
        stands = name.partition(".")[0] in UNREAD
        return ModuleSpec(name, self, is_package=True) if stands else None

    def exec_module(self, module: ModuleType) -> None:
        """Give a module whatever is asked of it."""
        module.__getattr__ = lambda _: MagicMock()  # type: ignore[method-assign]
        if module.__name__ == "pytorch_lightning":
            module.LightningModule = LightningModule  # type: ignore[attr-defined]


class Splits(dict[str, Any]):
    """Rows of every split, as the dataset classes read them."""

    def set_format(self, **_: Any) -> None:
        """Leave rows as they are: tensors."""


class Pictures(Dataset[Any]):
    """Rows of grey pictures in the place of CIFAR-10."""

    def __init__(self, *_: Any, transform: Any, **__: Any) -> None:
        self.transform = transform

    def __len__(self) -> int:
        """Return how many there are."""
        return cases.ROWS

    def __getitem__(self, index: int) -> tuple[Any, int]:
        """Return what the source makes of a picture."""
        return self.transform(picture("image", index).convert("RGB")), index % 2


def picture(task: str, index: int) -> Any:
    """Return a picture of a task."""
    image = importlib.import_module("PIL.Image")
    return image.fromarray(cases.grey(task)[index].numpy().astype(np.uint8))


def folder_of_pictures(task: str) -> Path:
    """Write the pictures of Pathfinder as its source reads them."""
    folder = Path(mkdtemp())
    level = folder / "curv_contour_length_14"
    for part in ("metadata", "imgs"):
        (level / part).mkdir(parents=True)
    lines = [f"imgs {index}.png 0 {index % 2}" for index in range(cases.ROWS)]
    (level / "metadata/0.npy").write_text("\n".join(lines))
    for index in range(cases.ROWS):
        picture(task, index).save(level / f"imgs/{index}.png")
    return folder


def rows_of_tokens(task: str) -> list[dict[str, Any]]:
    """Return rows of a task as its source has them behind its tokeniser, without padding."""
    names = ("input_ids1", "input_ids2") if task == "retrieval" else ("input_ids",)
    return [
        {name: ids[ids != 0] for name, ids in zip(names, texts, strict=True)}
        | {"label": index % 2, "Target": index % 2}
        for index, texts in enumerate(cases.tokens(task, equal=True))
    ]


def enter(checkout: Path, libraries: Path) -> None:
    """Let the modules of a checkout be imported."""
    sys.path[:0] = [str(checkout), str(libraries)]
    sys.meta_path.insert(0, StandIns())
    operations = "torchvision._meta_registrations"  # compiled, and called by no transform
    sys.modules[operations] = ModuleType(operations)
    torch.set_default_dtype(torch.float64)


def tasks(protocol: str, checkout: Path) -> list[str]:
    """Return the tasks that a checkout has files for."""
    files = {task: FILES[protocol].format(name) for task, name in TASKS.items()}
    folder = checkout / "configs/experiment"
    return [task for task, name in files.items() if (folder / f"{name}.yaml").exists()]


def trainer(protocol: str, task: str, checkout: Path, words: Sequence[str] = ()) -> Any:
    """Return the trainer of a task, whose dataset holds made-up rows.

    Args:
        protocol: Of the checkout.
        task: The name here.
        checkout: The folder.
        words: Further words for its command.
    """
    here = [f"loader.batch_size={cases.ROWS}", "++loader.num_workers=0", "~loader.pin_memory"]
    here += [] if task in cases.SIDES else [f"dataset.l_max={cases.LENGTH}"]
    folder = task in ("pathfinder", "pathx")
    if folder:
        here += [f"dataset.resolution={cases.SIDES[task]}"]
        here += [f"+dataset.data_dir={folder_of_pictures(task)}"]
    OmegaConf.clear_resolver("eval")
    with hydra.initialize_config_dir(str(checkout / "configs"), version_base="1.1"):
        name = FILES[protocol].format(TASKS[task])
        config = hydra.compose("config", [f"experiment={name}", *here, *words])
    code = importlib.import_module("train")
    config = importlib.import_module("src.utils.train").process_config(config)
    dataset = code.SequenceDataset.registry[config.dataset._name_]
    if task == "image":
        importlib.import_module("torchvision").datasets.CIFAR10 = Pictures
    elif not folder:
        rows, vocabulary = rows_of_tokens(task), {"<pad>": 0}
        vocabulary |= {str(number): number for number in range(1, ROWS)}
        splits = Splits(dict.fromkeys(("train", "val", "test"), rows))
        dataset.process_dataset = lambda _: (splits, list, vocabulary)
    module = code.SequenceLightningModule(config)
    module.setup()
    made = module.dataset
    made.dataset_val = made.dataset_train.dataset if folder else made.dataset_test
    made.dataset_test = made.dataset_val
    return module.double()


def batch(module: Any) -> Any:
    """Return the one batch of validation, from the trainer's own loader."""
    (loaded,) = module.val_dataloader()[:1]
    return next(iter(loaded))
