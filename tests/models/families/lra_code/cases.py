"""Inputs, weights and options of the comparison with the released Long Range Arena code."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True, kw_only=True)
class Case:
    """One attention module, once as released and once as ours."""

    name: str
    family: str
    length: int
    ends: Sequence[int] | None = None
    """Where padding begins in each example; None: no mask is given."""
    released: Mapping[str, Any] = field(default_factory=dict)
    """Options of the released module."""
    ours: Mapping[str, Any] = field(default_factory=dict)
    """Options of our family beside `variant=lra`."""
    site: Mapping[str, Any] = field(default_factory=dict)
    own: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Shapes of the released parameters beside the projections, by path."""
    width: int = 8
    heads: int = 2

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the released parameters by path."""
        head = (self.width, self.heads, self.width // self.heads)
        names = ["query", "key", "value"]
        if self.family == "longformer":
            names = [f"{name}_{kind}" for name in names for kind in ("sliding_window", "global")]
        if self.family == "reformer":
            names.remove("key")
        found = {f"{name}/kernel": head for name in names}
        if self.family != "reformer":
            found["out/kernel"] = (*head[1:], self.width)
        return found | dict(self.own)

    def input(self) -> tuple[np.ndarray, np.ndarray | None]:
        """Return two examples, and False where padding is."""
        x = np.random.RandomState(0).standard_normal((2, self.length, self.width))
        if self.ends is None:
            return x.astype(np.float32), None
        keep = np.arange(self.length) < np.array(self.ends)[:, None]
        keep[:, 5:7] = False  # black pixels
        return x.astype(np.float32), keep

    def stored(self, y: np.ndarray) -> np.ndarray:
        """Return what is compared of an output: all of it, or of each position one number."""
        if self.length > 100:
            y = y @ np.random.RandomState(2).standard_normal(self.width)
        return y.astype(np.float32)


def weights(shapes: Mapping[str, Sequence[int]]) -> dict[str, np.ndarray]:
    """Return weights for parameters of these shapes, drawn one after the other by name."""
    random = np.random.RandomState(1)
    return {
        name: (random.standard_normal(shapes[name]) * 0.5).astype(np.float32)
        for name in sorted(shapes)
    }


PADDED = (37, 20)
SINKHORN = {"own": {"DenseGeneral_0/kernel": (4, 25)}}
LINFORMER = {
    "own": {"lr_kernel": (45, 16)},
    "released": {"max_len": 45},
    "site": {"max_length": 45},
}
SYNTHESIZER = {
    "own": {"random": (2, 45, 45)},
    "released": {
        "max_length": 45, "ignore_dot_product": False, "synthesizer_mode": "random",
    },
    "ours": {"components": ["random", "dot"]},
    "site": {"max_length": 45},
}  # fmt: skip
DENSE = {
    "own": {
        "random1": (2, 45, 32), "random2": (2, 32, 45),
        "dense_syn/kernel": (8, 2, 4), "dense_syn_len/kernel": (4, 45),
    },
    "released": {
        "max_length": 45, "ignore_dot_product": False,
        "synthesizer_mode": "dense+factorized_random",
    },
    "ours": {"components": ["dense", "factorised_random", "dot"], "rank": 32},
    "site": {"max_length": 45},
}  # fmt: skip


def blocks(number: int) -> dict[str, Any]:
    """Return the option of blocks of so many tokens."""
    return {"released": {"block_size": number}, "ours": {"block": number}}


def big_bird(number: int, layer: int) -> dict[str, Any]:
    """Return the options of Big Bird in this layer."""
    released = {"block_size": number, "connectivity_seed": layer}
    return {"released": released, "ours": {"block": number}, "site": {"layer": layer}}


def sparse(first: str | None = None) -> dict[str, Any]:
    """Return the options of Sparse Transformer, where `first` names what opens the first token."""
    both = {"stride": 10, "summary": 3}
    return {
        "released": {**both, "use_cls_token": first is not None},
        "ours": {**both, "open_first": first == "pair"},
        "site": {"cls": first == "cls"},
    }


LONGFORMER = {"released": {"sliding_window_size": 16}, "ours": {"window": [8]}}
SOFTMAX_KERNEL = {
    "released": {"kernel": "softmax", "nb_features": 2, "redraw_features": False},
    "ours": {"kernel": "softmax", "features": 2},
}
RELU = {"released": {"kernel": "generalized"}, "ours": {"kernel": "relu"}}
CASES = [
    Case(name=name, family=name.split()[0], length=length, ends=ends, **options)
    for name, length, ends, options in (
        ("softmax padded", 45, PADDED, {}),
        ("linear", 45, None, {}),
        ("linear padded", 45, PADDED, {}),
        ("performer", 45, PADDED, RELU),
        ("performer softmax", 45, PADDED, SOFTMAX_KERNEL),
        ("linformer", 45, None, LINFORMER),
        ("linformer shorter", 40, PADDED, LINFORMER),
        ("local", 45, None, blocks(8)),
        ("local divisible", 40, None, blocks(8)),
        ("local padded", 45, PADDED, blocks(8)),
        ("longformer", 45, None, LONGFORMER),
        ("longformer padded", 45, PADDED, LONGFORMER),
        ("sinkhorn", 48, None, SINKHORN | blocks(8)),
        ("sinkhorn padded", 48, PADDED, SINKHORN | blocks(8)),
        ("sparse_transformer", 45, None, sparse()),
        ("sparse_transformer padded", 45, PADDED, sparse()),
        ("sparse_transformer CLS", 45, PADDED, sparse("cls")),
        ("sparse_transformer pair", 45, PADDED, sparse("pair")),
        ("synthesizer", 45, None, SYNTHESIZER),
        ("synthesizer padded", 40, PADDED, SYNTHESIZER),
        ("synthesizer dense", 40, None, DENSE),
        ("reformer", 45, None, {}),
        ("reformer divisible", 40, PADDED, {}),
        ("big_bird", 45, None, big_bird(4, 0)),
        ("big_bird divisible", 48, None, big_bird(4, 1)),
        ("big_bird padded", 45, PADDED, big_bird(4, 3)),
        ("big_bird longer", 1250, (1250, 600), big_bird(64, 0)),
    )
]
