"""A training written without lra, as `whole_run.py` measures it: PyTorch, numpy and one framework.

    python tests/benchmarks/plain_training.py hand|trainer|fabric FOLDER STEPS

FOLDER is what `whole_run.py` prepared: the weights to start from, the rows of every batch, and the
place of the prepared split. Printed is the loss on the test split, as JSON.
"""

import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

BATCH, RATE, BETAS, EPSILON, CLIP = 32, 1e-3, (0.9, 0.98), 1e-9, 1.0
WIDTH, HEADS, DEPTH, CLASSES = 64, 2, 2, 10


Attend = Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]
"""Of queries, keys, values and a mask, which is True for keys that are real: [b 1 1 l]."""


def softmax(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """Attend with scores that are written out."""
    scores = (q * q.shape[-1] ** -0.5) @ k.mT
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    return scores.softmax(-1) @ v


def linear(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """Attend by features elu + 1, the keys' as 0 at padding."""
    q, k = F.elu(q) + 1, F.elu(k) + 1
    if mask is not None:
        k = k * mask.mT
    return (q @ (k.mT @ v)) / (q @ k.sum(-2)[..., None])


ATTEND: dict[str, Attend] = {
    "sdpa": F.scaled_dot_product_attention, "softmax": softmax, "linear": linear,
}  # fmt: skip


class Layer(nn.Module):
    """Attention and a network, each behind a norm."""

    def __init__(self, attend: Attend) -> None:
        super().__init__()
        self.attend = attend
        self.mixer_norm, self.network_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.mixer = nn.ModuleDict(
            {f"{name}_proj": nn.Linear(WIDTH, WIDTH) for name in ("q", "k", "v", "out")}
        )
        self.network = nn.Sequential(
            nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Dropout(0.0), nn.Linear(2 * WIDTH, WIDTH)
        )

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        h = self.mixer_norm(x)
        q, k, v = (
            self.mixer[f"{name}_proj"](h).unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for name in "qkv"
        )
        mixed = self.attend(q, k, v, mask)
        x = x + self.mixer["out_proj"](mixed.transpose(1, 2).flatten(-2))
        return x + self.network(self.network_norm(x))


class Positions(nn.Module):
    """A learned vector for each place."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.empty(length, WIDTH))


class Classifier(nn.Module):
    """The model, whose weights are called as lra calls them."""

    def __init__(self, weights: dict[str, Tensor], family: str = "sdpa") -> None:
        super().__init__()
        self.embedding = nn.Embedding(*weights["embedding.weight"].shape)
        self.cls = nn.Parameter(torch.empty(WIDTH))
        self.positions = Positions(len(weights["positions.table"]))
        self.stack = nn.ModuleDict(
            {
                "blocks": nn.ModuleList(Layer(ATTEND[family]) for _ in range(DEPTH)),
                "norm": nn.LayerNorm(WIDTH),
            }
        )
        self.head = nn.ModuleDict(
            {"hidden": nn.Linear(WIDTH, 2 * WIDTH), "out": nn.Linear(2 * WIDTH, CLASSES)}
        )
        self.load_state_dict(weights)

    def forward(self, tokens: Tensor, keep: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Return loss and logits."""
        x = self.embedding(tokens)
        x = torch.cat([self.cls.expand(len(x), 1, -1), x], 1)
        x = x + self.positions.table[: x.shape[1]]
        mask = F.pad(keep, (1, 0), value=True)[:, None, None]
        for layer in self.stack["blocks"]:
            x = layer(x, mask)
        x = self.stack["norm"](x[:, 0])
        logits = self.head["out"](F.relu(self.head["hidden"](x)))
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


class Split(torch.utils.data.Dataset[dict[str, Any]]):
    """Some rows of a split, in the order in which they are read."""

    def __init__(self, folder: Path, name: str, rows: np.ndarray | None = None) -> None:
        parts = (np.load(folder / f"{name}.{p}.npy") for p in ("tokens", "offsets", "targets"))
        self.tokens, self.offsets, self.targets = parts
        self.rows = np.arange(len(self.targets)) if rows is None else rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        row = self.rows[index]
        tokens = self.tokens[self.offsets[row] : self.offsets[row + 1]]
        return {"tokens": tokens, "labels": int(self.targets[row])}


def collate(examples: list[dict[str, Any]]) -> dict[str, Tensor]:
    """Pad the rows of a batch with 0."""
    longest = max(len(example["tokens"]) for example in examples)
    tokens = np.zeros((len(examples), longest), np.int64)
    for row, example in zip(tokens, examples, strict=True):
        row[: len(example["tokens"])] = example["tokens"]
    ids = torch.from_numpy(tokens)
    labels = torch.tensor([example["labels"] for example in examples])
    return {"tokens": ids, "keep": ids != 0, "labels": labels}


def batches(split: Split, size: int = BATCH) -> Iterator[dict[str, Tensor]]:
    """Yield the batches of a split in its order."""
    for first in range(0, len(split), size):
        yield collate([split[i] for i in range(first, min(first + size, len(split)))])


def optimiser_of(model: nn.Module) -> torch.optim.Optimizer:
    """Return the optimiser of every side."""
    return torch.optim.AdamW(
        model.parameters(), lr=RATE, betas=BETAS, eps=EPSILON, weight_decay=0.0, fused=True
    )


def by_hand(model: nn.Module, train: Split) -> None:
    """Train by a loop."""
    optimiser = optimiser_of(model)
    for batch in batches(train):
        model(**batch)["loss"].backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimiser.step()
        optimiser.zero_grad()


def by_fabric(model: nn.Module, train: Split) -> None:
    """Train by Lightning Fabric."""
    from lightning.fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=1)
    wrapped, optimiser = fabric.setup(model, optimiser_of(model))
    for batch in batches(train):
        fabric.backward(wrapped(**batch)["loss"])
        fabric.clip_gradients(wrapped, optimiser, max_norm=CLIP)
        optimiser.step()
        optimiser.zero_grad()


def by_trainer(model: nn.Module, train: Split) -> None:
    """Train by Hugging Face's Trainer."""
    from transformers import Trainer, TrainingArguments

    class InOrder(Trainer):
        def _get_train_sampler(self, *_: Any) -> Any:
            return torch.utils.data.SequentialSampler(train)

    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder, max_steps=len(train) // BATCH, per_device_train_batch_size=BATCH,
            max_grad_norm=CLIP, save_strategy="no", logging_strategy="no", report_to=[],
            use_cpu=True, disable_tqdm=True, remove_unused_columns=False,
        )  # fmt: skip
        optimiser = optimiser_of(model)
        constant = torch.optim.lr_scheduler.ConstantLR(optimiser, factor=1.0)
        InOrder(
            model, arguments, train_dataset=train, data_collator=collate,
            optimizers=(optimiser, constant),
        ).train()  # fmt: skip


SIDES = {"hand": by_hand, "trainer": by_trainer, "fabric": by_fabric}


def main() -> None:
    """Train, evaluate, and print the loss on the test split."""
    side, place, steps = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    data = Path((place / "data.txt").read_text())
    model = Classifier(torch.load(place / "start.pt", weights_only=True))
    order = np.load(place / "order.npy")[:steps]
    SIDES[side](model, Split(data, "train", order.ravel()))
    model.eval()
    test, total, hits = Split(data, "test"), 0.0, 0
    test.rows = test.rows[np.argsort(-np.diff(test.offsets), kind="stable")]
    with torch.no_grad():
        for batch in batches(test, 64):
            out = model(**batch)
            total += float(out["loss"]) * len(batch["labels"])
            hits += int((out["logits"].argmax(-1) == batch["labels"]).sum())
    print(json.dumps({"loss": total / len(test), "accuracy": hits / len(test)}))


if __name__ == "__main__":
    main()
