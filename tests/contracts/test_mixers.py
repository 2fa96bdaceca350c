"""Every family that a YAML offers, in both directions, through the contract kit."""

from pathlib import Path

import pytest
import torch

from lra import conf
from lra.composition.compose import mixer_factory
from lra.composition.yaml_text import load
from lra.models.contract import CHECKS, check_mixer, costs, methods, relations, separation, suite
from lra.models.contract.calls import calls_of, fewer_calls_of
from lra.models.contract.case import Case
from lra.models.mixer import INSIDE, SCORED, Layout, Positions, Unsupported
from tests.fuzz import EVERY, part

(FOLDER,) = [Path(entry) / "model" for entry in conf.__path__]
MODELS = {path.stem: load(path) for path in FOLDER.glob("*.yaml")}
FAMILIES = sorted(name for name, model in MODELS.items() if "mixer" in model)


def test_there_are_families():
    assert FAMILIES, f"no YAML in {FOLDER}: nothing was checked"


TOKEN_BY_TOKEN = {"rwkv7", "slstm", "ttt"}
"""Families that loop over tokens, whose cost is that of each: counted at fewer."""
SHARES = {**dict.fromkeys(TOKEN_BY_TOKEN, 8), "sinkhorn": 2, "forgetting": 1, "indexed": 1}
"""By what the lengths are divided at which a family is counted, where it is not 4: the blocks of
sinkhorn attention grow with the length; fewer than 512 tokens keep all scores in forgetting, and
are within the budget of indexed."""
ARRIVAL = {"yoso": {"repeatable", "calls"}}
"""Families that sum in the order of arrival on a GPU, and the checks that see it: docs/gpu.md."""
DEVICES = ("cpu", pytest.param("cuda", marks=pytest.mark.gpu))
FEW = {
    "traits", "lengths", "form", "untouched", "batch", "padding", "document", "prefix",
    "no_lookahead", "state", "extend", "sight", "gradients", "ways",
}  # fmt: skip
"""What is checked of every family in both directions."""
FURTHER = [name for name in CHECKS if name not in FEW]
"""Of these, a quarter is checked in one direction: of a family others than of the next."""
SHARE = 8
"""Of so many drawn calls one is tried, of a family others than of the next."""
CUT = {
    "block", "buckets", "chunk", "landmarks", "slots", "span", "state_tokens", "steps", "stride",
    "window",
}  # fmt: skip
"""Options of families that cut a sequence, or say how often each token is worked on."""
LENGTH, LARGEST = 41, 16
"""Tokens, a prime, and the largest part: two of them, and some tokens more."""
UNSET = {"models.families.compressed_attention.CompressedMultiQuery": {"block": LARGEST}}
"""Sizes that other options decide where they are null, and that are larger."""


def cut(mixer: dict[str, object]) -> dict[str, object]:
    """Return a node of YAML, in which a sequence of `LENGTH` has several parts."""
    mixer = mixer | UNSET.get(str(mixer["class_path"]), {})
    unread = {"landmarks"} if mixer.get("form") == "kernelised" else set()
    sizes = {name: mixer[name] for name in CUT & mixer.keys() - unread if mixer[name] is not None}
    several = {name: size for name, size in sizes.items() if isinstance(size, list)}
    # A window of both sides has a middle.
    less = {name: min(LARGEST - (name == "window"), size) for name, size in sizes.items()
            if name not in several}  # fmt: skip
    return mixer | less | {name: [min(LARGEST, *size)] for name, size in several.items()}


def encodings(family: str) -> set[Positions]:
    """Return one encoding that moves queries and keys and one that adds to scores, in turn."""
    number, scored = FAMILIES.index(family), sorted(SCORED)
    return {sorted(INSIDE - SCORED)[number % 2], scored[number // 2 % len(scored)]}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("family", FAMILIES)
def test_mixer_keeps_the_contract(family, device, monkeypatch):
    """In both directions by few checks, and in one of them by a quarter of the others."""
    # Parts of `LARGEST` tokens show their growth at shorter lengths than whole ones need.
    share = SHARES.get(family, 4)
    monkeypatch.setattr(costs, "LENGTHS", tuple(each // share for each in costs.LENGTHS))
    further = tuple(each // share for each in costs.FURTHER_LENGTHS)
    monkeypatch.setattr(costs, "FURTHER_LENGTHS", (*further, costs.FURTHER_LENGTHS[-1]))
    monkeypatch.setattr(separation, "LONG", 1_000)
    if family in TOKEN_BY_TOKEN:
        monkeypatch.setattr(methods, "LENGTH", methods.LENGTH // share)
    number = FAMILIES.index(family)
    for draw in (calls_of, fewer_calls_of):
        monkeypatch.setattr(
            relations, draw.__name__, lambda case, draw=draw: part(draw(case), number, SHARE)
        )
    few, inside = encodings(family), Case.inside
    monkeypatch.setattr(
        Case, "inside", lambda case, traits: [each for each in inside(case, traits) if each in few]
    )
    factory, _ = mixer_factory(cut(MODELS[family]["mixer"]), ())
    found, more = [], {*FEW, *part(FURTHER, number, 4)}
    for causal in ((False, True), (True, False))[number // 2 % 2]:
        # A family of one direction refuses the other with one finding.
        wanted = more if EVERY > 1 or len(found) < 2 else FEW
        monkeypatch.setattr(
            suite, "CHECKS", {each: CHECKS[each] for each in CHECKS if each in wanted}
        )
        found += check_mixer(factory, causal=causal, max_length=LENGTH, width=16, device=device)
    excused = ARRIVAL.get(family, set()) if device == "cuda" else set()
    failed = [f for f in found if not f.passed and f.check.partition(".")[2] not in excused]
    wrong = [f"{finding.check}: {finding.detail}" for finding in failed]
    assert not wrong, "\n".join(wrong)
    names = {finding.check.partition(".")[2] for finding in found}
    assert more <= names, "refused in both directions"


def passed(case: Case, precision: str) -> list[torch.Tensor]:
    """Return the output under padding and the gradients of input and parameters, in float64."""
    dtype = torch.float64 if precision == "float64" else torch.float32
    mixer, x = case.mixer().to(dtype), case.input().to(dtype).requires_grad_()
    supports, keep = mixer.traits.supports, case.keep()
    with torch.autocast(case.device, torch.bfloat16, enabled=precision == "bfloat16"):
        y = mixer(x, Layout(keep=keep if "keep" in supports else None))
    y = y.double() * keep[..., None]
    learnt = [each for each in mixer.parameters() if each.requires_grad]
    found = torch.autograd.grad((y * case.input(salt=3)).sum(), [x, *learnt], allow_unused=True)
    return [each.detach().double().cpu() for each in (y, *found) if each is not None]


NEAR = {"float64": 1e-9, "float32": 1e-3, "bfloat16": 1e-1}
"""Largest difference between devices, relative to the largest value."""


@pytest.mark.gpu
@pytest.mark.parametrize("precision", NEAR)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_gpu_gives_what_a_cpu_gives(family, causal, precision):
    factory, _ = mixer_factory(MODELS[family]["mixer"], ())
    try:
        cases = [
            Case(make=factory, causal=causal, max_length=1000, heads=4, width=64, device=device)
            for device in ("cpu", "cuda")
        ]
        traits = cases[0].build().traits
    except Unsupported:
        pytest.skip("not offered in this direction")
    if traits.random_draws and precision == "bfloat16":
        pytest.skip("what a hash chooses turns on the last bits of a half")
    there, here = (passed(case, precision) for case in cases)
    # The gradient of a bias of keys is 0, and what is computed is rounding of far larger terms.
    least = max(float(each.abs().max()) for each in there) / 10
    for wanted, seen in zip(there, here, strict=True):
        size = max(float(wanted.abs().max()), least)
        assert float((seen - wanted).abs().max()) / size <= NEAR[precision]
