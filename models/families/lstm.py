"""LSTM: a recurrent network whose gates control what its memory forgets, adds and outputs.

    i, f, o = sigmoid(W x_t + U h_{t-1} + b),  g = tanh(likewise)
    c_t = f c_{t-1} + i g,   h_t = o tanh(c_t)

In the causal form, one layer reads from the first token to the last. In the bidirectional form, the
default, a second layer reads from the end, and each has half the width (BiLSTM, as in ELMo,
arXiv:1802.05365).

Cost       Each direction takes 8 (d + h) h operations a token, in n steps one after the other.
           State: h and c.
Source     Hochreiter and Schmidhuber 1997, with forget gates (Gers et al. 2000). Regularisation:
           AWD-LSTM, Merity et al. 2017, arXiv:1708.02182, and its code, salesforce/awd-lstm-lm:
           DropConnect on U, one mask for all rows and tokens of a pass; locked dropout; penalties
           of activation and of its change.
Notation   wdrop is `weight_drop`; dropouti, dropouth and dropout are `input_dropout` of the first
           layer, of the others, and `output_dropout` of the last; alpha and beta are
           `activation_penalty` and `change_penalty`.
Published  The papers use a plain stack without positions, norms and feed-forward networks. For
           this, set positions=none, feed_forward=none, residual=none and stack_norm=false in
           `model.backbone`.
Differs    AWD-LSTM's inner layers are wider than its embedding; here `hidden_width` adds a linear
           map instead. Other parts of AWD-LSTM are options elsewhere: `word_dropout` of the
           backbone, `window_deviation` of the training runner and `average_after` of an optimiser.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call

from lra.models.mixer import Share, Site, State, options
from lra.models.ops.numerics import full_precision, sum_dtype
from lra.models.ops.recurrent.layer import RecurrentMixer

Pair: TypeAlias = tuple[Tensor, Tensor]


class LSTMCells(nn.Module):
    """`torch.nn.LSTM` of one layer, with DropConnect on the recurrent weights.

    Args:
        width: Width of its inputs.
        hidden: Width of h and of c.
        weight_drop: Share of the recurrent weights that are 0 in a training pass.
    """

    def __init__(self, width: int, hidden: int, weight_drop: float) -> None:
        super().__init__()
        self.lstm = nn.LSTM(width, hidden, batch_first=True)
        self.weight_drop = weight_drop

    def forward(
        self, x: Float[Tensor, "b l d"], state: State
    ) -> tuple[Float[Tensor, "b l h"], State]:
        """Return h of every token, and the state (h, c) after the last; a state of None is 0."""
        weights: dict[str, Tensor] = dict(self.lstm.named_parameters())
        if self.weight_drop and self.training:
            dropped = nn.functional.dropout(weights["weight_hh_l0"], self.weight_drop)
            weights["weight_hh_l0"] = dropped
        start = None if state is None else tuple(part[None] for part in cast(Pair, state))
        if x.device.type != "cpu":
            with _configure_cudnn(self.training):
                y, (h, c) = self._call_lstm(weights, x, start)
            return y, (h[0], c[0])
        # On most CPUs, oneDNN has no LSTM in half precision.
        dtype, input_dtype = sum_dtype(x), x.dtype
        weights = {name: weight.to(dtype) for name, weight in weights.items()}
        if start is not None:
            start = tuple(part.to(dtype) for part in start)
        with full_precision(x):
            y, after = self._call_lstm(weights, x.to(dtype), start)
        h, c = (part[0].to(input_dtype) for part in after)
        return y.to(input_dtype), (h, c)

    def _call_lstm(
        self,
        weights: dict[str, Tensor],
        x: Float[Tensor, "b l d"],
        state: tuple[Tensor, ...] | None,
    ) -> tuple[Tensor, Pair]:
        """Run `torch.nn.LSTM` on `x` and `state` with these weights."""
        output: tuple[Tensor, Pair] = functional_call(self.lstm, weights, (x, state))
        return output

    def empty(self, batch_size: int) -> State:
        """Return zeros for h and c."""
        like = cast(Tensor, self.lstm.weight_hh_l0)
        zeros = like.new_zeros(batch_size, self.lstm.hidden_size)
        return zeros, zeros.clone()


@contextmanager
def _configure_cudnn(training: bool) -> Iterator[None]:
    """Use cuDNN in this context, except for gradients in evaluation mode, which it refuses.

    Also hide its warning about weights that are not contiguous, as they are after `weight_drop`.
    """
    cudnn: Any = torch.backends.cudnn
    settings = {name: getattr(cudnn, name) for name in ("benchmark", "deterministic", "allow_tf32")}
    enabled = cudnn.enabled and (training or not torch.is_grad_enabled())
    with warnings.catch_warnings(), cudnn.flags(enabled=enabled, **settings):
        warnings.filterwarnings("ignore", "RNN module weights are not part")
        yield


@options
class LSTM(RecurrentMixer):
    """One layer of an LSTM, or of a BiLSTM."""

    weight_drop: Share = 0.0
    noise = "weight_drop"

    def cell(self, site: Site, hidden: int) -> LSTMCells:
        """Return an LSTM with states of width `hidden`."""
        return LSTMCells(site.width, hidden, weight_drop=self.weight_drop)
