"""Trainings whose ranks share each sequence, beside one process: the same numbers."""

from dataclasses import replace

import pytest
from parallel_jobs import Asked, Found, done, done_in_turn
from test_parallel import assert_like

KINDS = {
    "classifier": Asked(optim={"batch_size": 4}),
    "mean": Asked("mean", "weighted", optim={"batch_size": 7, "micro_batch_size": 2}),
    "ring": Asked("ring", "windows", optim={"batch_size": 4}, config={"keep": "last"}),
    "handed on": Asked("handed on", "windows", optim={"batch_size": 3}, config={"keep": "last"}),
}


@pytest.fixture(scope="module")
def lone() -> dict[str, Found]:
    """What one process finds."""
    return done_in_turn(KINDS)


@pytest.fixture(scope="module")
def sharing() -> dict[str, Found]:
    """What two ranks find that share each sequence."""
    many = {name: replace(asked, processes=2, context=2) for name, asked in KINDS.items()}
    return done_in_turn(many)


@pytest.mark.parametrize("name", KINDS)
def test_two_ranks_share_sequences(
    name: str, lone: dict[str, Found], sharing: dict[str, Found]
) -> None:
    found = sharing[name]
    assert_like(found, lone[name])
    assert found.gradients
    assert any(row.metric == "bytes_sent_per_step" and row.value > 0 for row in found.rows)


@pytest.mark.parametrize("more", [{"processes": 4}, {"processes": 2, "sharded": True}], ids=str)
def test_sequences_are_shared_beside_batches_and_weights(
    more: dict[str, int], lone: dict[str, Found]
) -> None:
    assert_like(done(replace(KINDS["ring"], context=2, **more)), lone["ring"])
