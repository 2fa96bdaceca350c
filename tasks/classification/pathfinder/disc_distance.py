"""A baseline for Pathfinder that reads only the distance between the two discs of a picture.

It finds a disc where all pixels are at least as bright as a disc makes them. It sorts distances
into classes that are equally frequent on train, and answers the more frequent label of the class.
"""

import numpy as np
from jaxtyping import Bool, Float64, Int, UInt8

from lra.tasks.baselines.seen_examples import Pictures
from lra.tasks.data.batching import Draw, permutation

FIT_EXAMPLES = 20_000
CLASSES = 16
CORE = 128
"""Only pixels of a disc with at least this level are compared."""
BLOCK = 256
"""Number of pictures that are compared together."""


def distance_answers(
    train: Pictures, data: Pictures, disc: UInt8[np.ndarray, "d d"]
) -> Bool[np.ndarray, " m"]:
    """Fit on `train`; return for each picture of `data` whether the answer is correct."""
    chosen = np.sort(permutation(Draw.order, 0, len(train.targets))[:FIT_EXAMPLES])
    train_distances, labels = distances(train, chosen, disc), train.targets[chosen]
    edges = np.quantile(train_distances, np.arange(1, CLASSES) / CLASSES)
    classes = np.searchsorted(edges, train_distances, side="right")
    # Labels are 0 or 1, so a class has a positive sum if label 1 is more frequent.
    votes = np.bincount(classes, 2.0 * labels - 1, minlength=CLASSES)
    data_distances = distances(data, np.arange(len(data.targets)), disc)
    answers = votes[np.searchsorted(edges, data_distances, side="right")] > 0
    correct: Bool[np.ndarray, " m"] = answers == data.targets.astype(bool)
    return correct


def distances(
    data: Pictures, examples: Int[np.ndarray, " n"], disc: UInt8[np.ndarray, "d d"]
) -> Float64[np.ndarray, " n"]:
    """Return the distance between the discs of each picture, in pixels."""
    blocks = np.split(examples, range(BLOCK, len(examples), BLOCK))
    positions = [disc_positions(data.read(block), disc) for block in blocks]
    centres = np.concatenate(positions).astype(np.float64)
    lengths: Float64[np.ndarray, " n"] = np.hypot(*(centres[:, 0] - centres[:, 1]).T)
    return lengths


def disc_positions(
    pictures: UInt8[np.ndarray, "n s s"], disc: UInt8[np.ndarray, "d d"]
) -> Int[np.ndarray, "n 2 2"]:
    """Return row and column of the two discs of each picture, the brighter disc first.

    `disc` has the gray levels of one disc, whose position is its middle pixel.
    """
    return np.stack(np.divmod(_best_two(_match(pictures, disc)), pictures.shape[1]), axis=2)


def _match(pictures: UInt8[np.ndarray, "n s s"], disc: UInt8[np.ndarray, "d d"]) -> np.ndarray:
    """Return, for each pixel, the smallest ratio picture / disc if the disc were at this pixel."""
    half, side = len(disc) // 2, pictures.shape[1]
    padded = np.pad(pictures.astype(np.float32), ((0, 0), (half, half), (half, half)))
    brightness = np.full(pictures.shape, np.inf, np.float32)
    for y, x in np.argwhere(disc >= CORE).tolist():
        share = padded[:, y : y + side, x : x + side] * np.float32(1 / disc[y, x])
        np.minimum(brightness, share, out=brightness)
    return brightness.reshape(len(pictures), -1)


def _best_two(fits: np.ndarray) -> Int[np.ndarray, "n 2"]:
    """Return the positions of the two largest values of each row; overwrites the largest."""
    rows = np.arange(len(fits))
    first = fits.argmax(1)
    fits[rows, first] = -np.inf
    return np.stack([first, fits.argmax(1)], axis=1)
