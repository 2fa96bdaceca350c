"""Linear maps drawn Xavier-uniform, which a model may draw again as PyTorch does by default."""

from torch import nn


class LinearMap(nn.Linear):
    """A linear map whose weights are drawn Xavier-uniform and whose bias is zeros."""

    def draw(self) -> None:
        """Draw the weights Xavier-uniform, and set the bias to zeros."""
        nn.init.xavier_uniform_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)
        self.versions = self._versions()

    def drawn_here(self) -> bool:
        """Return whether nothing changed weights or bias in place since `draw`."""
        return self.versions == self._versions()

    def _versions(self) -> list[int]:
        """Return how often weights and bias were changed in place."""
        return [parameter._version for parameter in self.parameters()]


def projection(width_in: int, width_out: int, *, bias: bool = True) -> LinearMap:
    """Return a linear map with Xavier-uniform weights and, optionally, a bias of zeros."""
    layer = LinearMap(width_in, width_out, bias=bias)
    layer.draw()
    return layer
