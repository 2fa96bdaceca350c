"""Models that answer with a token at every position: masked ones, and large vocabularies."""

import pytest
import torch

from lra.models.backbone.model import Head, Softmax
from lra.models.mixer import Unsupported
from tests.models.backbone.test_model import KEEP, LENGTH, VOCABULARY, build, tokens


@pytest.mark.parametrize("softmax", list(Softmax))
def test_masked_models_answer_everywhere_and_see_both_sides(averaging, softmax):
    options = {"softmax": softmax, "tied_embeddings": False}
    if softmax is Softmax.adaptive:
        options["softmax_cutoffs"] = [4]
    model = build(averaging, Head.masked_modelling, **options)
    target = tokens()[:, 0].flip(-1)
    outcome = model(tokens(), target, KEEP[:, None])
    logits, _ = model.predict(tokens(), KEEP[:, None])
    assert logits.shape == (3, LENGTH, VOCABULARY)
    picked = -logits.log_softmax(-1).gather(-1, target[..., None]).squeeze(-1)
    torch.testing.assert_close(outcome.nll, picked)
    assert torch.equal(outcome.hit, logits.argmax(-1) == target)
    changed = tokens()
    changed[:, :, -1] = (changed[:, :, -1] + 1) % VOCABULARY
    moved = model.predict(changed, KEEP[:, None])[0] - logits
    assert bool((moved[0, 0] != 0).any())  # the first position sees the last one
    assert not bool(moved[1, :-1].any())  # where that is padding, nobody sees it
    with pytest.raises(Unsupported, match="head=masked_modelling"):
        model.initial_state(2, 8)


def test_adaptive_softmax_has_matrices_of_its_own(averaging):
    with pytest.raises(ValueError, match="set tied_embeddings=false"):
        build(averaging, Head.language_modelling, softmax=Softmax.adaptive)
    with pytest.raises(ValueError, match="must be below the vocabulary size 11"):
        build(averaging, Head.language_modelling, softmax=Softmax.adaptive, tied_embeddings=False)
