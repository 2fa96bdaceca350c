"""Several ranks beside one: the same numbers, the same ends, one checkpoint."""

import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from parallel_jobs import Asked, Found, done, done_in_turn

from lra.runners.records import Status
from lra.runners.training.checkpoint import RESUME
from tests.runners.isolation.isolated import another_server

CLOSE = {"rtol": 1e-12, "atol": 1e-12}
KINDS = {
    "uneven": Asked(optim={"batch_size": 7}),
    "weighted, in parts, averaged": Asked(
        task="weighted", optim={"batch_size": 7, "micro_batch_size": 2, "ema_decay": 0.9}
    ),
    "weight left out": Asked(model="choosy", optim={"batch_size": 4, "weight_decay": 0.3}),
    "weight left out, in parts": Asked(
        model="choosy", optim={"batch_size": 4, "micro_batch_size": 1, "weight_decay": 0.3}
    ),
    "few asked": Asked(task="rare", optim={"batch_size": 4}),
    "few tokens asked": Asked("token model", "rare tokens", optim={"batch_size": 4}),
    "few tokens asked, in parts": Asked(
        "token model", "rare tokens", optim={"batch_size": 4, "micro_batch_size": 1}
    ),
    "few tokens asked, adaptive": Asked(
        "adaptive", "rare tokens", optim={"batch_size": 4, "weight_decay": 0.3}
    ),
    "detector": Asked("detector", "detecting", optim={"batch_size": 7}),
    "detector, in parts": Asked(
        "detector", "detecting", optim={"batch_size": 7, "micro_batch_size": 2}
    ),
    "redrawn": Asked(model="redrawn"),
    "streams": Asked("remembering", "streams", optim={"batch_size": 3}, config={"keep": "last"}),
    "reversible": Asked("reversible", "streams", optim={"batch_size": 2}, config={"keep": "last"}),
    "recomputed": Asked("recomputing", "streams", optim={"batch_size": 2}, config={"keep": "last"}),
    "accumulated": Asked(config={"stages": [{"steps": 6, "accumulate": 3}]}),
}
EVEN = {
    name: replace(KINDS[name], optim={**KINDS[name].optim, "batch_size": 4})
    for name in ("redrawn", "streams", "recomputed", "accumulated", "few tokens asked", "detector")
} | {
    f"{optimiser}, averaged": Asked(
        optim={"optimiser": optimiser, "batch_size": 4, "ema_decay": 0.9, "weight_decay": 0.1}
    )
    for optimiser in ("adam", "radam", "sgd", "lion")
}
RESUMED = Asked(optim={"batch_size": 6, "ema_decay": 0.9})
SHARDED = {f"even {name}": replace(asked, sharded=True) for name, asked in EVEN.items()}


@pytest.fixture(scope="module", autouse=True)
def ready() -> Iterator[None]:
    """Fork ranks that have imported what they run: otherwise most of their time."""
    with another_server("torch", "torch._dynamo", "torch.distributed.fsdp", "parallel_jobs"):
        yield


@pytest.fixture(scope="module")
def alone() -> dict[str, Found]:
    """What one process finds."""
    even = {f"even {name}": asked for name, asked in EVEN.items()}
    return done_in_turn({**KINDS, **even, "resumed": RESUMED})


@pytest.fixture(scope="module")
def two() -> dict[str, Found]:
    """What two ranks find."""
    many = {**KINDS, **SHARDED}
    return done_in_turn({name: replace(asked, processes=2) for name, asked in many.items()})


def assert_like(found: Found, one: Found) -> None:
    """Compare gradients, curve, scores and outcomes."""
    assert found.ending.status is Status.ok, found.ending.reason
    first = min(one.gradients)  # later ones are of weights that Adam has moved, by rounding too
    if own := found.gradients.get(first):
        other = one.gradients[first]
        assert own.keys() == other.keys()
        for weight, gradient in own.items():
            np.testing.assert_allclose(gradient, other[weight], **CLOSE)
    names, values = zip(*found.curve(), strict=True)
    expected, others = zip(*one.curve(), strict=True)
    assert names == expected
    np.testing.assert_allclose(values, others, **CLOSE)
    for mine, theirs in zip(found.outcomes, one.outcomes, strict=True):
        assert np.array_equal(mine.index, theirs.index)
        assert np.array_equal(mine.hit, theirs.hit)
        np.testing.assert_allclose(mine.nll, theirs.nll, rtol=1e-6)


@pytest.mark.parametrize("name", KINDS)
def test_two_ranks_find_what_one_process_finds(
    name: str, alone: dict[str, Found], two: dict[str, Found]
) -> None:
    found = two[name]
    assert found.gradients
    assert_like(found, alone[name])
    measured = {row.metric: row.value for row in found.rows}
    each = measured["tokens_per_second_per_device"]
    assert measured["tokens_per_second"] == pytest.approx(2 * each)
    assert measured["bytes_sent_per_step"] > 0


def test_three_ranks_find_what_one_process_finds(alone: dict[str, Found]) -> None:
    names = ("uneven", "weight left out, in parts")
    for name, found in done_in_turn({n: replace(KINDS[n], processes=3) for n in names}).items():
        assert_like(found, alone[name])


def test_ranks_that_lag_find_what_one_process_finds(alone: dict[str, Found]) -> None:
    """Replicas (DDP): no exchange is read too early."""
    name = "weight left out, in parts"
    asked = replace(KINDS[name], processes=3)
    for found in done_in_turn({str(n): replace(asked, lag=n) for n in (1, 2, 3)}).values():
        assert_like(found, alone[name])


@pytest.mark.parametrize("name", SHARDED)
def test_weights_shared_out_find_what_one_process_finds(
    name: str, alone: dict[str, Found], two: dict[str, Found]
) -> None:
    assert_like(two[name], alone[name])


@pytest.mark.parametrize(
    ("before", "after", "sharded"),
    [(2, 3, False), (2, 1, True), (1, 2, True)],
)
def test_a_stopped_training_goes_on_with_another_number(
    before: int, after: int, sharded: bool, tmp_path: Path, alone: dict[str, Found]
) -> None:
    kind = replace(RESUMED, folder=str(tmp_path))
    stopped = done(
        replace(
            kind,
            processes=before,
            sharded=sharded and before > 1,
            signalled=(before - 1, 2, signal.SIGTERM),  # to one rank alone
        )
    )
    assert stopped.ending.interrupted, stopped.ending
    assert torch.load(tmp_path / RESUME, weights_only=True)["step"] in (2, 3)
    found = done(replace(kind, processes=after, sharded=sharded and after > 1))
    assert_like(found, alone["resumed"])
    assert found.weights
    assert all(type(value) is torch.Tensor for value in found.weights.values())


@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2)])
def test_a_training_stopped_between_two_updates_goes_on_with_another_number(
    before: int, after: int, alone: dict[str, Found], tmp_path: Path
) -> None:
    kind = replace(KINDS["accumulated"], folder=str(tmp_path))
    stopped = done(replace(kind, processes=before, signalled=(0, 1, signal.SIGTERM)))
    assert stopped.ending.interrupted
    saved = torch.load(tmp_path / RESUME, weights_only=True)
    assert saved["step"] % 3
    assert saved["gradients"]
    found = done(replace(kind, processes=after))
    found.gradients.clear()  # of the update that was begun by other processes
    assert_like(found, alone["accumulated"])


def test_the_same_number_goes_on_to_the_bit_with_dropout(tmp_path: Path) -> None:
    kind = Asked(model="dropping", processes=2, folder=str(tmp_path / "a"))
    stopped = done(replace(kind, signalled=(0, 2, signal.SIGUSR1)))
    assert stopped.ending.interrupted
    resumed, whole = done(kind), done(replace(kind, folder=str(tmp_path / "b")))
    assert resumed.curve() == whole.curve()
    torch.testing.assert_close(resumed.weights, whole.weights, rtol=0, atol=0)


def test_a_killed_rank_ends_the_cell_with_its_reason() -> None:
    found = done(Asked(processes=2, signalled=(1, 2, signal.SIGKILL)))
    assert found.ending.interrupted
    assert "process 1 of 2" in found.ending.reason
    assert "SIGKILL" in found.ending.reason


def test_what_cannot_be_shared_out_is_refused_by_name() -> None:
    asked = Asked("reversible", "streams", processes=2, sharded=True, optim={"batch_size": 2})
    ending = done(asked).ending
    assert ending.status is Status.unsupported
    assert "residual=reversible" in ending.reason
    ending = done(Asked(processes=2, sharded=True, optim={"optimiser": "lamb"})).ending
    assert ending.status is Status.unsupported
    assert "optim=lamb" in ending.reason
