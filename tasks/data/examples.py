"""Sums of losses and hits over examples with one answer each."""

from jaxtyping import Bool, Float

from lra.tasks.data.tokens import hits_by
from lra.tasks.task import Batch, Tally
from lra.tasks.tensors import Tensor, torch


def tally(
    nll: Float[Tensor, " b"], hit: Bool[Tensor, " b"], batch: Batch, by_class: bool = False
) -> Tally:
    """Return sums of losses and hits of one batch, weighted by `batch.weight`, and outcomes.

    Examples with weight 0 are excluded. Hits are counted `by_class`, too, if this is set.
    """
    nll, hit, index = nll.detach().float().cpu(), hit.detach().cpu(), batch.index
    weight = torch.ones_like(nll) if batch.weight is None else batch.weight.cpu().float()
    counted = weight > 0
    return Tally(
        nll_sum=float((nll[counted].double() * weight[counted]).sum()),
        hits=float((hit[counted].double() * weight[counted]).sum()),
        count=float(weight.double().sum()),
        index=index[counted],
        nll=nll[counted],
        hit=hit[counted],
        classes=hits_by(batch.target, hit, weight) if by_class else {},
    )
