"""A baseline that sees nothing of Pathfinder's pictures but how far apart the two discs lie.

The discs are found again in the pixels: where every pixel of a disc is at least as bright as a disc
makes it. Distances are put into classes of equal frequency on train, and each class answers its
more frequent label.
"""

import numpy as np
from jaxtyping import Bool, Float64, Int, UInt8

from lra.tasks.baselines.seen_examples import Pictures
from lra.tasks.data.batching import Draw, permutation

FIT_EXAMPLES = 20_000
CLASSES = 16
CORE = 128
"""Level from which a disc's pixel is looked at."""
BLOCK = 256
"""Pictures that are looked at in one go."""


def distance_answers(
    train: Pictures, data: Pictures, disc: UInt8[np.ndarray, "d d"]
) -> Bool[np.ndarray, " m"]:
    """Fit on `train`; return for each picture of `data` whether the answer is right."""
    chosen = np.sort(permutation(Draw.order, 0, len(train.targets))[:FIT_EXAMPLES])
    train_distances, labels = distances(train, chosen, disc), train.targets[chosen]
    edges = np.quantile(train_distances, np.arange(1, CLASSES) / CLASSES)
    classes = np.searchsorted(edges, train_distances, side="right")
    votes = np.bincount(classes, 2.0 * labels - 1, minlength=CLASSES)
    data_distances = distances(data, np.arange(len(data.targets)), disc)
    guess = votes[np.searchsorted(edges, data_distances, side="right")] > 0
    right: Bool[np.ndarray, " m"] = guess == data.targets.astype(bool)
    return right


def distances(
    data: Pictures, examples: Int[np.ndarray, " n"], disc: UInt8[np.ndarray, "d d"]
) -> Float64[np.ndarray, " n"]:
    """Return the distance of the discs of some pictures, in pixels."""
    blocks = np.split(examples, range(BLOCK, len(examples), BLOCK))
    centres = np.concatenate([disc_positions(data.read(some), disc) for some in blocks]).astype(
        np.float64
    )
    lengths: Float64[np.ndarray, " n"] = np.hypot(*(centres[:, 0] - centres[:, 1]).T)
    return lengths


def disc_positions(
    pictures: UInt8[np.ndarray, "n s s"], disc: UInt8[np.ndarray, "d d"]
) -> Int[np.ndarray, "n 2 2"]:
    """Return row and column of the two discs of each picture, the surer one first.

    Args:
        pictures: Levels.
        disc: Levels of one disc; its position is the middle pixel.
    """
    return np.stack(np.divmod(_best(_fit(pictures, disc)), pictures.shape[1]), axis=2)


def _fit(pictures: UInt8[np.ndarray, "n s s"], disc: UInt8[np.ndarray, "d d"]) -> np.ndarray:
    """Return, at each pixel, the brightest disc that could lie there, as a share of the level."""
    half, side = len(disc) // 2, pictures.shape[1]
    padded = np.pad(pictures.astype(np.float32), ((0, 0), (half, half), (half, half)))
    brightness = np.full(pictures.shape, np.inf, np.float32)
    for y, x in np.argwhere(disc >= CORE).tolist():
        share = padded[:, y : y + side, x : x + side] * np.float32(1 / disc[y, x])
        np.minimum(brightness, share, out=brightness)
    return brightness.reshape(len(pictures), -1)


def _best(fits: np.ndarray) -> Int[np.ndarray, "n 2"]:
    """Return the positions of the two largest values of each row."""
    rows = np.arange(len(fits))
    first = fits.argmax(1)
    fits[rows, first] = -np.inf
    return np.stack([first, fits.argmax(1)], axis=1)
