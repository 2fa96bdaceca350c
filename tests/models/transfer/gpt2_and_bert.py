"""GPT-2 and BERT written out from their papers, over tensors with the public names."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

Tensors = dict[str, Tensor]


def gpt2_tensors(
    *, layers: int = 2, width: int = 12, hidden: int = 20, vocabulary: int = 11, places: int = 9
) -> Tensors:
    """Random weights under the names of the transformers package, without a prefix."""
    shapes: dict[str, tuple[int, ...]] = {
        "wte.weight": (vocabulary, width),
        "wpe.weight": (places, width),
        "ln_f.weight": (width,),
        "ln_f.bias": (width,),
    }
    for layer in range(layers):
        for name, rows, columns in (
            ("attn.c_attn", width, 3 * width),
            ("attn.c_proj", width, width),
            ("mlp.c_fc", width, hidden),
            ("mlp.c_proj", hidden, width),
        ):
            shapes[f"h.{layer}.{name}.weight"] = (rows, columns)
            shapes[f"h.{layer}.{name}.bias"] = (columns,)
        for norm in ("ln_1", "ln_2"):
            shapes |= {f"h.{layer}.{norm}.{kind}": (width,) for kind in ("weight", "bias")}
    return _random(shapes)


def bert_tensors(
    *, layers: int = 2, width: int = 12, hidden: int = 20, vocabulary: int = 11, places: int = 9
) -> Tensors:
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (vocabulary, width),
        "embeddings.position_embeddings.weight": (places, width),
        "embeddings.token_type_embeddings.weight": (2, width),
    }
    norms = ["embeddings.LayerNorm"]
    for layer in range(layers):
        prefix = f"encoder.layer.{layer}"
        for name, rows, columns in (
            ("attention.self.query", width, width),
            ("attention.self.key", width, width),
            ("attention.self.value", width, width),
            ("attention.output.dense", width, width),
            ("intermediate.dense", hidden, width),
            ("output.dense", width, hidden),
        ):
            shapes[f"{prefix}.{name}.weight"] = (rows, columns)
            shapes[f"{prefix}.{name}.bias"] = (rows,)
        norms += [f"{prefix}.attention.output.LayerNorm", f"{prefix}.output.LayerNorm"]
    for norm in norms:
        shapes |= {f"{norm}.{kind}": (width,) for kind in ("weight", "bias")}
    return _random(shapes)


def _random(shapes: dict[str, tuple[int, ...]]) -> Tensors:
    generator = torch.Generator().manual_seed(0)
    return {
        name: torch.randn(shape, generator=generator, dtype=torch.float64) / 2
        for name, shape in shapes.items()
    }


def _norm(x: Tensor, tensors: Tensors, name: str, epsilon: float) -> Tensor:
    return F.layer_norm(
        x, x.shape[-1:], tensors[f"{name}.weight"], tensors[f"{name}.bias"], epsilon
    )


def _attend(q: Tensor, k: Tensor, v: Tensor, heads: int, *, causal: bool) -> Tensor:
    """Attention over [l d], head by head."""
    found = []
    for q_h, k_h, v_h in zip(*(x.chunk(heads, -1) for x in (q, k, v)), strict=True):
        scores = q_h @ k_h.T / math.sqrt(q_h.shape[-1])
        if causal:
            later = torch.ones_like(scores).triu(1).bool()
            scores = scores.masked_fill(later, -math.inf)
        found.append(scores.softmax(-1) @ v_h)
    return torch.cat(found, -1)


def gpt2(tokens: Tensor, tensors: Tensors, heads: int, head: Tensor | None = None) -> Tensor:
    """Return the logits [l vocabulary] of tokens [l]."""

    def linear(x: Tensor, name: str) -> Tensor:
        return x @ tensors[f"{name}.weight"] + tensors[f"{name}.bias"]

    x = tensors["wte.weight"][tokens] + tensors["wpe.weight"][: len(tokens)]
    layers = sum(name.endswith("ln_1.bias") for name in tensors)
    for layer in range(layers):
        seen = _norm(x, tensors, f"h.{layer}.ln_1", 1e-5)
        q, k, v = linear(seen, f"h.{layer}.attn.c_attn").chunk(3, -1)
        x = x + linear(_attend(q, k, v, heads, causal=True), f"h.{layer}.attn.c_proj")
        hidden = linear(_norm(x, tensors, f"h.{layer}.ln_2", 1e-5), f"h.{layer}.mlp.c_fc")
        inner = math.sqrt(2 / math.pi) * (hidden + 0.044715 * hidden**3)
        x = x + linear(0.5 * hidden * (1 + inner.tanh()), f"h.{layer}.mlp.c_proj")
    return _norm(x, tensors, "ln_f", 1e-5) @ (tensors["wte.weight"] if head is None else head).T


def bert(tokens: Tensor, tensors: Tensors, heads: int) -> Tensor:
    """Return the last layer's output [l d] for one segment of tokens [l]."""

    def linear(x: Tensor, name: str) -> Tensor:
        return x @ tensors[f"{name}.weight"].T + tensors[f"{name}.bias"]

    x = tensors["embeddings.word_embeddings.weight"][tokens]
    x = x + tensors["embeddings.position_embeddings.weight"][: len(tokens)]
    x = x + tensors["embeddings.token_type_embeddings.weight"][0]
    x = _norm(x, tensors, "embeddings.LayerNorm", 1e-12)
    layers = sum(name.endswith("self.query.bias") for name in tensors)
    for layer in range(layers):
        prefix = f"encoder.layer.{layer}"
        q, k, v = (linear(x, f"{prefix}.attention.self.{n}") for n in ("query", "key", "value"))
        mixed = linear(_attend(q, k, v, heads, causal=False), f"{prefix}.attention.output.dense")
        x = _norm(x + mixed, tensors, f"{prefix}.attention.output.LayerNorm", 1e-12)
        hidden = linear(x, f"{prefix}.intermediate.dense")
        hidden = hidden * 0.5 * (1 + torch.erf(hidden / math.sqrt(2)))
        x = _norm(x + linear(hidden, f"{prefix}.output.dense"), tensors, f"{prefix}.output.LayerNorm", 1e-12)  # fmt: skip  # noqa: E501
    return x
