"""A baseline for pictures that reads only small windows: a convolutional network of two layers.

    picture [s, s]  ->  5 x 5, stride 2, 16 channels  ->  3 x 3, 64 channels  ->  mean  ->  linear

Both layers use batch normalisation. The answer depends on the mean over all windows of 9 x 9
pixels, so the network ignores where a window lies and what connects two windows. Adam fits it for
6 epochs on at most 20,000 training pictures of 32 x 32, or on the same number of pixels of other
pictures. A model of long sequences has to beat this score; a larger CNN would reach a higher one.
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
"""Side in pixels of the windows: the receptive field of the second layer."""
FIT_PIXELS = 20_000 * 32 * 32
"""Most pixels of the training pictures together."""
EPOCHS = 6
BATCH = 64
RATE = 0.01


class WindowNetwork(nn.Sequential):
    """The network: maps pictures [b, s, s] of numbers to logits [b, classes]."""

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


def _read_numbers(
    pictures: Pictures, examples: Int[np.ndarray, " b"]
) -> Float[torch.Tensor, "b s s"]:
    """Return some pictures with levels scaled from 0 … 255 to -0.5 … 0.5."""
    return torch.from_numpy(pictures.read(examples)).float().div_(255).sub_(0.5)


def window_answers(train: Pictures, data: Pictures, *, classes: int) -> Bool[np.ndarray, " m"]:
    """Fit the network on `train`, and return for each picture of `data` whether it is correct."""
    # The size of what `read` returns for one example: the pixels of a picture.
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
                    batch = order[first : first + BATCH]
                    optimiser.zero_grad()
                    logits = model(_read_numbers(train, batch))
                    cross_entropy(logits, torch.from_numpy(train.targets[batch])).backward()  # type: ignore[no-untyped-call]
                    optimiser.step()
                    schedule.step()
                    bar.update()
        model.eval()
        examples = np.arange(len(data.targets))
        with torch.no_grad():
            answers = [
                model(_read_numbers(data, batch)).argmax(1).numpy()
                for batch in np.split(examples, range(BATCH, len(examples), BATCH))
            ]
    correct: Bool[np.ndarray, " m"] = np.concatenate(answers) == data.targets
    return correct
