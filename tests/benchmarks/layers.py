"""Our layers beside released code, other forms of themselves, and windows read anew.

    python tests/benchmarks/layers.py PART --json ROWS

- `convolutions --checkout FAIRSEQ`: the convolution of LightConv and DynamicConv with the softmax
  of its taps, 8 heads of width 64, rows that make 4,096 tokens, beside the two forms of
  github.com/facebookresearch/fairseq (taps as a banded matrix, and the unfolded input) and, for
  LightConv, PyTorch's depthwise convolution, which the head's kernel is copied for.
- `adaptive`: our adaptive head beside PyTorch's own module of the same weights, over 267,735 words.
- `transformer_xl --checkout CODE`: the attention layer (segment and memory of 512, width 512, 8
  heads) beside that of github.com/kimiyoung/transformer-xl.
- `memory`: seconds per token of a model of the size of that code's enwik8 base, reading segments of
  128 behind a memory, and of one without memory that reads a whole window for every token (the
  procedures of table 5 of arXiv:1901.02860's appendix).
- `shortformer`: the same with Shortformer, a token and 512 at a time behind 512.
- `spans`: an adaptive-span layer on a segment of 512 behind a memory of 1,024, every head of one
  span, beside the full span of 1,024; `--figure FILE` draws it.

A step is forward and backward. Samples are interleaved; ratios say how many times as fast ours is,
or for `spans` which share of the full span's time is taken.
"""

import copy
import sys
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from lra.models.backbone.heads import AdaptiveHead
from lra.models.backbone.model import Backbone, BackboneConfig, Head, TaskFacts
from lra.models.contract.counting import count_operations, saved_bytes
from lra.models.families.adaptive_span import AdaptiveSpan
from lra.models.families.sdpa import SDPA
from lra.models.families.shortformer import Shortformer
from lra.models.families.transformer_xl import SameLength, TransformerXL
from lra.models.mixer import Flow, Layout, MixerFactory, Positions, Site
from lra.models.ops.convolution.dynamic import dynamic_convolution
from lra.models.ops.convolution.layer import TapSoftmax
from lra.models.ops.convolution.shared_kernel import shared_convolution
from lra.reports.figures.drawing import style
from lra.reports.figures.layout import arrange, sheet
from tests.benchmarks.frame import Rows, append, command_line, interleaved, quartiles, ratios
from tests.models.families.released import convolutions as fairseq, transformer_xl as released

WIDTH, HEADS, ROWS = 512, 8, 2
Call = Callable[[Tensor], Tensor]


def step(call: Call, x: Tensor) -> Callable[[], None]:
    """Return a training step: forward and backward of a sum."""

    def once() -> None:
        call(x.clone().requires_grad_()).sum().backward()

    return once


def kept(call: Call, x: Tensor) -> int:
    """Return the bytes that are kept for the backward pass."""
    return saved_bytes(lambda: call(x.clone().requires_grad_()), [])


# --- convolutions ---------------------------------------------------------------------------


def convolution_forms(code: SimpleNamespace, name: str, length: int, taps: int) -> dict[str, Any]:
    """Return every form with the same weights, ours first, with what each reads."""
    torch.manual_seed(0)
    kind = code.light.LightweightConv1dTBC if name == "light" else code.dynamic.DynamicConv1dTBC
    module = kind(
        WIDTH, kernel_size=taps, padding_l=taps // 2, num_heads=HEADS, weight_softmax=True
    )
    x = torch.randn(4096 // length, length, WIDTH)
    time_first = x.transpose(0, 1).contiguous()
    (weight,), normalised = module.parameters(), TapSoftmax(taps // 2)

    def ours(given: Tensor) -> Tensor:
        heads = given.unflatten(-1, (HEADS, -1)).transpose(1, 2)
        if name == "light":
            y = shared_convolution(heads, normalised(weight[:, 0]), taps // 2)
        else:
            logits = F.linear(given, weight).unflatten(-1, (HEADS, taps)).transpose(1, 2)
            y = dynamic_convolution(heads, normalised(logits), taps // 2)
        return y.transpose(1, 2).flatten(2)

    def depthwise(given: Tensor) -> Tensor:
        kernels = weight.softmax(-1).repeat_interleave(WIDTH // HEADS, 0)
        return F.conv1d(given.mT, kernels, padding=taps // 2, groups=WIDTH).mT

    forms = {
        "ours": (ours, x),
        "unfolded": (partial(module, unfold=True), time_first),
        "banded": (partial(module, unfold=False), time_first),
    }
    return forms | ({"depthwise": (depthwise, x)} if name == "light" else {})


def convolutions(checkout: Path, samples: int) -> Rows:
    """Compare all forms of both families, whose outputs must agree."""
    code, rows = fairseq.loaded(checkout), []
    for name, length, taps in product(("light", "dynamic"), (128, 1024), (7, 31)):
        forms = convolution_forms(code, name, length, taps)
        wanted = forms["ours"][0](forms["ours"][1])
        for call, x in forms.values():
            y = call(x) if x.shape == wanted.shape else call(x).transpose(0, 1)
            torch.testing.assert_close(y, wanted, atol=1e-4, rtol=1e-4)
        seconds = interleaved({n: step(*form) for n, form in forms.items()}, samples)
        saved = {n: kept(*form) for n, form in forms.items()}
        for other in [*forms][1:]:
            faster, share = ratios(seconds[other], seconds["ours"]), saved["ours"] / saved[other]
            print(
                f"{name}, {length} tokens, {taps} taps, {other}: {quartiles(faster)} times as "
                f"fast, {share:.3g} of its bytes",
                flush=True,
            )
            rows.append(
                {
                    "what": "training step of the convolution", "name": name, "length": length,
                    "taps": taps, "other": other, "ratios": faster, "seconds": seconds,
                    "bytes": share, "kept": saved,
                }
            )  # fmt: skip
    return rows


# --- the adaptive head ----------------------------------------------------------------------


def adaptive(samples: int) -> Rows:
    """Compare losses and gradients of both heads; words are as frequent as in a text."""
    vocabulary, width, rows = 267_735, 256, []
    for batch, length in ((4, 128), (8, 256), (16, 512)):
        torch.manual_seed(0)
        ours = AdaptiveHead(width, vocabulary, [20_000, 40_000, 200_000], 4.0).train()
        theirs = copy.deepcopy(ours.groups)
        x = torch.randn(batch, length, width)
        target = (torch.rand(batch, length) * torch.tensor(float(vocabulary)).log()).exp().long()
        target.clamp_(max=vocabulary - 1)

        def own(given: Tensor, head: AdaptiveHead = ours, target: Tensor = target) -> Tensor:
            head.zero_grad()
            return head.judge(given, target)[0].mean()

        def other(given: Tensor, head: nn.Module = theirs, target: Tensor = target) -> Tensor:
            head.zero_grad()
            return torch.as_tensor(head(given.flatten(0, 1), target.flatten()).loss)

        torch.testing.assert_close(own(x), other(x))
        seconds = interleaved({"ours": step(own, x), "torch": step(other, x)}, samples)
        shares = ratios(seconds["ours"], seconds["torch"])
        print(f"{batch} x {length} tokens, width {width}: ours / torch {quartiles(shares)}")
        rows.append({"batch": batch, "length": length, "width": width, "ratios": shares})
    return rows


# --- memories -------------------------------------------------------------------------------


def transformer_xl(checkout: Path, samples: int) -> Rows:
    """Compare the layer with the released one, in time and in bytes kept."""
    code, length = released.loaded(checkout), 512
    torch.manual_seed(0)
    site = Site(
        width=WIDTH, heads=HEADS, max_length=2 * length, causal=True,
        positions=Positions.transformer_xl,
    )  # fmt: skip
    ours = TransformerXL(site, same_length=SameLength.never).train()
    theirs = code.RelPartialLearnableMultiHeadAttn(HEADS, WIDTH, WIDTH // HEADS, 0.0).train()
    biases = [nn.Parameter(torch.zeros(HEADS, WIDTH // HEADS)) for _ in range(2)]
    positions, norm = code.PositionalEmbedding(WIDTH), nn.LayerNorm(WIDTH)
    x, memory = torch.randn(ROWS, length, WIDTH), torch.randn(ROWS, length, WIDTH)
    seen = torch.full((ROWS,), length)
    # the same for all layers of that code, and so no part of its layer's time
    hidden = torch.triu(torch.ones(length, 2 * length), 1 + length).bool()[:, :, None]
    places = positions(torch.arange(2 * length - 1, -1, -1.0))

    def own(given: Tensor) -> Tensor:
        mixed = ours.extend(Flow(given, (memory, seen)), Layout()).x
        return torch.as_tensor(norm(given + mixed))

    def other(given: Tensor) -> Tensor:
        there = given.transpose(0, 1), places, *biases
        y = theirs(*there, attn_mask=hidden, mems=memory.transpose(0, 1))
        return torch.as_tensor(y)

    seconds = interleaved({"ours": step(own, x), "released": step(other, x)}, samples)
    what = "training step of the layer, times as fast as the released one"
    faster = ratios(seconds["released"], seconds["ours"])
    print(f"{what}: {quartiles(faster)}")
    saved = [kept(own, x), kept(other, x)]
    return [{"what": what, "ratios": faster, "seconds": seconds, "saved_bytes": saved}]


def language_model(
    positions: Positions, mixer: MixerFactory, window: int, segment: int
) -> Backbone:
    """Return a model of the size of the base model for enwik8."""
    config = BackboneConfig(
        depth=12, width=WIDTH, heads=HEADS, feed_forward_width=2048, positions=positions,
        feed_forward="relu",
    )  # fmt: skip
    facts = TaskFacts(
        head=Head.language_modelling, vocabulary=256, classes=256,
        max_length=max(window, segment), memory=window,
    )  # fmt: skip
    return Backbone(config, facts, [mixer], seed=0).eval()


@torch.no_grad()
def memory(
    positions: Positions, mixer: MixerFactory, segment: int, window: int, samples: int
) -> dict[str, Any]:
    """Compare a token of a segment behind a memory with one of a window read anew."""
    with_memory = language_model(positions, mixer, window, segment)
    without = language_model(Positions.sinusoidal, SDPA, window, segment)
    generator = torch.Generator().manual_seed(0)
    text = torch.randint(0, 256, (1, 1, window + segment), generator=generator)
    state = with_memory.initial_state(1, window)
    for piece in text[..., :window].split(128, dim=-1):
        _, state = with_memory.predict(piece, state=state)
    seconds = interleaved(
        {
            "behind": partial(with_memory.predict, text[..., window:], state=state),
            "anew": partial(without.predict, text[..., :window]),
        },
        samples,
    )
    faster = [segment * each for each in ratios(seconds["anew"], seconds["behind"])]
    what = f"a token with a memory of {window}, times as fast as a window read anew"
    print(f"{what}, {segment} at a time: {quartiles(faster)}", flush=True)
    return {
        "what": what, "positions": positions.value, "segment": segment, "window": window,
        "ratios": faster, "seconds": seconds,
    }  # fmt: skip


# --- spans ----------------------------------------------------------------------------------


def span_step(span: int, limit: int = 1024, length: int = 512) -> Callable[[], None]:
    """Return a step of a layer whose heads all have one span, behind a full memory."""
    site = Site(width=WIDTH, heads=HEADS, max_length=length, causal=True)
    layer = AdaptiveSpan(site, span=limit, ramp=32, initial=span / limit).train()
    state = layer.initial_state(ROWS, limit)
    with torch.no_grad():
        for _ in range(limit // length):
            x = torch.randn(ROWS, length, WIDTH)
            state = layer.extend(Flow(x, state), Layout()).state
    return step(lambda x: layer.extend(Flow(x, state), Layout()).x,
                torch.randn(ROWS, length, WIDTH))  # fmt: skip


def spans(samples: int, figure: Path | None) -> Rows:
    """Compare steps at every span with the full one, and count their operations."""
    torch.manual_seed(0)
    steps = {span: span_step(span) for span in (0, 64, 128, 256, 512, 1024)}
    seconds, rows = interleaved(steps, samples), []
    for span, taken in seconds.items():
        shares, operations = ratios(taken, seconds[1024]), count_operations(steps[span])
        print(f"span {span:>5}: {quartiles(shares)} of the full span, {operations:.3e} operations")
        rows.append(
            {
                "what": f"step at span {span}, of a step at span 1024", "span": span,
                "seconds": taken, "ratios": shares, "operations": operations,
                "threads": torch.get_num_threads(), "torch": torch.__version__,
            }
        )  # fmt: skip
    if figure:
        draw(rows, figure)
    return rows


def draw(rows: Rows, file: Path) -> None:
    """Draw time and operations, as shares of those at the full span."""
    places = [row["span"] for row in rows]
    low, middle, high = np.quantile([row["ratios"] for row in rows], [0.25, 0.5, 0.75], axis=1)
    operations = np.array([row["operations"] for row in rows])
    with style():
        page = sheet(1, plot=(3.2, 2.2))
        (axes,) = page.axes
        (time_line,) = axes.plot(places, middle, marker="o", label="time of a step")
        axes.fill_between(places, low, high, alpha=0.18, linewidth=0)
        (count_line,) = axes.plot(
            places, operations / operations[-1], marker="s", linestyle="--", label="operations"
        )
        axes.set(xlabel="span of every head (tokens)", ylabel="of the full span")
        axes.set_ylim(bottom=0)
        axes.set_xticks(places[:1] + places[3:])
        arrange(
            page,
            title="Step time of adaptive spans",
            subtitle="medians and quartiles of interleaved samples",
            handles=[time_line, count_line],
        ).savefig(file, dpi=150, metadata={"Software": None})


def main() -> None:
    """Measure one part."""
    parts = ("convolutions", "adaptive", "transformer_xl", "memory", "shortformer", "spans")
    parser = command_line(__doc__, parts)
    parser.add_argument("--checkout", type=Path, help="a clone of the released code")
    parser.add_argument("--samples", type=int, default=9)
    parser.add_argument("--figure", type=Path, help="of spans: draw the times into this file")
    options = parser.parse_args()
    if options.part in ("convolutions", "transformer_xl") and options.checkout is None:
        parser.error(f"{options.part} needs --checkout, a clone of the released code")
    xl, short = (Positions.transformer_xl, TransformerXL), (Positions.position_infused, Shortformer)
    rows = {
        "convolutions": lambda: convolutions(options.checkout, options.samples),
        "adaptive": lambda: adaptive(options.samples),
        "transformer_xl": lambda: transformer_xl(options.checkout, options.samples),
        "memory": lambda: [memory(*xl, 128, n, options.samples) for n in (800, 1800, 2800, 3800)],
        "shortformer": lambda: [memory(*short, n, 512, options.samples) for n in (1, 512)],
        "spans": lambda: spans(options.samples, options.figure),
    }[options.part]()  # fmt: skip
    append(options.json, rows)


if __name__ == "__main__":
    main()
