"""Which amino acids get similar attention, compared with those that evolution exchanges.

Each head gives each of the 20 amino acids a fraction of its attention. The similarity of two amino
acids is the (Pearson) correlation of these fractions over all heads of all layers. It is compared
with their score in BLOSUM62 (Henikoff and Henikoff 1992), by a correlation over all 190 pairs.

Source: Vig et al. 2021, arXiv:2006.15222, section 4, and its code salesforce/provis
(report_aa_correlations.py). Choromanski et al. 2021, arXiv:2009.14794 (Performer), show the same
measure.
"""

from collections.abc import Iterator

import torch
from Bio.Align import substitution_matrices
from jaxtyping import Float
from torch import Tensor

from lra.models.mixer import Unsupported
from lra.runners.measures.attention.reading import KeptTokens
from lra.runners.records import Measurement
from lra.tasks.proteins.alphabet import FIRST, LETTERS

AMINO_ACIDS = LETTERS[:20].decode()
MATRIX = "BLOSUM62"


class AminoAcids:
    """The attention that each amino acid gets, summed over the added examples."""

    def __init__(self) -> None:
        self.sums: dict[int, Tensor] = {}  # by layer: attention [h, 20] of each head

    def add(self, layer: int, weights: Float[Tensor, "b h l s"], rows: KeptTokens) -> None:
        """Add the weights of one layer for one batch; padded queries do not count."""
        assert rows.tokens is not None
        ids = torch.arange(FIRST, FIRST + len(AMINO_ACIDS), device=weights.device)
        is_letter = (rows.tokens[..., None] == ids).double()  # [b, s, 20]
        sums = torch.einsum("bhls,bl,bsa->ha", weights, rows.real.double(), is_letter).cpu()
        self.sums[layer] = self.sums.get(layer, 0) + sums

    def measurements(self) -> Iterator[Measurement]:
        """Yield the similarity of each pair, then the correlation with the substitution matrix.

        Raises:
            Unsupported: There are fewer than three heads (with two, every correlation is 1 or -1),
                or all heads give an amino acid the same fraction.
        """
        sums = torch.cat([part for _, part in sorted(self.sums.items())])
        if len(sums) < 3:
            raise Unsupported(
                f"similarity is a correlation over attention heads: the model has {len(sums)} "
                "heads in all layers, but 3 are needed; raise model.backbone.heads or "
                "model.backbone.depth"
            )
        shares = sums / sums.sum(1, keepdim=True)
        constant = (shares.std(0) < 1e-12).nonzero()[:, 0].tolist()  # equal up to rounding
        if constant:
            names = ", ".join(AMINO_ACIDS[number] for number in constant)
            raise Unsupported(
                f"all heads give the same attention to {names}, so a correlation over heads is "
                "undefined: raise runner.examples"
            )
        similarity = torch.corrcoef(shares.T).clamp(-1, 1)
        scores = substitution_matrices.load(MATRIX)
        pairs: list[tuple[float, float]] = []
        for i, token in enumerate(AMINO_ACIDS):
            for j, other in enumerate(AMINO_ACIDS[:i]):
                value, score = float(similarity[i, j]), float(scores[token, other])
                pairs.append((value, score))
                labels = {"token": token, "other": other, "score": f"{score:g}"}
                yield Measurement(metric="attention_similarity", value=value, labels=labels)
        agreement = float(torch.corrcoef(torch.tensor(pairs, dtype=torch.float64).T)[0, 1])
        labels = {"matrix": MATRIX, "pairs": str(len(pairs)), "heads": str(len(sums))}
        yield Measurement(metric="substitution_correlation", value=agreement, labels=labels)
