"""The contract kit's checks of effects: what a pass may change, and what may change a pass."""

import pickle
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from lra.models.contract.case import Case, Result, call, fix_seed, inapplicable, traits_of, worst
from lra.models.contract.form import tensors_of
from lra.models.contract.states import initial_state, stream, streaming_mixer
from lra.models.contract.ways import DROPPED, ways
from lra.models.mixer import Extends, Flow, Layout


def check_repeatable(case: Case) -> Result:
    """In eval, two passes are bitwise equal, and so are two builds from one seed."""
    first, second, x = case.mixer(), case.mixer(), case.input()
    with fix_seed(11):
        once = call(first, x)
    with fix_seed(12):
        if not torch.equal(call(first, x), once):
            return Result(False, "two passes in eval differ: nothing may be drawn inside forward")
    for name, value in first.state_dict().items():
        if not torch.equal(value, second.state_dict()[name]):
            return Result(False, f"{name} differs between builds: draw from site.generator")
    if not torch.equal(call(second, x), once):
        return Result(False, "two builds from one seed differ; draw from site.generator")
    return Result(True, "two passes and two builds are bitwise equal")


def check_calls(case: Case) -> Result:
    """No call changes the result of a later or an earlier call."""
    mixer, x = case.mixer(), case.input(case.middling)
    traits = traits_of(mixer)
    first = call(mixer, x)
    copy = first.detach().clone()

    def without_gradient() -> None:
        with torch.inference_mode():
            call(mixer, x)

    def under_a_mask() -> None:
        if "keep" in traits.supports:
            call(mixer, case.noise(x), case.holes()[:, : case.middling])

    def in_training() -> None:
        mixer.train()
        with fix_seed(18):
            torch.autograd.backward(call(mixer, case.noise(x).requires_grad_()).sum())
        mixer.eval()

    def a_token() -> None:
        for training in (True, False):
            mixer.train(training)
            call(mixer, x[:, :1])
            if isinstance(mixer, Extends):
                mixer.extend(Flow(x[:, :1]), Layout())

    def in_a_stream() -> None:
        if not isinstance(streaming_mixer(case), str):
            stream(mixer, [x[:, :1], x[:, 1:2]], initial_state(mixer, case))

    def under_autocast() -> None:
        with torch.autocast(case.device, torch.bfloat16):
            call(mixer, x)

    between: dict[str, Callable[[], object]] = {
        "the same input": lambda: None,
        "another input": lambda: call(mixer, case.noise(x)),
        "a shorter input": lambda: call(mixer, x[:, : case.middling // 2 + 1]),
        "a single token": a_token,
        "another batch": lambda: call(mixer, x[:1]),
        "a mask": under_a_mask,
        "training": in_training,
        "inference_mode": without_gradient,
        "autocast": under_autocast,
        "a state": in_a_stream,
    }
    for name, meanwhile in between.items():
        meanwhile()
        if not torch.equal(first, copy):
            return Result(
                False, f"a call with {name} overwrote the output of the call before"
            ).because("the output is a view of a buffer that is used again")
        if not torch.equal(call(mixer, x), copy):
            return Result(
                False, f"after a call with {name} the same input gives another output"
            ).because("a cache or a running statistic is read by the next call")
    with torch.no_grad():
        seen = case.agree("the same input under no_grad", call(mixer, x), copy)
    if not seen.passed:
        return seen.because("another path runs when no gradient is needed")
    torch.autograd.backward(
        call(mixer, x.requires_grad_()).sum()
    )  # raises where an inference tensor was kept
    return Result(True, "no call changes another call")


def check_recomputation(case: Case) -> Result:
    """Under activation checkpointing with dropout, gradients are those of the plain pass."""
    mixer = case.mixer(attention_dropout=0.1).train()

    def gradient(recompute: bool) -> Tensor:
        x = case.input(case.middling).requires_grad_()
        with fix_seed(13):
            y: Tensor = (
                checkpoint(mixer, x, Layout(), use_reentrant=False) if recompute else call(mixer, x)
            )
            return torch.autograd.grad(y.square().sum(), x)[0]

    return case.agree("gradient when recomputed", gradient(True), gradient(False))


def check_random_draws(case: Case) -> Result:
    """Draws of the site's generator decide the function exactly if that is declared."""
    declared = traits_of(case.build()).random_draws
    x = case.input()
    changed = not torch.equal(call(case.mixer(), x), call(case.mixer(draw=case.seed + 77), x))
    if changed != declared:
        return Result(
            False,
            f"another site.generator gives {'another' if changed else 'the same'} function: "
            f"traits.random_draws is {declared}",
        )
    return Result(True, f"random draws decide the function: {changed}")


def random_states() -> dict[str, bytes]:
    """Return the global random states of torch, CUDA and numpy by name.

    Python's is not included, because type checkers draw from it.
    """
    in_use: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return {
        "torch": torch.get_rng_state().numpy().tobytes(),
        "numpy": pickle.dumps(np.random.get_state()),
        **({"cuda": torch.cuda.get_rng_state().numpy().tobytes()} if in_use else {}),
    }


def check_untouched(case: Case) -> Result:
    """A pass changes no input, parameter or buffer, and draws nothing in evaluation."""
    mixer = case.mixer()
    before = tensors_of(mixer)
    masks = case.masks(traits_of(mixer))
    masks.pop("padding", None)  # that in the middle holds all that it does
    for name, mask in masks.items():
        for training in (False, True):
            mixer.train(training)
            x = case.input()
            given = {"x": x, **({} if mask is None else {"layout.keep": mask})}
            copies = {what: tensor.clone() for what, tensor in given.items()}
            mode = f"in {'training' if training else 'evaluation'} with {name}"
            with fix_seed(14):
                states = random_states()
                y = call(mixer, x.requires_grad_(), mask)
                after = random_states()
                torch.autograd.backward(y.sum())
            for what, copied in copies.items():
                if not torch.equal(given[what], copied):
                    return Result(False, f"{what} has changed after a pass {mode}").because(
                        "an operation in place (masked_fill_, mul_) on a tensor of the caller"
                    )
            for what, tensor in tensors_of(mixer).items():
                if not torch.equal(tensor, before[what]):
                    return Result(False, f"{what} has changed after a pass {mode}").because(
                        "forward writes to it; what changes between steps belongs in after_step"
                    )
            drawn = [source for source in states if states[source] != after[source]]
            if drawn and not training:
                return Result(False, f"a pass {mode} draws from the random state of {drawn[0]}")
    return Result(True, "input, masks, parameters, buffers and random states stay unchanged")


def check_dropout(case: Case) -> Result:
    """Random draws in training act as declared, and depend on no other example or later token.

    Attention dropout acts in training alone, whether by `forward` or by `extend`.
    """
    plain, mixer = case.mixer(), case.mixer(attention_dropout=DROPPED)
    traits, x = traits_of(mixer), case.input()
    declared = traits.weight_dropout
    with fix_seed(15):
        seen = case.agree("evaluation with attention_dropout", call(mixer, x), call(plain, x))
    if not seen.passed:
        return seen.because("dropout that ignores self.training")
    for (name, run), (_, other) in zip(ways(mixer), ways(plain), strict=True):
        acts = not case.agree("", run(x, {}), other(x, {})).passed
        if acts != (declared and mixer.training):
            return Result(
                False,
                f"attention_dropout={DROPPED} changes {'values' if acts else 'nothing'} by "
                f"{name}: traits.weight_dropout is {declared}",
            )
    if not declared and not traits.training_noise:
        return inapplicable("traits.weight_dropout is False, and it has no effect")
    how = "with dropout" if declared else "with noise"
    return _apart(case, mixer, how).because(
        "a random draw depends on other examples, padding or later tokens"
    )


def _drawing(mixer: nn.Module, x: Tensor, keep: Tensor | None = None) -> Tensor:
    """Run one pass after seeding, so that each call draws the same numbers."""
    with fix_seed(16):
        return call(mixer, x, keep)


def _apart(case: Case, mixer: nn.Module, how: str) -> Result:
    """Compare passes with equal draws after other examples, padding or later tokens change."""
    traits, x = traits_of(mixer), case.input()
    loud, wanted = case.noise(x), _drawing(mixer, x)
    beside = _drawing(mixer, torch.cat((x[:1], loud[1:])))
    seen = [case.agree(f"{how}, other examples replaced by outliers", beside[0], wanted[0])]
    if "keep" in traits.supports:
        keep = case.holes()
        inputs = (x, torch.where(keep[..., None], x, loud))
        here, there = (_drawing(mixer, each, keep)[keep] for each in inputs)
        seen.append(case.agree(f"{how}, padding replaced by outliers", there, here))
    if traits.causal and not traits.selection_leak:
        for cut in (case.middling - 1, case.max_length - 1):
            later = _drawing(mixer, torch.cat((x[:, :cut], loud[:, cut:]), dim=1))
            what = f"{how}, outliers from token {cut} on"
            seen.append(case.agree(what, later[:, :cut], wanted[:, :cut]))
    return worst(seen)
