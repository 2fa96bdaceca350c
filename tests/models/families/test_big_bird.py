"""Big Bird against a dense mask of the same plan, and the plan itself."""

import logging

import pytest
import torch

from lra.models.families import big_bird
from lra.models.mixer import Layout
from lra.models.ops.exact import softmax_attention
from tests.attention import DIRECTIONS
from tests.models.families.big_bird_forms import agree, built, heads


@DIRECTIONS
def test_short_sequences_run_as_exact_attention_and_say_so_once(
    causal, monkeypatch, caplog
) -> None:
    monkeypatch.setattr(big_bird, "list_attention", None)
    big_bird._log_exact.cache_clear()
    mixer, longest = built(causal=causal), 20 if causal else 24
    state = {name: value.clone() for name, value in mixer.state_dict().items()}
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            qkv = heads(longest)
            agree(mixer.core(*qkv, Layout()), softmax_attention(*qkv, causal=causal), qkv)
    assert len(caplog.records) == 1
    assert f"at length {longest}, BigBird has {longest // 4} blocks" in caplog.text
    assert all(torch.equal(value, state[name]) for name, value in mixer.state_dict().items())
    with pytest.raises(TypeError):
        mixer.core(*heads(longest + 1), Layout())
