"""The alphabet of proteins as token ids. After a change, raise the version of the protein tasks.

    0 padding   1 begin   2 end   3 mask   4 … 23 ACDEFGHIKLMNPQRSTVWY   24 … 28 BOUXZ

B is D or N, Z is E or Q, X is unknown, U selenocysteine, O pyrrolysine.
"""

import numpy as np
from jaxtyping import Integer

PAD, BEGIN, END, MASK = range(4)
FIRST = 4
"""The lowest id of a residue (an amino acid of a sequence)."""
LETTERS = b"ACDEFGHIKLMNPQRSTVWY" + b"BOUXZ"
SYMBOLS = b".<>_" + LETTERS
"""The sign of each id, at the position of the id."""
VOCABULARY = len(SYMBOLS)

_IDS = bytes.maketrans(SYMBOLS, bytes(range(VOCABULARY)))


def to_ids(symbols: bytes) -> bytes:
    """Return the id of each symbol, as one byte."""
    return symbols.translate(_IDS)


def to_text(ids: Integer[np.ndarray, " l"]) -> str:
    """Return the signs of ids."""
    return bytes(SYMBOLS[i] for i in ids.tolist()).decode()


def encode_residues(text: str) -> Integer[np.ndarray, " l"]:
    """Return the ids of residues and signs; raise ValueError for other letters."""
    wrong = sorted({letter for letter in text if letter not in SYMBOLS.decode()})
    if wrong:
        raise ValueError(
            f"a protein may have only the letters and signs {SYMBOLS.decode()}: got "
            f"{', '.join(map(repr, wrong[:8]))}"
        )
    return np.frombuffer(to_ids(text.encode()), np.uint8)
