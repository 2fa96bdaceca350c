"""A baseline for pictures that reads only small windows: a convolutional network of two layers.

    picture [s, s]  ->  5 x 5, stride 2, 16 channels  ->  3 x 3, 64 channels  ->  mean  ->  linear

Both layers are normalised over the batch. What it answers is a mean of what it finds in windows of
9 x 9 pixels: where the windows lie, and what joins them, is lost. It is fitted by Adam for 6 epochs
on at most 20,000 training pictures of 32 x 32, or as many pixels of others: a score that a model of
long sequences has to beat, not the best of its kind.
"""

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import nn
from torch.nn.functional import cross_entropy

from lra.tasks.baselines.seen_examples import Pictures
from lra.tasks.data.bars import tqdm
from lra.tasks.data.batching import Draw, permutation

WINDOW = 9
"""Side in pixels of the window behind an answer."""
FIT_PIXELS = 20_000 * 32 * 32
EPOCHS = 6
BATCH = 64
RATE = 0.01


class WindowNetwork(nn.Sequential):
    """The network; [b, s, s] numbers become logits [b, classes]."""

    def __init__(self, classes: int) -> None:
        super().__init__(
            nn.Unflatten(1, (1, -1)),
            nn.Conv2d(1, 16, 5, stride=2, padding=2),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.Conv2d(16, 64, 3, padding=1),
            nn.BatchNorm2d(64),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(64, classes),
        )


def _numbers(pictures: Pictures, examples: Int[np.ndarray, " b"]) -> Float[torch.Tensor, "b s s"]:
    return torch.from_numpy(pictures.read(examples)).float().div_(255).sub_(0.5)


def window_answers(train: Pictures, data: Pictures, *, classes: int) -> Bool[np.ndarray, " m"]:
    """Fit on `train`; return for each picture of `data` whether the answer is correct."""
    number = max(BATCH, FIT_PIXELS // train.read(np.arange(1)).size)
    chosen = permutation(Draw.order, 0, len(train.targets))[:number]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = WindowNetwork(classes)
        optimiser = torch.optim.Adam(model.parameters(), lr=RATE)
        steps = EPOCHS * -(-len(chosen) // BATCH)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
        with tqdm(total=steps, desc="windows", unit="batch", disable=None) as bar:
            for epoch in range(EPOCHS):
                order = chosen[permutation(Draw.order, 1 + epoch, len(chosen))]
                for first in range(0, len(order), BATCH):
                    some = order[first : first + BATCH]
                    optimiser.zero_grad()
                    logits = model(_numbers(train, some))
                    cross_entropy(logits, torch.from_numpy(train.targets[some])).backward()  # type: ignore[no-untyped-call]
                    optimiser.step()
                    schedule.step()
                    bar.update()
        model.eval()
        every = np.arange(len(data.targets))
        with torch.no_grad():
            guesses = [
                model(_numbers(data, some)).argmax(1).numpy()
                for some in np.split(every, range(BATCH, len(every), BATCH))
            ]
    right: Bool[np.ndarray, " m"] = np.concatenate(guesses) == data.targets
    return right
