"""Optimisers written from their papers, one parameter at a time, in NumPy."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[np.float64]]
Past = dict[str, Any]
"""What a rule remembers of a parameter, and `t`, the update's number from 1."""
Rule = Callable[[Array, Array, float, Any, Past], Array]
"""(weight, gradient, rate, options, past) to the next weight."""


def moments(g: Array, o: Any, past: Past) -> tuple[Array, Array]:
    """Means of the gradient and of its square, both without the bias towards 0."""
    (first, second), t = o.betas, past["t"]
    past["m"] = first * past.get("m", 0.0) + (1 - first) * g
    past["v"] = second * past.get("v", 0.0) + (1 - second) * g * g
    return past["m"] / (1 - first**t), past["v"] / (1 - second**t)


def adam(w: Array, g: Array, rate: float, o: Any, past: Past) -> Array:
    m, v = moments(g + o.weight_decay * w, o, past)
    return w - rate * m / (np.sqrt(v) + o.epsilon)


def adamw(w: Array, g: Array, rate: float, o: Any, past: Past) -> Array:
    m, v = moments(g, o, past)
    return w - rate * (m / (np.sqrt(v) + o.epsilon) + o.weight_decay * w)


def radam(w: Array, g: Array, rate: float, o: Any, past: Past) -> Array:
    m, _ = moments(g, o, past)
    second, t = o.betas[1], past["t"]
    longest = 2 / (1 - second) - 1
    length = longest - 2 * t * second**t / (1 - second**t)
    w = w - rate * o.weight_decay * w
    if length <= 5:  # PyTorch's and the authors' bound; the paper's text has 4
        return w - rate * m
    rectified = np.sqrt(
        (length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length)
    )
    # as the authors' code: epsilon joins the root before its bias is taken out
    root = (np.sqrt(past["v"]) + o.epsilon) / np.sqrt(1 - second**t)
    return w - rate * rectified * m / root


def adagrad(w: Array, g: Array, rate: float, o: Any, past: Past) -> Array:
    g = g + o.weight_decay * w
    past["sum"] = past.get("sum", o.initial_accumulator) + g * g
    norm = float(np.sqrt((g * g).sum()))
    if o.tensor_clip is not None and norm > o.tensor_clip:
        rate = rate * o.tensor_clip / norm
    return w - rate * g / (np.sqrt(past["sum"]) + o.epsilon)


def adafactor(w: Array, g: Array, rate: float, o: Any, past: Past) -> Array:
    t = past["t"]
    share = t**o.beta2_decay
    size = max(o.least_scale, float(np.sqrt((w * w).mean()))) * min(rate, t**-0.5)
    w = w - rate * o.weight_decay * w
    if w.ndim > 1:
        row, column = (g * g).mean(-1, keepdims=True), (g * g).mean(-2, keepdims=True)
        past["r"] = (1 - share) * past.get("r", 0.0) + share * row
        past["c"] = (1 - share) * past.get("c", 0.0) + share * column
        mean = np.maximum(past["r"].mean(-2, keepdims=True), o.epsilon)
        v = past["r"] * past["c"] / mean
    else:
        v = past["v"] = (1 - share) * past.get("v", 0.0) + share * g * g
    update = g / np.maximum(np.sqrt(v), o.epsilon)
    update = update / max(1.0, float(np.sqrt((update * update).mean())) / o.update_clip)
    return w - size * update


def sgd(w: Array, g: Array, rate: float, o: Any, past: Past) -> Array:
    g = g + o.weight_decay * w
    past["m"] = o.momentum * past.get("m", 0.0) + g
    return w - rate * (g + o.momentum * past["m"] if o.nesterov else past["m"])


def lion(w: Array, g: Array, rate: float, o: Any, past: Past) -> Array:
    first, second = o.betas
    m = past.get("m", np.zeros_like(g))
    step = np.sign(first * m + (1 - first) * g)
    past["m"] = second * m + (1 - second) * g
    return w - rate * (step + o.weight_decay * w)


def lamb(w: Array, g: Array, rate: float, o: Any, past: Past) -> Array:
    m, v = moments(g, o, past)
    step = m / (np.sqrt(v) + o.epsilon) + o.weight_decay * w
    size, length = np.linalg.norm(w.ravel()), np.linalg.norm(step.ravel())
    return w - rate * (size / length if size > 0 and length > 0 else 1.0) * step


RULES: Mapping[str, Rule] = {
    "adamw": adamw, "adam": adam, "adafactor": adafactor, "adagrad": adagrad, "radam": radam,
    "sgd": sgd, "lion": lion, "lamb": lamb,
}  # fmt: skip
