"""Noisy recall of MAD (Poli et al., arXiv:2403.17844): in-context recall between noise.

    k3 v7 n4 n1 k1 v2 n9 n9 k3      pairs of a key and its value, and slots of two noise tokens
     .  .  .  .  .  .  .  . v7      the answer is the value of a key that was seen before

The last `noise_ids` ids of the vocabulary are noise. A slot is noise with the probability `noise`,
except one random slot, which may be that of the last key, and except the first slot if otherwise
no key preceded the last one. All else is as in in-context recall.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Bool, UInt64

from lra.conf.choices import by_name
from lra.tasks.diagnostics.base import Rows, below
from lra.tasks.diagnostics.mad_recall import MadRecall, pair_rows


@by_name
@dataclass(kw_only=True, eq=False)
class MadNoisy(MadRecall):
    """Noisy recall: answer each repeated key with its value, between slots of noise."""

    name: ClassVar[str] = "mad_noisy"

    vocabulary: int = 32
    noise_ids: int = 16
    """Number of ids that are noise, among those of the vocabulary."""
    noise: float = 0.2
    """Probability that a slot of two tokens is noise, at least 0 and below 1."""

    def __post_init__(self) -> None:
        """Check the options."""
        super().__post_init__()
        if not 0 <= self.noise < 1:
            raise ValueError(f"task.noise must lie in [0, 1): got {self.noise}")

    def pair_ids(self) -> int:
        """Return the number of ids that are keys or values."""
        return self.vocabulary - self.noise_ids

    def described(self) -> str:
        """Return the difficulty in a few words."""
        return f"{self.keys} keys, {self.noise:.0%} noise"

    def words(self, length: int) -> int:
        """Return the number of random words for a row: for recall, then for noise."""
        return super().words(length) + 1 + 3 * (length // 2)

    def drawn(self, words: UInt64[np.ndarray, "n w"], length: int) -> Rows:
        """Return the rows that these random words decide."""
        slots = length // 2
        ends = super().words(length) + np.array([0, 1 + slots])
        for_pairs, for_slots, for_tokens = np.split(words, ends, axis=1)
        is_noise = noise_slots(for_slots, self.noise)
        rows = pair_rows(for_pairs, is_noise, keys=self.keys, values=self.values)
        covered = np.repeat(is_noise, 2, axis=1)
        rows.tokens[:, :-1][covered] = self.pair_ids() + below(for_tokens[covered], self.noise_ids)
        return rows

    def token_text(self, token: int) -> str:
        """Return k1, k2, … for keys, v1, v2, … for values, and n1, n2, … for noise."""
        noise = token - self.pair_ids()
        return super().token_text(token) if noise < 0 else f"n{noise + 1}"


def noise_slots(words: UInt64[np.ndarray, "n w"], noise: float) -> Bool[np.ndarray, "n s"]:
    """Return which of the s = w - 1 slots before that of the last key are noise.

    The first word of a row chooses the slot that is never noise, among all w slots.
    """
    slots = words.shape[1]
    is_noise = (words[:, 1:] >> np.uint64(11)) * 2.0**-53 < noise
    is_noise &= np.arange(slots - 1) != below(words[:, :1], slots)
    is_noise[:, 0] &= ~is_noise.all(axis=1)
    return is_noise
