"""An embedding whose table is narrower than the model: E V, as ALBERT and ELECTRA have it.

    vector of id t = s e_t V + b,   E: vocabulary x e,   V: e -> width

A head that is tied to it leads the stack's output back to e by a map of its own and answers by E.

Source: Lan et al. 2020, arXiv:1909.11942, section 3.1.
"""

from collections.abc import Mapping

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from models.tuning import Tuning, no_matrices


class FactorisedEmbedding(nn.Module):
    """A narrow vector for each id, and a map to the model's width: Xavier weights, zero biases.

    Args:
        vocabulary: Number of ids.
        narrow: Columns of the table.
        width: Of what comes out.
        scale: What the table's vectors are multiplied by; they are drawn from N(0, 1 / scale).
    """

    def __init__(self, vocabulary: int, narrow: int, width: int, scale: float) -> None:
        super().__init__()
        self.scale = scale
        self.weight = nn.Parameter(torch.empty(vocabulary, narrow))
        nn.init.normal_(self.weight, std=1.0 / scale)
        self.map = widened(narrow, width)

    def tuning(self) -> Mapping[str, Tuning]:
        """Say what is no matrix."""
        return no_matrices(self, "weight")

    def forward(self, ids: Int[Tensor, "b l"]) -> Float[Tensor, "b l d"]:
        """Look the vectors up, and lead them to the width."""
        vectors = F.embedding(ids, self.weight)
        found: Tensor = self.map(vectors if self.scale == 1.0 else vectors * self.scale)
        return found


def widened(inputs: int, outputs: int) -> nn.Linear:
    """Return a linear map from one width to another; Xavier weights, zero biases."""
    layer = nn.Linear(inputs, outputs)
    nn.init.xavier_uniform_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer
