"""How far attention reaches and how local it is, by layer and head, and its average map.

    distance   sum_j A[q, j] |q - j|            entropy   - sum_j A[q, j] ln A[q, j]
    within w   sum_{|q - j| <= w} A[q, j]       map       mean of A over examples and heads

The first three are means over the real queries of an example, then over examples. Jiang et al.
2020, arXiv:2008.02496 (ConvBERT) draw such a map, to show how near to its diagonal the weights of
BERT and of their model lie. Here the map has squares: each one sums the weights of several
neighbouring queries and keys.
"""

from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from lra.runners.measures.attention.reading import KeptTokens
from lra.runners.records import Measurement


class Locality:
    """Distance, entropy and map of attention weights, averaged over the examples that were added.

    Args:
        within: Distances w for which the weight at |q - j| <= w is measured.
        cells: The average map has at most so many squares along each side.
        longest: The longest sequence, in positions.
    """

    def __init__(self, within: Sequence[int], cells: int, longest: int) -> None:
        self.within, self.positions = within, -(-longest // cells)  # positions of a square's side
        self.cells = -(-longest // self.positions)  # squares along each side
        # By layer: sums over examples of each number and head [m, h], sums of weights [c, c] in the
        # c x c squares of the map, and real queries [c] in each row of squares.
        self.sums: dict[int, Tensor] = {}
        self.maps: dict[int, Tensor] = {}
        self.queries: dict[int, Tensor] = {}
        self.examples: dict[int, int] = {}

    def add(self, layer: int, weights: Float[Tensor, "b h l s"], rows: KeptTokens) -> None:
        """Add the weights of one layer for one batch; padded queries do not count."""
        position = torch.arange(weights.shape[-1], device=weights.device)
        distances = (position[:, None] - position).abs()
        # Each of the m numbers is [b, h, l]: one for each query.
        numbers = [(weights * distances).sum(-1), torch.special.entr(weights.clamp(min=0)).sum(-1)]
        numbers += [(weights * (distances <= reach)).sum(-1) for reach in self.within]
        real = rows.real.double()
        # Each example has weight 1, divided among its real queries.
        shares = real / real.sum(-1, keepdim=True).clamp(min=1)
        sums = torch.einsum("mbhl,bl->mh", torch.stack(numbers), shares).cpu()
        square = torch.nn.functional.one_hot(position // self.positions, self.cells).double()
        map_sums = torch.einsum("bhls,bl,lc,sd->cd", weights, real, square, square).cpu()
        query_counts = torch.einsum("bl,lc->c", real, square).cpu()
        added_before = layer in self.sums
        self.sums[layer] = self.sums[layer] + sums if added_before else sums
        mean_map = map_sums / weights.shape[1]  # over heads
        self.maps[layer] = self.maps[layer] + mean_map if added_before else mean_map
        self.queries[layer] = self.queries[layer] + query_counts if added_before else query_counts
        self.examples[layer] = self.examples.get(layer, 0) + len(weights)

    def measurements(self) -> Iterator[Measurement]:
        """Yield distance, entropy and near weight of each head, and the map of each layer."""
        names = [
            "attention_distance",
            "attention_entropy",
            *["attention_within"] * len(self.within),
        ]
        within_labels = [{}, {}, *({"within": str(reach)} for reach in self.within)]
        for layer, sums in sorted(self.sums.items()):
            for head, numbers in enumerate(sums.T / self.examples[layer]):
                labels = {"layer": str(layer), "head": str(head)}
                for name, within, value in zip(names, within_labels, numbers.tolist(), strict=True):
                    most = 1.0 if name == "attention_within" else value  # a sum may round above 1
                    yield Measurement(metric=name, value=min(most, value), labels=labels | within)
            queries = self.queries[layer]
            for row in range(self.cells):
                if queries[row]:
                    masses = (self.maps[layer][row] / queries[row]).clamp(0, 1).tolist()
                    yield Measurement(
                        metric="attention_map",
                        value=masses[row],
                        samples=tuple(round(mass, 6) for mass in masses),
                        labels={
                            "layer": str(layer),
                            "row": str(row),
                            "positions": str(self.positions),
                        },
                    )
