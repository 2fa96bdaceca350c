"""Continuations equal those of a literal loop; draws follow the softmax; nonsense is refused."""

from typing import Any

import pytest
import torch

from lra.models.backbone.generation import (
    GREEDY,
    TokenSampling,
    begin,
    generate,
    next_logits,
)
from lra.models.backbone.model import Backbone, BackboneConfig, Head, TaskFacts
from lra.models.families.identity import Identity
from lra.models.families.linear import LinearAttention
from lra.models.families.reformer import Reformer
from lra.models.families.sliding_window import SlidingWindow
from lra.models.families.softmax import SoftmaxAttention
from lra.models.mixer import Unsupported

VOCABULARY = 13
RECORDED = [26, 24, 22, 26, 23, 25, 19, 21, 23, 21, 22, 19]
REMEMBERING = [SoftmaxAttention, LinearAttention, SlidingWindow, Identity]


def model(family: Any, head: Head = Head.language_modelling, max_length: int = 40) -> Backbone:
    config = BackboneConfig(depth=2, width=16, heads=2, feed_forward_width=16)
    facts = TaskFacts(head=head, vocabulary=VOCABULARY, classes=3, max_length=max_length)
    made = Backbone(config, facts, [family], seed=0).double().eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():  # as drawn, a model with tied embeddings mostly repeats its input
        for parameter in made.parameters():
            if parameter.ndim > 1:
                parameter += 0.3 * torch.randn(parameter.shape, generator=generator)
    return made


def prompts(*lengths: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    return [torch.randint(VOCABULARY, (n,), generator=generator) for n in lengths]


def literal(made: Backbone, prompt: torch.Tensor, steps: int) -> list[int]:
    """One prompt, everything again for each token, through `predict`."""
    text = prompt.tolist()
    for _ in range(steps):
        logits, _ = made.predict(torch.tensor([[text]]))
        text.append(max(range(VOCABULARY), key=logits[0, -1].tolist().__getitem__))
    return text[len(prompt) :]


@pytest.mark.parametrize("family", REMEMBERING)
def test_ragged_prompts_are_continued_as_each_alone(family: Any) -> None:
    made, ragged = model(family), prompts(5, 1, 9, 5)
    wanted = [literal(made, prompt, 12) for prompt in ragged]
    assert len({token for row in wanted for token in row}) > 2, "too dull to tell rows apart"
    for recompute in (False, True):
        found = generate(made, ragged, steps=12, recompute=recompute)
        assert [row.tolist() for row in found] == wanted


@pytest.mark.parametrize("sampling", [TokenSampling(), TokenSampling(temperature=0.5, top_k=4)])
@pytest.mark.parametrize("family", REMEMBERING)
def test_draws_are_the_same_with_and_without_a_state(family: Any, sampling: TokenSampling) -> None:
    made, ragged = model(family), prompts(3, 7, 3)

    def drawn(recompute: bool, seed: int) -> list[list[int]]:
        generator = torch.Generator().manual_seed(seed)
        found = generate(
            made, ragged, steps=16, sampling=sampling, generator=generator, recompute=recompute
        )
        return [row.tolist() for row in found]

    assert drawn(False, 5) == drawn(True, 5)
    assert drawn(False, 5) != drawn(False, 6)


def test_a_model_without_a_state_writes_by_recomputing() -> None:
    made, (prompt,) = model(Reformer), prompts(6)
    with pytest.raises(Unsupported, match="no state that continues from token to token"):
        generate(made, [prompt], steps=2)
    (found,) = generate(made, [prompt], steps=4, recompute=True)
    assert found.tolist() == literal(made, prompt, 4)


def test_the_head_is_asked_of_the_last_position_alone() -> None:
    made, (prompt,) = model(LinearAttention), prompts(9)
    asked: list[int] = []
    made.head.register_forward_pre_hook(lambda _, given: asked.append(given[0].shape[1]))
    logits, _ = next_logits(made, begin(made, prompt[None], memory=9))
    assert asked == [1]
    torch.testing.assert_close(logits, made.predict(prompt[None, None])[0][:, -1])


@pytest.mark.parametrize(
    ("sampling", "weights"),
    [
        (TokenSampling(), [8.0, 4.0, 2.0, 1.0]),
        (TokenSampling(temperature=0.5), [64.0, 16.0, 4.0, 1.0]),
        (TokenSampling(top_k=2), [8.0, 4.0, 0.0, 0.0]),
        (TokenSampling(temperature=2.0, top_k=3), [8.0**0.5, 2.0, 2.0**0.5, 0.0]),
        (GREEDY, [1.0, 0.0, 0.0, 0.0]),
        (TokenSampling(top_k=1), [1.0, 0.0, 0.0, 0.0]),
        (TokenSampling(top_p=0.5), [1.0, 0.0, 0.0, 0.0]),
        (TokenSampling(top_p=0.54), [8.0, 4.0, 0.0, 0.0]),
        (TokenSampling(top_p=1.0), [8.0, 4.0, 2.0, 1.0]),
        (TokenSampling(top_p=0.9, top_k=3), [8.0, 4.0, 2.0, 0.0]),
        (TokenSampling(temperature=0.5, top_p=0.76), [64.0, 16.0, 0.0, 0.0]),
    ],
)
def test_draws_follow_the_softmax(sampling: TokenSampling, weights: list[float]) -> None:
    rows = 40_000
    logits = torch.tensor([8.0, 4.0, 2.0, 1.0]).log()[[2, 0, 3, 1]].expand(rows, 4)
    drawn = sampling.draw(logits, torch.Generator().manual_seed(3))
    seen = torch.bincount(drawn, minlength=4)[[1, 3, 0, 2]] / rows
    wanted = torch.tensor(weights) / sum(weights)
    deviation = (wanted * (1 - wanted) / rows).sqrt()
    assert ((seen - wanted).abs() <= 4 * deviation).all()


@pytest.mark.parametrize(
    ("sampling", "wanted"),
    [
        (TokenSampling(), {2: 2, 0: 8, 3: 1, 1: 4}),
        (TokenSampling(top_k=2), {0: 10, 1: 5}),
        (TokenSampling(top_p=0.54), {0: 10, 1: 5}),
        (TokenSampling(top_p=0.01), {0: 15}),
        (TokenSampling(temperature=1e-4), {0: 15}),
        (GREEDY, {0: 15}),
    ],
)
def test_a_number_from_0_to_1_chooses_by_the_shares_in_the_order_of_ids(sampling, wanted) -> None:
    """Of 15 numbers, as many as the weights 8, 4, 2 and 1 say; 0 and the last one below 1 too."""
    logits = torch.tensor([[8.0, 4.0, 2.0, 1.0]], dtype=torch.float64).log()
    uniform = (torch.arange(15, dtype=torch.float64) + 0.5) / 15
    found = sampling.choose(logits.expand(15, 4), uniform)
    assert found.equal(found.sort().values)
    assert torch.bincount(found, minlength=4).tolist() == [wanted.get(i, 0) for i in range(4)]
    ends = torch.tensor([0.0, 1 - 2**-53], dtype=torch.float64)
    assert sampling.choose(logits.expand(2, 4), ends).tolist() == [min(wanted), max(wanted)]


def test_draws_of_one_seed_are_recorded() -> None:
    """Another machine, or another version of PyTorch, must draw the same from equal logits."""
    logits = torch.linspace(-2, 2, 27).sin().expand(12, 27) * 3
    uniform = torch.rand(12, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert TokenSampling(top_p=0.95).choose(logits, uniform).tolist() == RECORDED


def test_equal_logits_are_ranked_by_id_and_infinite_ones_refused() -> None:
    shares = TokenSampling(top_k=2).distribution(torch.zeros(1, 5))
    assert shares.tolist() == [[0.5, 0.5, 0.0, 0.0, 0.0]]
    with pytest.raises(ValueError, match="training has diverged"):
        TokenSampling().choose(torch.tensor([[0.0, float("nan")]]), torch.zeros(1).double())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"top_p": 0.0}, r"a probability above 0, or null for all tokens: got 0.0"),
        ({"top_p": 1.5}, "top_p must be a probability"),
        ({"temperature": -1.0}, "temperature must be 0 .* or a positive number: got -1.0"),
        ({"temperature": float("nan")}, "temperature must be"),
        ({"top_k": 0}, "top_k .* must be at least 1"),
    ],
)
def test_sampling_that_is_none(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        TokenSampling(**options)


def test_what_cannot_be_continued_is_refused() -> None:
    made, (prompt,) = model(LinearAttention, max_length=8), prompts(6)
    with pytest.raises(ValueError, match="at least 1: got 0"):
        generate(made, [prompt], steps=0)
    with pytest.raises(ValueError, match="at least one token"):
        generate(made, [prompt[:0]], steps=1)
    with pytest.raises(ValueError, match="pass a generator"):
        generate(made, [prompt], steps=1, sampling=TokenSampling())
    with pytest.raises(ValueError, match="top_k=14 is more than the 13 tokens"):
        generate(made, [prompt], steps=1, sampling=TokenSampling(top_k=14))
    with pytest.raises(ValueError, match="learned positions for 8 tokens"):
        generate(made, [prompt], steps=4)
    with pytest.raises(ValueError, match="eval"):
        generate(made.train(), [prompt], steps=1)
    with pytest.raises(Unsupported, match="head=classification"):
        generate(model(LinearAttention, Head.classification), [prompt], steps=1)
