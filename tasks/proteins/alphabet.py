"""The alphabet of proteins as token ids. A change of it raises the version of every task with it.

    0 padding   1 begin   2 end   3 mask   4 … 23 ACDEFGHIKLMNPQRSTVWY   24 … 28 BOUXZ

B is D or N, Z is E or Q, X is unknown, U selenocysteine, O pyrrolysine.
"""

import numpy as np
from jaxtyping import Integer

PAD, BEGIN, END, MASK = range(4)
FIRST = 4
"""The lowest id of a residue."""
LETTERS = b"ACDEFGHIKLMNPQRSTVWY" + b"BOUXZ"
SYMBOLS = b".<>_" + LETTERS
"""How ids are written: position = id."""
VOCABULARY = len(SYMBOLS)

_IDS = bytes.maketrans(SYMBOLS, bytes(range(VOCABULARY)))


def to_ids(symbols: bytes) -> bytes:
    """Return the id of each symbol, a byte each."""
    return symbols.translate(_IDS)


def to_text(ids: Integer[np.ndarray, " l"]) -> str:
    """Return how ids are written."""
    return bytes(SYMBOLS[i] for i in ids.tolist()).decode()


def encode_residues(text: str) -> Integer[np.ndarray, " l"]:
    """Return the ids of residues and signs. ValueError for other letters."""
    wrong = sorted({letter for letter in text if letter not in SYMBOLS.decode()})
    if wrong:
        raise ValueError(
            f"proteins are written with {SYMBOLS.decode()}: got {', '.join(map(repr, wrong[:8]))}"
        )
    return np.frombuffer(to_ids(text.encode()), np.uint8)
