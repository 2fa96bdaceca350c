"""Which amino acids get similar attention, compared with the ones that evolution exchanges.

For each head the share of its attention that goes to each of the 20 amino acids is a number; two
amino acids are alike as these numbers correlate over all heads of all layers (Pearson). Beside it
stands BLOSUM62 (Henikoff and Henikoff 1992), and the correlation of both over the 190 pairs.

Source: Vig et al. 2021, arXiv:2006.15222, section 4 and salesforce/provis
(report_aa_correlations.py), as which Choromanski et al. 2021, arXiv:2009.14794 (Performer), show
theirs.
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
    """Attention to each amino acid, by layer and head."""

    def __init__(self) -> None:
        self.sums: dict[int, Tensor] = {}

    def add(self, layer: int, weights: Float[Tensor, "b h l s"], rows: KeptTokens) -> None:
        """Take the weights of one layer."""
        assert rows.tokens is not None
        ids = torch.arange(FIRST, FIRST + len(AMINO_ACIDS), device=weights.device)
        letter = (rows.tokens[..., None] == ids).double()
        sums = torch.einsum("bhls,bl,bsa->ha", weights, rows.real.double(), letter).cpu()
        self.sums[layer] = self.sums.get(layer, 0) + sums

    def measurements(self) -> Iterator[Measurement]:
        """Yield the similarity of each pair, and its correlation with the substitution matrix.

        Raises:
            Unsupported: Fewer than three heads, over which nothing correlates but in sign, or an
                amino acid that all of them weigh alike.
        """
        sums = torch.cat([part for _, part in sorted(self.sums.items())])
        if len(sums) < 3:
            raise Unsupported(
                f"similarity is a correlation over attention heads: got {len(sums)} in all "
                "layers, wanted 3 or more; raise model.backbone.heads or model.backbone.depth"
            )
        shares = sums / sums.sum(1, keepdim=True)
        still = (shares.std(0) < 1e-12).nonzero()[:, 0].tolist()
        if still:
            names = ", ".join(AMINO_ACIDS[number] for number in still)
            raise Unsupported(
                f"every head gives the same weight to {names}, so a correlation over heads is "
                "undefined: raise runner.examples"
            )
        alike = torch.corrcoef(shares.T).clamp(-1, 1)
        scores = substitution_matrices.load(MATRIX)
        pairs: list[tuple[float, float]] = []
        for i, one in enumerate(AMINO_ACIDS):
            for j, other in enumerate(AMINO_ACIDS[:i]):
                value, score = float(alike[i, j]), float(scores[one, other])
                pairs.append((value, score))
                labels = {"token": one, "other": other, "score": f"{score:g}"}
                yield Measurement(metric="attention_similarity", value=value, labels=labels)
        agreement = float(torch.corrcoef(torch.tensor(pairs, dtype=torch.float64).T)[0, 1])
        labels = {"matrix": MATRIX, "pairs": str(len(pairs)), "heads": str(len(sums))}
        yield Measurement(metric="substitution_correlation", value=agreement, labels=labels)
