"""Attention to the neighbours within a window, and to a few keys that all see.

`window_attention` is the function, `SlidingWindowCore` what surrounds it: masks, dropout, memory.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from lra.models.kernels.door import door
from lra.models.mixer import Layout, Positions, Site, State, Traits, Unsupported
from lra.models.ops import window_cache
from lra.models.ops.banded.attention import BandedAttention, attend_in_sight
from lra.models.ops.banded.layout import Fold
from lra.models.ops.banded.scores import GlobalKeys, Scores
from lra.models.ops.sinks import with_sink_channel
from lra.models.positions import alibi_slopes


@door
def window_attention(
    q: Float[Tensor, "b h l k"],
    k: Float[Tensor, "b h s k"],
    v: Float[Tensor, "b h s v"],
    *,
    window: int,
    block: int,
    causal: bool,
    keep: Bool[Tensor, "b s"] | None = None,
    dropout: float = 0.0,
    dilation: int = 1,
    behind: int | None = None,
    slopes: Float[Tensor, " h"] | None = None,
    beyond: GlobalKeys | None = None,
) -> Float[Tensor, "b h l v"]:
    """Return softmax attention of each query to the keys within its window.

    Args:
        q: Queries of the last l of s tokens.
        k: Keys; the first s - l are the past, at most `window * dilation` of them and a multiple
            of `dilation`.
        v: Values.
        window: Number of steps of `dilation` tokens on each side that a query attends to.
        block: Number of queries computed together; it affects only speed and memory.
        causal: Whether later tokens are hidden.
        keep: False for hidden keys; None: none. A query without a visible key returns 0.
        dropout: Probability that a weight is set to 0; the others are divided by 1 - dropout.
        dilation: Distance in tokens between neighbouring keys of a window.
        behind: Number of steps towards the past, if smaller than `window`; None: `window`.
        slopes: ALiBi's factor of each head, by which distances lower scores; None: no ALiBi.
        beyond: Global keys that all queries also attend to; they must be outside all windows.
    """
    length, past = q.shape[2], k.shape[2] - q.shape[2]
    if past % dilation:
        raise ValueError(
            "the tensors of earlier tokens must have a length that is a multiple of "
            f"dilation={dilation}: got {past}; pad them"
        )
    if length == 1 and dilation > 1:  # a single query reads every `dilation`-th key only
        k, v = (x[:, :, ::dilation] for x in (k, v))
        keep = None if keep is None else keep[:, ::dilation]
        past //= dilation
    # Keys of a row with every `dilation`-th token; a window of `steps` - 1 covers all of them.
    steps = -(-k.shape[2] // dilation) if length > 1 else past + 1
    behind = window if behind is None else behind
    if behind >= steps - 1 and (dilation == 1 or length == 1):
        return attend_in_sight(
            q,
            k,
            v,
            causal=causal,
            keep=keep,
            dropout=dropout,
            dilation=dilation,
            slopes=slopes,
            beyond=beyond,
        )
    window, behind = min(window, steps - 1), min(behind, steps - 1)
    rows = q.shape[0] * q.shape[1]
    fold = Fold(rows, length, past, window, block, causal, dilation, behind)
    scores = Scores.from_parts(fold, q, keep, slopes, beyond)
    global_tensors = (None, None) if beyond is None else (beyond.keys, beyond.values)
    inputs = [x for x in (q, k, v, *global_tensors) if x is not None]
    remember = torch.is_grad_enabled() and any(x.requires_grad for x in inputs)
    o: Tensor = BandedAttention.apply(  # type: ignore[no-untyped-call]
        q, k, v, *global_tensors, scores, dropout, remember
    )
    if keep is None:
        return o
    has_key = fold.sees_any(keep)
    if beyond is not None:
        global_visible = beyond.sight(length, causal=causal)
        if global_visible is None:
            return o
        has_key = has_key | global_visible.any(-1)
    return o.masked_fill(~has_key[:, None, :, None], 0.0)


def best_block(window: int) -> int:
    """Return the number of queries per block that was fastest in measurements with a window."""
    return 64 if window >= 128 else 32


class SlidingWindowCore(nn.Module):
    """Sliding-window attention with its options, ALiBi, and a state along time."""

    slopes: Tensor | None

    def __init__(
        self,
        site: Site,
        *,
        window: int,
        block: int | None,
        dilation: int = 1,
        behind: int | None = None,
        heads: slice = slice(None),
        sink: bool = False,
    ) -> None:
        """Check the options; ALiBi's slopes are those of the slice `heads` of all heads.

        With `sink`, each head has a learned logit in the denominator of its softmax.
        """
        super().__init__()
        if window < 1:
            raise ValueError(
                "window is the number of tokens attended to on each side, at least 1: got "
                f"{window}; for none choose model=identity"
            )
        if block is not None and block < 1:
            raise ValueError(
                f"block must be at least 1, or null for the fastest value: got {block}"
            )
        if dilation < 1:
            raise ValueError(
                "dilation is the distance between two tokens that are attended to, at least 1: "
                f"got {dilation}"
            )
        self.window, self.block = window, block or best_block(window)
        self.dilation, self.behind = dilation, behind
        self.dropout = site.attention_dropout
        sloped = site.positions == Positions.alibi
        if sink and sloped:
            raise Unsupported(
                "a sink has no distance, by which positions=alibi would lower its score: set "
                "sink=false, or choose other positions"
            )
        self.sinks = nn.Parameter(torch.zeros(site.heads)) if sink else None
        slopes = alibi_slopes(site.heads)[heads] if sloped else None
        self.register_buffer("slopes", slopes, persistent=False)
        back = window if behind is None else behind
        # Order has no effect if tokens attend to all tokens, or only to themselves.
        everything = dilation == 1 and min(window, back) >= site.max_length - 1 and not site.causal
        itself = dilation >= site.max_length or (site.causal and not back)
        self.traits = Traits(
            causal=site.causal,
            reach=(back if site.causal else max(window, back)) * dilation,
            positions=frozenset({Positions.alibi.value}),
            row_stochastic=not sink,  # without a sink, the weights of a query sum to 1
            weight_dropout=True,
            sees_order=not (everything or itself),
        )

    def forward(
        self,
        q: Float[Tensor, "b h l k"],
        k: Float[Tensor, "b h s k"],
        v: Float[Tensor, "b h s v"],
        layout: Layout,
        beyond: GlobalKeys | None = None,
    ) -> Float[Tensor, "b h l v"]:
        """Return attention within the window; if s > l, keys begin with s - l earlier tokens."""
        width = v.shape[-1]
        if self.sinks is not None:  # one more key, whose value is 0
            q, k, v, key = with_sink_channel(q, k, v, self.sinks)
            first = torch.zeros(len(q), 1, dtype=torch.long, device=q.device)
            beyond = GlobalKeys(key, torch.zeros_like(key), first)
        return window_attention(
            q,
            k,
            v,
            window=self.window,
            block=self.block,
            causal=self.traits.causal,
            keep=layout.keep,
            dropout=self.dropout if self.training else 0.0,
            dilation=self.dilation,
            behind=self.behind,
            slopes=self.slopes,
            beyond=beyond,
        )[..., :width]

    def initial_state(self, shape: tuple[int, int, int, int, int], like: Tensor) -> State:
        """Return the state before the first token: keys, values, and the number of stored tokens.

        `shape` is (b, h, memory, k, v). The state stores at most `window * dilation` tokens,
        because no query reads more; the latest token comes last.
        """
        return window_cache.empty_window(shape, self.window * self.dilation, like)

    def extend(
        self,
        q: Float[Tensor, "b h l k"],
        k: Float[Tensor, "b h l k"],
        v: Float[Tensor, "b h l v"],
        layout: Layout,
        state: State,
    ) -> tuple[Float[Tensor, "b h l v"], State]:
        """Return the outputs of l new queries within their windows, and the state after them."""
        keys, values, filled, after = window_cache.append_window(state, k, v)
        total = filled + q.shape[2]
        keep = torch.arange(keys.shape[2], 0, -1, device=q.device) <= total[:, None]
        o = self(q, keys, values, layout._replace(keep=keep))
        return o, (*after, total.clamp(max=after[0].shape[2]))
