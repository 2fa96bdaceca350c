"""Run the trainer of the S5 code for an epoch of one batch; store what its evaluation answers.

    python -P tests/lra/released_models/s5_models.py CHECKOUT LIBRARIES

CHECKOUT is a clone of github.com/lindermanlab/S5 (commit 3c18fdb). LIBRARIES holds what it imports,
as `pip install --target LIBRARIES jax==0.4.13 jaxlib==0.4.13 flax==0.7.2 optax==0.1.7
orbax-checkpoint==0.3.5 'numpy<1.25' 'scipy<1.11' 'ml_dtypes<0.3'` leaves it. `train` is called with
the options of its commands, as `settings.py` has stored them, but with small batches, without
dropout, in float64, with shorter sequences and weights by the rule of `cases.py`. Texts are made up
and go through its data sets, their cutting and end tokens, vocabularies and collation; pictures,
which stand in files there, enter as what these hold.

Stored are the log probabilities of evaluation, the loss of the first step of training (by the
statistics of its batch), and the ids and lengths that reach the model.
"""

import importlib
import json
import sys
import types
from collections import Counter
from pathlib import Path
from unittest.mock import MagicMock

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), *sys.argv[1:]]
import cases  # noqa: E402
import flax  # noqa: E402
import jax  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
from jax import numpy as jnp  # noqa: E402

UNREAD = ("wandb", "torchvision", "torchaudio", "torchaudio.functional", "einops",
          "einops.layers.torch")  # fmt: skip
DATASETS = {"listops": "ListOps", "text": "IMDB", "retrieval": "AAN"}
"""Classes of the data sets whose rows are read."""
COLUMNS = {
    "listops": ("Target", "Source"),
    "text": ("label", "text"),
    "retrieval": ("label", "text1", "text2"),
}
"""Of their files."""
STEP = -4.0
"""Around which log dt is, by the rule."""


class Split(list):
    """Stand for the rows of `datasets.Dataset`."""

    features = types.MappingProxyType({})

    def __getitem__(self, key: object) -> object:
        return [row[key] for row in self] if isinstance(key, str) else super().__getitem__(key)


class Splits(dict):
    """Stand for `datasets.DatasetDict`."""

    def map(self, change: object, remove_columns: object = (), **_: object) -> "Splits":
        changed = {name: [{**row, **change(row)} for row in rows] for name, rows in self.items()}
        return Splits(changed).remove_columns(remove_columns)

    def remove_columns(self, columns: list[str]) -> "Splits":
        return Splits(
            {name: Split({key: row[key] for key in row if key not in columns} for row in rows)
             for name, rows in self.items()}
        )  # fmt: skip

    def cast(self, _: object) -> "Splits":
        return self

    def set_format(self, **_: object) -> None:
        for rows in self.values():
            for row in rows:
                row.update({key: torch.tensor(value) for key, value in row.items()})


class Vocabulary(dict):
    """Stand for what `torchtext.vocab.build_vocab_from_iterator` returns."""

    def set_default_index(self, unknown: int) -> None:
        self.unknown = unknown

    def __call__(self, words: list[str]) -> list[int]:
        return [self.get(word, self.unknown) for word in words]


def vocabulary(texts: list[list[str]], specials: list[str], min_freq: int = 1) -> Vocabulary:
    """Return ids of words, the frequent ones first."""
    counted = Counter(word for text in texts for word in text)
    words = sorted((w for w in counted if counted[w] >= min_freq), key=lambda w: (-counted[w], w))
    return Vocabulary({word: i for i, word in enumerate([*specials, *words])})


def made_up(task: str) -> Splits:
    """Return rows as the files of a task have them, the same in every split."""
    texts = [[cases.text(task, part) for part in row] for row in cases.printable(task, LENGTH - 1)]
    label, *names = COLUMNS[task]
    rows = [{label: 1, **dict(zip(names, row, strict=True))} for row in texts]
    return Splits({name: Split(rows) for name in ("train", "val", "test")})


NORMALISED = {"image": (122.6 / 255, 61 / 255)}
"""Mean and deviation that levels are normalised by."""
LENGTH = 128
"""Of every sequence, the end token of the longest one included."""


def pictures(dataloading: types.ModuleType, task: str) -> object:
    """Return what makes the loaders of a task of pictures, behind its reading of files."""
    collation = importlib.import_module("s5.dataloaders.base").SequenceDataset

    def made(_: str, seed: int, bsz: int) -> tuple:
        mean, deviation = NORMALISED.get(task, (0.5, 0.5))
        levels = cases.tokens(task, LENGTH).view(cases.ROWS, -1, 1) / 255
        labels = torch.ones(cases.ROWS, dtype=torch.long)
        rows = torch.utils.data.TensorDataset((levels - mean) / deviation, labels)
        loader = dataloading.make_data_loader(rows, collation, seed, bsz, shuffle=False)
        classes = 10 if task == "image" else 2
        return loader, None, loader, {}, classes, LENGTH, 1, cases.ROWS

    return made


def filled(tree: dict, above: str = "") -> dict:
    """Return parameters and statistics as weights by the rule: a kernel as [outputs, inputs]."""
    found = {}
    for key, part in tree.items():
        path = f"{above}{key}"
        if hasattr(part, "items"):
            found[key] = filled(part, f"{path}/")
        elif key == "kernel":
            found[key] = jnp.array(cases.weight(path, part.shape[::-1]).T.numpy())
        elif part.ndim == 3:  # complex
            weight = cases.weight(path, (2, *part.shape[:2])).movedim(0, -1)
            found[key] = jnp.array(weight.numpy())
        else:
            weight = cases.weight(path.replace("/var", "/running_var"), part.shape[:1])
            weight = weight + STEP * (key == "log_step")
            found[key] = jnp.array(weight.view(part.shape).numpy())
    return found


def answer(task: str, options: dict) -> dict[str, np.ndarray]:
    """Return what the trainer's steps say of a task."""
    dataloading = importlib.import_module("s5.dataloading")
    trainer, steps = (importlib.import_module(f"s5.{name}") for name in ("train", "train_helpers"))
    create, seen = steps.create_train_state, {}
    train_step, eval_step = steps.train_step, steps.eval_step
    if task in DATASETS:
        data = importlib.import_module("s5.dataloaders.lra")
        kind = getattr(data, DATASETS[task])
        usual = kind.init_defaults.fget
        small = {"l_max": LENGTH, "min_freq": 1}
        kind.init_defaults = property(lambda self: {**usual(self), **small})
        kind._save_to_cache = lambda *_: None
        data.load_dataset = lambda *_, **__: made_up(task)
    else:
        dataloading.Datasets[options["dataset"]] = pictures(dataloading, task)

    def created(*given: object, **named: object) -> object:
        state = create(*given, **named)
        return state.replace(params=filled(state.params), batch_stats=filled(state.batch_stats))

    def trained(state: object, *given: object) -> tuple:
        _, seen["loss"] = train_step(state, *given)
        return state, seen["loss"]

    def judged(inputs: object, *given: object) -> tuple:
        found = eval_step(inputs, *given)
        seen["logits"] = found[2]
        if isinstance(inputs, tuple):
            seen["ids"] = inputs[0].argmax(-1).astype(np.uint8)
            seen["lengths"] = inputs[1].astype(np.uint16)
        return found

    trainer.create_train_state = created
    steps.train_step, steps.eval_step = trained, judged
    changed = {"epochs": 1, "bsz": cases.ROWS, "p_dropout": 0.0, "dir_name": "no folder"}
    trainer.train(types.SimpleNamespace(**{**options, **changed}))
    steps.train_step, steps.eval_step = train_step, eval_step
    return {f"{task}.{key}": np.array(value) for key, value in seen.items()}


def main() -> None:
    """Store what is said of every task."""
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_disable_jit", True)  # for compiling takes longer than running
    flax.config.update("flax_return_frozendict", True)
    sys.modules |= {name: MagicMock() for name in UNREAD}
    sys.modules["datasets"] = types.SimpleNamespace(
        DatasetDict=Splits, Value=MagicMock(), load_dataset=None
    )
    made = types.SimpleNamespace(build_vocab_from_iterator=vocabulary)
    sys.modules["torchtext"] = types.SimpleNamespace(vocab=made)
    found: dict[str, np.ndarray] = {}
    for task, options in json.loads((HERE / "s5.json").read_text()).items():
        found |= answer(task, options)
    np.savez_compressed(HERE / "s5.npz", **found)


if __name__ == "__main__":
    main()
