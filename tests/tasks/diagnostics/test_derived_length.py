"""Tasks without options for lengths: padding, new rows in each batch, and loss of all tokens."""

import pytest
import torch
from small_diagnostics import FEW

from lra.tasks.diagnostics.automata import Automata
from lra.tasks.diagnostics.base import Loss
from lra.tasks.diagnostics.hops import Hops
from lra.tasks.diagnostics.joint_recall import JointRecall
from lra.tasks.diagnostics.modular_tree import ModularTree
from lra.tasks.diagnostics.order_graph import OrderGraph

KINDS = {kind.name: kind for kind in (Automata, Hops, JointRecall, ModularTree, OrderGraph)}


@pytest.mark.parametrize("name", KINDS)
def test_new_rows_are_padded_and_ask_for_all_tokens(name):
    task = KINDS[name](**{**FEW, "train_examples": None}, loss=Loss.all)
    task.prepare()
    batches = task.batches("train", batch_size=64, seed=3)
    first, second = next(batches), next(batches)
    tokens, real = first.tokens[:, 0], first.keep[:, 0]
    assert torch.equal(tokens > 0, real)
    assert not real.all()
    assert real[:, 0].all()
    assert (~real[:, :-1] <= ~real[:, 1:]).all(), "padding is at the end"
    follows = torch.zeros_like(real)
    follows[:, :-1] = real[:, 1:]
    asked = first.weight > 0
    assert (asked >= follows).all()
    if name == "modular_tree":  # its answer is in no row
        assert torch.equal(asked, real)
        asked = asked & follows
    assert torch.equal(first.target[asked], tokens.roll(-1, 1)[asked])
    assert not torch.equal(tokens[:, :12], second.tokens[:, 0, :12])
    again = next(task.batches("train", batch_size=64, seed=3, start=1))
    assert torch.equal(again.tokens, second.tokens)


@pytest.mark.parametrize("name", KINDS)
def test_there_are_no_rows_of_other_lengths(name):
    task = KINDS[name](**FEW)
    assert task.stretched(1.0) == {}
    assert task.spec.max_length == task.length == task.trained_length == task.tested_length
    with pytest.raises(ValueError, match=rf"task={name} has no rows that are 2 times as long"):
        task.stretched(2)
    with pytest.raises(TypeError, match="test_length"):
        KINDS[name](test_length=9)
