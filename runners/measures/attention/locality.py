"""How far attention reaches and how local it is, by layer and head, and its average map.

    distance   sum_j A[q, j] |q - j|            entropy   - sum_j A[q, j] ln A[q, j]
    within w   sum_{|q - j| <= w} A[q, j]       map       mean of A over examples and heads

The first three are means over the real queries of an example, then over examples. The map is that
of Jiang et al. 2020, arXiv:2008.02496 (ConvBERT), who compare how near its diagonal the weights of
BERT and of their attention heads lie; its queries and keys are summed in equal cells of positions.
"""

from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from lra.runners.measures.attention.reading import KeptTokens
from lra.runners.records import Measurement


class Locality:
    """Sums over the weights that were added.

    Args:
        within: Distances to each side.
        cells: Of the average map, along each side, at most.
        longest: Positions that the map stands for.
    """

    def __init__(self, within: Sequence[int], cells: int, longest: int) -> None:
        self.within, self.positions = within, -(-longest // cells)
        self.cells = -(-longest // self.positions)
        self.sums: dict[int, Tensor] = {}
        self.maps: dict[int, Tensor] = {}
        self.queries: dict[int, Tensor] = {}
        self.examples: dict[int, int] = {}

    def add(self, layer: int, weights: Float[Tensor, "b h l s"], rows: KeptTokens) -> None:
        """Take the weights of one layer."""
        place = torch.arange(weights.shape[-1], device=weights.device)
        distances = (place[:, None] - place).abs()
        numbers = [(weights * distances).sum(-1), torch.special.entr(weights.clamp(min=0)).sum(-1)]
        numbers += [(weights * (distances <= reach)).sum(-1) for reach in self.within]
        real = rows.real.double()
        shares = real / real.sum(-1, keepdim=True).clamp(min=1)
        sums = torch.einsum("mbhl,bl->mh", torch.stack(numbers), shares).cpu()
        cell = torch.nn.functional.one_hot(place // self.positions, self.cells).double()
        summed = torch.einsum("bhls,bl,lc,sd->cd", weights, real, cell, cell).cpu()
        counted = torch.einsum("bl,lc->c", real, cell).cpu()
        seen = layer in self.sums
        self.sums[layer] = self.sums[layer] + sums if seen else sums
        mean = summed / weights.shape[1]
        self.maps[layer] = self.maps[layer] + mean if seen else mean
        self.queries[layer] = self.queries[layer] + counted if seen else counted
        self.examples[layer] = self.examples.get(layer, 0) + len(weights)

    def measurements(self) -> Iterator[Measurement]:
        """Yield the three numbers of each head, and the rows of each layer's map."""
        names = [
            "attention_distance",
            "attention_entropy",
            *["attention_within"] * len(self.within),
        ]
        further = [{}, {}, *({"within": str(reach)} for reach in self.within)]
        for layer, sums in sorted(self.sums.items()):
            for head, numbers in enumerate(sums.T / self.examples[layer]):
                labels = {"layer": str(layer), "head": str(head)}
                for name, more, value in zip(names, further, numbers.tolist(), strict=True):
                    most = 1.0 if name == "attention_within" else value
                    yield Measurement(metric=name, value=min(most, value), labels=labels | more)
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
