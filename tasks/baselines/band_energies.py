"""A logistic regression on how loud a recording is in each band of frequencies.

It knows the spectrum of a whole recording, and nothing of the order of its sounds.
"""

import numpy as np
from jaxtyping import Float, Int

from lra.tasks.tensors import torch

BANDS = 40
FIT_EXAMPLES = 20_000
"""Most training examples that are used."""
STEPS = 100
DECAY = 1e-3
"""Weight of the sum of squared weights in the loss."""


def band_energies(samples: Float[np.ndarray, "n l"]) -> Float[np.ndarray, "n 40"]:
    """Return the logarithm of the mean power in each of 40 equally wide bands."""
    length = max(samples.shape[1], 2 * BANDS)  # so that no band is empty
    power = np.abs(np.fft.rfft(samples, length, axis=1)) ** 2
    edges = np.linspace(0, power.shape[1], BANDS + 1).astype(int)[:-1]
    widths = np.diff(np.append(edges, power.shape[1]))
    return np.log(np.add.reduceat(power, edges, axis=1) / widths + 1e-9)


def band_answers(
    train: Float[np.ndarray, "n 40"],
    targets: Int[np.ndarray, " n"],
    data: Float[np.ndarray, "m 40"],
    *,
    classes: int,
) -> Int[np.ndarray, " m"]:
    """Return the classes that a logistic regression, fitted on `train`, gives to `data`."""
    mean, deviation = train.mean(0), train.std(0) + 1e-9
    inputs, asked = (torch.from_numpy((part - mean) / deviation) for part in (train, data))
    labels = torch.from_numpy(targets)
    weights = torch.zeros(BANDS + 1, classes, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS([weights], max_iter=STEPS, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        optimiser.zero_grad()
        logits, penalty = inputs @ weights[1:] + weights[0], weights[1:].square().sum()
        total = torch.nn.functional.cross_entropy(logits, labels) + DECAY * penalty
        total.backward()  # type: ignore[no-untyped-call]
        return total

    optimiser.step(loss)  # type: ignore[no-untyped-call]
    answers: np.ndarray = (asked @ weights[1:] + weights[0]).argmax(1).numpy()
    return answers
