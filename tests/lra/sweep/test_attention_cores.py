"""Every family that approximates attention, through its configuration, and one whole sweep."""

import math
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from small_sweeps import BRIEF
from torch import Tensor

from lra.cli import main
from lra.composition.compose import typed
from lra.composition.hydra_entry import entries
from lra.composition.selection import sets
from lra.errors import ConfigError
from lra.models.mixer import Unsupported
from lra.runners.measures.attention.cores import move_core
from lra.runners.measures.attention.errors import (
    Exact,
    QueryKeyValue,
    implied_matrix,
    output_of,
    random_heads,
)
from lra.runners.store import read_rows
from lra.sweep.work import FamilyCores

LENGTH, WIDTH = 32, 8
APPROXIMATIONS = sets()["approximations"]
WORDS = {
    "nystromformer": ("model.mixer.conv_kernel=0", "model.mixer.inverse=exact"),
    "linformer": ("model.mixer.projection=mean_pool", "model.mixer.sharing=kv"),
    "skyformer": ("model.mixer.gamma=0.0", "model.mixer.sampling=stratified",
                  "model.mixer.inverse=exact"),
    "sparse_transformer": ("model.mixer.stride=8",),
    "moba": ("model.mixer.block=4",),
    "reformer": ("model.mixer.chunk=4", "model.mixer.allow_duplicates=false"),
}  # fmt: skip
WHOLE = {"skyformer": 2 * LENGTH}
"""Budgets with which nothing is left out, where that is not the length."""
ESTIMATES = {"performer": 1.0, "yoso": 0.35, "reformer": 0.02, "sparse_transformer": 0.4}
"""Families that come near the exact function without reaching it: error at a large budget."""


def cores(model: str, *words: str) -> FamilyCores:
    sized = ("model.backbone.width=16", "model.backbone.heads=2", "logger=none")
    told = (f"model={model}", "runner=approximation", *sized, *WORDS.get(model, ()), *words)
    (entry,) = entries(told)
    return FamilyCores(typed(entry.config), LENGTH)


def given() -> QueryKeyValue:
    return random_heads(1, 2, LENGTH, WIDTH, deviation=0.7, seed=0)


def double(core: Any) -> Any:
    return move_core(core, torch.device("cpu"), torch.float64)


@pytest.mark.parametrize("model", APPROXIMATIONS)
def test_the_implied_matrix_of_every_family_gives_its_output(model: str) -> None:
    made, heads = cores(model), given()
    sdpa = made.reference()
    for core in (made.approximation(4, draw=0, layer=0), made.exact(layer=0), sdpa):
        output = implied_matrix(double(core), heads) @ heads.v
        if model == "yoso" and core is not sdpa:
            # rows of its matrix have norm 1, and so has its output: the direction remains
            output = torch.nn.functional.normalize(output, dim=-1)
            wanted = torch.nn.functional.normalize(output_of(double(core), heads), dim=-1)
        else:
            wanted = output_of(double(core), heads)
        torch.testing.assert_close(output, wanted, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("model", APPROXIMATIONS)
def test_with_a_whole_budget_every_family_is_what_it_approximates(model: str) -> None:
    made = cores(model)
    budget = WHOLE.get(model, LENGTH)
    if model in ESTIMATES:
        budget = {"reformer": 64, "sparse_transformer": 7}.get(model, 512)
    exact = Exact(double(made.exact(layer=0)), given(), matrices=True, ranks=[4])
    found = exact.errors(double(made.approximation(budget, draw=0, layer=0)))
    assert found.matrix is not None
    assert max(found.output, found.matrix) < ESTIMATES.get(model, 1e-6)
    few = exact.errors(double(made.approximation(2, draw=0, layer=0)))
    assert few.output > max(found.output, 1e-3)
    assert few.recall[0] < found.recall[0]


def literal(model: str, heads: QueryKeyValue) -> Tensor:
    """The function that a family approximates, from its paper."""
    q, k, v = heads
    if model == "skyformer":
        distance = (q[..., :, None, :] - k[..., None, :, :]).square().sum(-1)
        return torch.exp(-distance / (2 * math.sqrt(WIDTH))) @ v
    if model == "yoso":
        unit = [torch.nn.functional.normalize(x, dim=-1) for x in (q, k)]
        chance = (1 - torch.acos((unit[0] @ unit[1].mT).clamp(-1, 1)) / math.pi) ** math.log2(
            LENGTH
        )
        return torch.nn.functional.normalize(chance @ v, dim=-1)
    if model == "reformer":
        # the family adds 1e-6 to the mean square of a key
        scores = q @ (q / (q.square().mean(-1, keepdim=True) + 1e-6).mul(WIDTH).sqrt()).mT
        itself = torch.eye(LENGTH, dtype=torch.bool)
        return scores.masked_fill(itself, -1e5).softmax(-1) @ v
    return (q @ k.mT / math.sqrt(WIDTH)).softmax(-1) @ v


@pytest.mark.parametrize("model", APPROXIMATIONS)
def test_targets_are_those_of_the_papers(model: str) -> None:
    heads = given()
    found = output_of(double(cores(model).exact(layer=0)), heads)
    torch.testing.assert_close(found, literal(model, heads), rtol=1e-6, atol=1e-8)


def test_draws_differ_and_repeat() -> None:
    made, heads = cores("performer"), given()
    first, again, other = (
        output_of(double(made.approximation(8, draw=draw, layer=0)), heads) for draw in (0, 0, 1)
    )
    assert torch.equal(first, again)
    assert not torch.allclose(first, other)
    assert made.labels() == {"mixer.kernel": "softmax", "mixer.orthogonal": "true"}


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("model=fnet",), "fnet does not approximate attention: its file"),
        (("model=tlb",), "is not a single family"),
        (
            ("model=performer", "model.backbone.positions=alibi"),
            "positions=alibi adds a term to the attention scores",
        ),
    ],
)
def test_what_cannot_be_compared(words: tuple[str, ...], reason: str) -> None:
    (entry,) = entries(("runner=approximation", "logger=none", *words))
    with pytest.raises(Unsupported, match=reason):
        FamilyCores(typed(entry.config), LENGTH)


def typed_runner(*words: str) -> Any:
    (entry,) = entries(("runner=approximation", "logger=none", *words))
    return typed(entry.config).runner


def test_a_models_file_says_option_budgets_and_target() -> None:
    found = typed_runner("model=reformer", "runner.budgets=[4,64]")
    assert (found.option, found.budgets) == ("rounds", [1, 2, 4, 8, 16])
    assert found.target == {"rounds": 1, "chunk": "length", "before": 0}
    assert typed_runner("model=reformer", "+runner.own_budgets.reformer=[2]").budgets == [2]
    found = typed_runner("model=performer", "runner.budgets=[4,64]", "runner.option=chunk")
    assert (found.option, found.budgets, found.target) == ("chunk", [4, 64], {})


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("+model.about.approximation.rounds=2", "got {'option': 'features', 'rounds': 2}; wanted"),
        ("model.about.approximation.option=2", "runner.option: got 2"),
        ("+model.about.approximation.budgets=[0]", "wanted different positive"),
    ],
)
def test_a_models_file_that_says_what_cannot_be(word: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(reason)):
        typed_runner("model=performer", word)


def test_a_sweep_from_random_and_trained_numbers_to_its_report(tmp_path: Path, capsys) -> None:
    words = (
        "-m", "model=performer,sliding_window,fnet", "runner=approximation",
        "runner.qk=random,trained", "runner.lengths=[8,16]", "runner.budgets=[4,64]",
        "runner.draws=2", "runner.top=[1,4]", "runner.sequences=1", "runner.timeout_s=300", *BRIEF,
    )  # fmt: skip
    shared = (
        "task=listops", "task.source=sample", "optim.steps=4", "optim.warmup_steps=0",
        "optim.batch_size=8", "model.backbone.width=16",
    )  # fmt: skip
    told = (*words, *shared, f"results={tmp_path}", "logger=none")
    assert main(["run", *told, "report=true"]) == 0
    rows = read_rows(tmp_path)
    lost = rows[rows["model"] == "fnet"]
    assert set(lost["status"]) == {"unsupported"}
    assert set(rows[rows["runner"] == "train"]["model"]) == {"softmax"}
    own = rows[(rows["metric"] == "output_error") & (rows["status"] == "ok")]
    assert {(r["mode"], r["length"]) for _, r in own.iterrows()} == {
        (mode, length) for mode in ("random", "trained") for length in (8, 16)
    }
    layers = [dict(labels).get("layer") for labels in own[own["mode"] == "trained"]["labels"]]
    assert sorted(set(map(str, layers))) == ["0", "1"]
    windows = own[(own["model"] == "sliding_window")]
    whole = [row["value"] for _, row in windows.iterrows() if dict(row["labels"])["budget"] == "64"]
    assert max(whole) < 1e-12
    for mode in ("random", "trained"):
        (table,) = tmp_path.glob(f"reports/*/approximation-{mode}.csv")
        timed = pd.read_csv(table).query("column == 'core_time_ms' and value > 0")["family, budget"]
        assert {title.partition(",")[0] for title in timed} == {"performer", "sliding_window"}
    assert main(["run", *told, "report=false"]) == 0
    assert "are finished already" in capsys.readouterr().out
    (key,) = set(own[(own["mode"] == "trained") & (own["length"] == 16)]["cell"][:1])
    assert main(["show", str(key), f"--results={tmp_path}"]) == 0
    command = capsys.readouterr().out.partition("\nrerun ")[2].splitlines()[0]
    assert command.split()[-3:-1] == ["runner.qk=trained", "'runner.lengths=[16]'"]
    assert "runner.modes" not in command
