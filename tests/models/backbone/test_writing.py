"""Text for a reader equals a literal loop, within the window and beyond it, whatever remembers."""

from functools import partial
from typing import Any

import pytest
import torch

from lra.models.backbone.generation import GREEDY, TokenSampling
from lra.models.backbone.model import Backbone, BackboneConfig, Head, TaskFacts
from lra.models.backbone.writing import TextMemory, open_text
from lra.models.families.cosformer import Cosformer
from lra.models.families.h_transformer import HTransformer
from lra.models.families.linear import LinearAttention
from lra.models.families.lstm import LSTM
from lra.models.families.qrnn import QRNN
from lra.models.families.reformer import Reformer
from lra.models.families.sliding_window import SlidingWindow
from lra.models.families.softmax import SoftmaxAttention
from lra.models.families.synthesizer import Synthesizer
from lra.models.mixer import Positions, Unsupported

VOCABULARY, WINDOW, STEPS = 13, 16, 24
SAMPLING = TokenSampling(temperature=1.5, top_p=0.95)
FREE, NARROW = Positions.none, partial(SlidingWindow, window=[4])


def model(
    family: Any, positions: Positions, *, longest: int = WINDOW, memory: int = 0, **options: Any
) -> Backbone:
    config = BackboneConfig(
        depth=2, width=16, heads=2, feed_forward_width=16, positions=positions, **options
    )
    facts = TaskFacts(
        head=Head.language_modelling, vocabulary=VOCABULARY, classes=0, max_length=longest,
        memory=memory,
    )  # fmt: skip
    made = Backbone(config, facts, [family], seed=0).double().eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():  # as drawn, a model with tied embeddings mostly repeats its input
        for name, parameter in made.named_parameters():
            if parameter.ndim > 1 and "positions" not in name:
                parameter += 0.3 * torch.randn(parameter.shape, generator=generator)
    return made


def prompt(length: int) -> torch.Tensor:
    return torch.randint(VOCABULARY, (length,), generator=torch.Generator().manual_seed(2))


def literal(made: Backbone, text: list[int], window: int) -> list[int]:
    """Read the last `window` tokens again for each new one."""
    begun, generator = len(text), torch.Generator().manual_seed(5)
    with torch.no_grad():
        for _ in range(STEPS):
            logits, _ = made.predict(torch.tensor([[text[-window:]]]))
            uniform = torch.rand(1, generator=generator, dtype=torch.float64)
            text = [*text, int(SAMPLING.choose(logits[:, -1], uniform))]
    assert len({*text[begun:]}) > 2, "too dull to tell tokens apart"
    return text[begun:]


def written(made: Backbone, text: torch.Tensor) -> list[int]:
    opening = open_text(made, text, STEPS)
    return [*opening.tokens(SAMPLING, STEPS, torch.Generator().manual_seed(5))]


@pytest.mark.parametrize("family", [LSTM, QRNN, LinearAttention, NARROW])
@pytest.mark.parametrize("length", [5, WINDOW, 2 * WINDOW + 3])
def test_a_state_of_fixed_size_goes_on_beyond_the_window(family: Any, length: int) -> None:
    made = model(family, FREE)
    assert open_text(made, prompt(length), STEPS).memory.endless
    wide = model(family, FREE, longest=100)
    assert written(made, prompt(length)) == literal(wide, prompt(length).tolist(), 100)


@pytest.mark.parametrize(
    ("family", "positions", "state"),
    [
        (SoftmaxAttention, Positions.learned, True),
        (SoftmaxAttention, Positions.rotary, True),
        (LSTM, Positions.learned, True),
        (HTransformer, FREE, True),
        (Cosformer, FREE, True),
        (Synthesizer, FREE, True),
        (Reformer, Positions.learned, False),
    ],
    ids=[
        "learned positions",
        "a growing cache",
        "a state at places",
        "a hierarchy",
        "a horizon",
        "logits of places",
        "no state",
    ],
)
def test_elsewhere_the_window_is_read_again(family: Any, positions: Positions, state: bool) -> None:
    made = model(family, positions)
    memory = open_text(made, prompt(5), STEPS).memory
    assert memory == TextMemory(WINDOW if state else None, False)
    assert written(made, prompt(5)) == literal(made, prompt(5).tolist(), WINDOW)
    with pytest.raises(ValueError, match="the prompt has 17 tokens, but this model can read 16"):
        open_text(made, prompt(WINDOW + 1), STEPS)


def test_a_memory_that_the_task_carries_is_that_of_evaluation() -> None:
    made = model(SoftmaxAttention, FREE, memory=6, evaluation_memory=9)
    opening = open_text(made, prompt(WINDOW + 4), STEPS)
    assert opening.memory == TextMemory(9, True)
    found = [*opening.tokens(GREEDY, STEPS, torch.Generator())]
    state, text, wanted = made.initial_state(1, 9), prompt(WINDOW + 4).tolist(), []
    with torch.no_grad():
        for unread in text[:WINDOW], text[WINDOW:]:
            logits, state = made.predict(torch.tensor([[unread]]), state=state)
        for _ in range(STEPS):
            wanted.append(int(logits[0, -1].argmax()))
            logits, state = made.predict(torch.tensor([[wanted[-1:]]]), state=state)
    assert found == wanted


def test_an_opening_is_gone_on_from_again() -> None:
    opening = open_text(model(LSTM, FREE), prompt(5), STEPS)

    def drawn(seed: int) -> list[int]:
        generator = torch.Generator().manual_seed(seed)
        return [*opening.tokens(TokenSampling(top_p=0.9), STEPS, generator)]

    once = drawn(3)
    assert drawn(4) != once
    assert drawn(3) == once


def test_no_gradients_are_kept_and_the_readers_are_left_alone() -> None:
    opening = open_text(model(LSTM, FREE), prompt(5), STEPS)
    assert not opening.logits.requires_grad
    for _ in opening.tokens(GREEDY, 2, torch.Generator()):
        assert torch.is_grad_enabled()


def test_what_cannot_be_continued_is_refused() -> None:
    made = model(LSTM, FREE)
    with pytest.raises(ValueError, match="at least one token"):
        open_text(made, prompt(5)[:0], STEPS)
    with pytest.raises(ValueError, match="eval"):
        open_text(made.train(), prompt(5), STEPS)
    facts = TaskFacts(head=Head.classification, vocabulary=VOCABULARY, classes=2, max_length=9)
    judge = Backbone(BackboneConfig(width=16), facts, [LSTM], seed=0).eval()
    with pytest.raises(Unsupported, match="head=classification"):
        open_text(judge, prompt(5), STEPS)
