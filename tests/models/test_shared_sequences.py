"""Ranks that share each sequence: as processes, what they send, and what each of them holds."""

import random
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.multiprocessing import start_processes

from lra.models.context import Context, shares
from lra.models.contract.context import Threads, among_threads, derived
from lra.models.contract.counting import OperationCounter
from lra.models.families.adaptive_span import AdaptiveSpan
from lra.models.families.latent_attention import LatentAttention
from lra.models.families.light_conv import LightConv
from lra.models.families.linear import LinearAttention
from lra.models.families.linformer import Linformer
from lra.models.families.local import LocalAttention
from lra.models.families.lstm import LSTM
from lra.models.families.performer import Performer
from lra.models.families.qrnn import QRNN
from lra.models.families.reformer import Reformer
from lra.models.families.sliding_window import SlidingWindow
from lra.models.families.softmax import SoftmaxAttention
from lra.models.families.transformer_xl import TransformerXL
from lra.models.mixer import Layout, Positions, Site, Unsupported
from lra.models.ops import ring
from lra.models.transport import Processes, counting_sent
from tests.attention import Largest

LENGTH, WIDTH, HEADS, ROWS = 23, 8, 2, 3
MAKERS: dict[str, Any] = {
    "softmax": SoftmaxAttention,
    "transformer_xl": TransformerXL,
    "latent_attention": LatentAttention,
    "sliding_window": partial(SlidingWindow, window=[3], dilation=[2]),
    "adaptive_span": partial(AdaptiveSpan, span=16, initial=0.5),
    "light_conv": partial(LightConv, kernel=[5]),
    "linear": LinearAttention,
    "performer": partial(Performer, features=8),
    "lstm": LSTM,
    "qrnn": QRNN,
}


def site(*, causal: bool, length: int = LENGTH, width: int = WIDTH, **facts: Any) -> Site:
    seeded = torch.Generator().manual_seed(0)
    return Site(
        width=width, heads=HEADS, max_length=length, causal=causal, generator=seeded, **facts
    )


def tokens(length: int = LENGTH, width: int = WIDTH, seed: int = 0) -> Tensor:
    drawn = torch.Generator().manual_seed(seed)
    return torch.randn(ROWS, length, width, generator=drawn, dtype=torch.float64)


def compared(transport: Processes) -> None:
    """Compare all families with one process, forward and backward."""
    for name, make in MAKERS.items():
        for causal in (False, True):
            torch.manual_seed(0)
            mixer = make(site(causal=causal)).double()
            x, given = tokens(), tokens(seed=1)
            keep = torch.arange(LENGTH) < torch.tensor([LENGTH, 14, 2])[:, None]
            given *= keep[..., None]
            whole = derived(mixer, x, given, Layout(keep=keep))
            context = Context.of(transport, LENGTH)
            layout = Layout(keep=context.part(keep), context=context)
            part = derived(mixer, context.part(x), context.part(given), layout)
            real = context.part(keep)[..., None]
            for seen, wanted in ((part.y, whole.y), (part.by_input, whole.by_input)):
                torch.testing.assert_close(
                    seen * real, context.part(wanted) * real, rtol=0, atol=1e-12, msg=name
                )
            for one, other in zip(part.by_parameters, whole.by_parameters, strict=True):
                dist.all_reduce(one)
                torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12, msg=name)


def measured(transport: Processes) -> None:
    """Count what two ranks send."""
    context = Context.of(transport, LENGTH)
    x = context.part(tokens())
    token = ROWS * WIDTH * 8
    with counting_sent() as sent:
        wide, found = context.halo(x, 4, 2, 1)
    assert sent.bytes == (4 if context.rank == 0 else 2) * token
    assert found == ((0, 2) if context.rank == 0 else (4, 0))
    first = context.offset - found.before
    assert torch.equal(wide, tokens()[:, first : first + wide.shape[1]])
    with counting_sent() as sent:
        assert torch.equal(context.total(torch.ones(5)), torch.full((5,), 2.0))
        assert torch.equal(
            context.collected(torch.tensor([context.rank])), torch.tensor([[0], [1]])
        )
    assert sent.bytes == 5 * 4 + 8
    late = torch.arange(LENGTH) > 11
    assert torch.equal(context.joined(context.part(late, 0), 0), late)  # parts of 12 and 11
    attention = SoftmaxAttention(site(causal=False)).double()
    with counting_sent() as sent:
        derived(attention, x, x, Layout(context=context))
    # keys and values once forward and once backward, then the other rank's gradients and one's own
    other = context.lengths[1 - context.rank]
    assert sent.bytes == 2 * token * (2 * context.length + context.length + other)


def one_of_two(rank: int, port: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    try:
        compared(Processes())
        measured(Processes())
    finally:
        dist.destroy_process_group()


def test_two_processes_compute_and_send_what_they_should():
    port = random.SystemRandom().randint(20_000, 60_000)
    start_processes(one_of_two, args=(port,), nprocs=2, start_method="fork")


RANKS, LONG, WIDE = 4, 384, 32
SHARED: dict[str, Any] = {
    **{name: make for name, make in MAKERS.items() if name != "transformer_xl"},
    "local": partial(LocalAttention, block=16, look_back=1),
    "linformer": partial(Linformer, projected_length=[16]),
}


@pytest.mark.parametrize("name", sorted(SHARED))
def test_a_rank_works_and_holds_its_share(name, monkeypatch):
    """Of products, and of the largest tensor: a quarter each, but for what neighbours share."""
    monkeypatch.setattr(ring, "PIECE", 2**11)  # scores at hand, of any length
    mixer = SHARED[name](site(causal=False, length=LONG, width=WIDE)).double()
    x = tokens(LONG, WIDE)

    def run(layout: Layout, part: Tensor) -> tuple[int, int]:
        with Largest() as largest, OperationCounter() as counter:
            derived(mixer, part, part, layout)
        return counter.operations, largest.elements

    alone = run(Layout(), x)

    def on_rank(transport: Threads) -> tuple[int, int]:
        context = Context.of(transport, LONG)
        return run(Layout(context=context), context.part(x))

    for seen in among_threads(RANKS, on_rank):
        operations, numbers = (one / whole for one, whole in zip(seen, alone, strict=True))
        assert operations < 1.6 / RANKS, f"{operations:.2f} of the operations"
        assert numbers < 1.8 / RANKS, f"{numbers:.2f} of the largest tensor"


def test_parts_of_a_length_that_does_not_divide():
    assert shares(11, 4) == (3, 3, 3, 2)
    with pytest.raises(
        ValueError, match=r"each of 3 ranks needs a part .* got lengths \[1, 1, 0\]"
    ):
        Context.of(Threads(0, [[]] * 3), 2)
    with pytest.raises(ValueError, match="a length for each of 3 ranks: got"):
        Context((4, 4), Threads(0, [[]] * 3))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (partial(LocalAttention, block=8), r"block=8 with parts of \[12, 11\] tokens"),
        (
            SoftmaxAttention,
            r"got model.backbone.attention_dropout=0.5 with hardware.context above 1",
        ),
    ],
    ids=["block", "dropout"],
)
def test_what_cannot_be_shared_is_refused(make, says):
    mixer = make(site(causal=False, attention_dropout=0.5)).double()
    layout = Layout(context=Context.of(Threads(0, [[], []]), LENGTH))
    with pytest.raises(Unsupported, match=says):
        mixer(tokens(12), layout)


def test_options_that_cannot_be_shared_are_no_claim():
    claims = [
        LSTM(site(causal=True), weight_drop=0.1),
        LSTM(site(causal=True), activation_penalty=1.0),
        TransformerXL(site(causal=True, positions=Positions.transformer_xl), position_dropout=0.1),
        Performer(site(causal=True), key_max="global"),
        Linformer(site(causal=False), projection="mean_pool"),
        Reformer(site(causal=False), chunk=8),
    ]
    assert [type(mixer).__name__ for mixer in claims if "context" in mixer.traits.supports] == []
