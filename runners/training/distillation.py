"""Learning from another model: from its answers, its hidden states and its attention.

    L = (1 - a) CE(y, p) + a T^2 KL(t^T || p^T) + b mean |h_s - h_t|^2 + c mean KL(A_t || A_s)

for the answers p of the student and t of the teacher, p^T = softmax(logits / T); h the hidden
states after layers and A the attention weights of heads, of the student's layer i and the
teacher's layer i L_t / L_s, both counted from 1. The factor T^2 keeps the size of the gradient.
The first two terms are one number for each item, in place of its loss; the others are penalties.
The loss of a step is the one formula of `lra.runners.training.objective`.

Sources: Hinton et al. 2015, arXiv:1503.02531; Jiao et al. 2020, arXiv:1909.10351 (hidden states and
attention, every k-th layer); Sun et al. 2020, arXiv:2004.02984 (attention by KL).
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from lra.conf.choices import by_name
from lra.models.backbone.attention_weights import CoreCall, readable, recorded_calls, weights
from lra.models.backbone.heads import TokenHead
from lra.models.backbone.model import Backbone, Outcome
from lra.models.backbone.placing import PLAIN
from lra.models.backbone.stack import Stack
from lra.models.mixer import Layout, State, Unsupported

FACTS = ("head", "vocabulary", "classes", "scalars")
"""Facts of the task that both models must share."""
LEAST = 1e-9
"""Added to weights before their logarithm, because weights outside a window are 0."""


@by_name
@dataclass(frozen=True, kw_only=True)
class DistillationLoss:
    """The weights of the parts of a student's loss."""

    temperature: float = 2.0
    """T."""
    share: float = 0.5
    """a, of the loss of an item: 0 = labels alone, 1 = the teacher's answers alone."""
    hidden: float = 0.0
    """b: weight of the mean squared distance of hidden states; both have one width."""
    attention: float = 0.0
    """c: weight of the divergence of attention weights; both have as many heads."""

    def __post_init__(self) -> None:
        """Check the options; a ValueError says what to type instead."""
        if not self.temperature > 0:
            raise ValueError(f"temperature must be positive: got {self.temperature}; 2 is usual")
        if not 0 <= self.share <= 1:
            raise ValueError(
                f"share must be from 0 (learn from labels alone) to 1: got {self.share}"
            )
        for name in ("hidden", "attention"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must be 0 or more: got {getattr(self, name)}")


class Distillation:
    """Computes a student's loss with the teacher's answers; it is called instead of the student.

    Args:
        student: That is trained.
        teacher: Trained; its mode and its gradients are off from here on.
        loss: How much is learnt from what.

    Raises:
        Unsupported: They answer different questions, or have no hidden states or attention weights
            to compare.
    """

    def __init__(self, student: Backbone, teacher: Backbone, loss: DistillationLoss) -> None:
        self.student, self.teacher, self.loss = student, teacher.eval().requires_grad_(False), loss
        _check_facts(student, teacher)
        self.layers: list[tuple[int, int]] = []
        if loss.hidden or loss.attention:
            self.layers = paired_layers(student, teacher)
        if loss.hidden and student.config.width != teacher.config.width:
            raise Unsupported(
                f"hidden states of the student have width {student.config.width} and those of the "
                f"teacher width {teacher.config.width}, but their comparison needs equal widths: "
                "set model.backbone.width to it, or runner.hidden_weight=0"
            )
        self.cores: list[dict[int, nn.Module]] = []
        if loss.attention and student.config.heads != teacher.config.heads:
            raise Unsupported(
                f"attention is compared head by head, with {student.config.heads} heads here: "
                f"got a teacher of {teacher.config.heads} heads; set model.backbone.heads to "
                "it, or runner.attention_weight=0"
            )
        if loss.attention:
            self.cores = [_cores(model) for model in (student, teacher)]

    def __call__(
        self,
        tokens: Tensor,
        target: Tensor,
        keep: Bool[Tensor, "b p l"] | None = None,
        state: State = None,
        label_smoothing: float = 0.0,
        *,
        layout: Layout = PLAIN,
    ) -> Outcome:
        """Return the student's outcome, its losses mixed with what the teacher says.

        Raises:
            Unsupported: A state is carried along time.
        """
        if state is not None:
            raise Unsupported(
                "distillation reads every window from an empty state: got a state that "
                "continues from window to window; choose task.regime=non_overlapping and "
                "task.memory=0"
            )
        with _watched(self.teacher, self.cores[1:]) as theirs, torch.no_grad():
            self.teacher(tokens, target, keep, layout=layout)
            taught = theirs.logits(keep, tokens.shape[1])
        with _watched(self.student, self.cores[:1]) as ours:
            outcome = cast(
                Outcome, self.student(tokens, target, keep, None, label_smoothing, layout=layout)
            )
            logits = ours.logits(keep, tokens.shape[1])
        soft = divergence(taught, logits, self.loss.temperature)
        nll = (1 - self.loss.share) * outcome.nll + self.loss.share * soft
        penalties = dict(outcome.penalties)
        real = None if keep is None else keep.flatten(0, 1)
        if self.loss.hidden:
            distances = [_distance(ours.hidden[i], theirs.hidden[j], real) for i, j in self.layers]
            penalties["distilled_hidden"] = self.loss.hidden * torch.stack(distances).mean()
        if self.loss.attention:
            distances = [
                attention_divergence(
                    (self.cores[1][j], theirs.calls[j]), (self.cores[0][i], ours.calls[i])
                )
                for i, j in self.layers
            ]
            penalties["distilled_attention"] = self.loss.attention * torch.stack(distances).mean()
        return outcome._replace(nll=nll, penalties=penalties)


def divergence(
    taught: Float[Tensor, "*items c"], logits: Float[Tensor, "*items c"], temperature: float
) -> Float[Tensor, "*items"]:
    """Return T^2 KL(t^T || p^T) of every item, in nats."""
    theirs = F.log_softmax(taught.float() / temperature, -1)
    ours = F.log_softmax(logits.float() / temperature, -1)
    return temperature**2 * (theirs.exp() * (theirs - ours)).sum(-1)


def attention_divergence(
    teacher: tuple[Any, CoreCall], student: tuple[Any, CoreCall]
) -> Float[Tensor, ""]:
    """Return the mean KL divergence of the student's attention from the teacher's."""
    with torch.no_grad():
        theirs = torch.cat([part for _, part in weights(*teacher)], -1)
    ours = torch.cat([part for _, part in weights(*student)], -1)
    terms = theirs * ((theirs + LEAST).log() - (ours + LEAST).log())
    return terms.sum(-1).mean()


def paired_layers(student: Backbone, teacher: Backbone) -> list[tuple[int, int]]:
    """Return the teacher's layer for each layer of the student, counted from 0.

    Raises:
        Unsupported: One is no stack of layers, or the student's are no divisor of the teacher's.
    """
    depths = []
    for name, model in (("student", student), ("teacher", teacher)):
        if not isinstance(model.stack, Stack):
            raise Unsupported(
                f"the {name} arranges its layers itself, so there are no layers to compare: set "
                "runner.hidden_weight=0 and runner.attention_weight=0"
            )
        if len({*model.stack.blocks}) < len(model.stack.blocks):
            raise Unsupported(
                f"several layers of the {name} share one module, so lra cannot distinguish them: "
                "set model.backbone.layer_groups=null, or runner.hidden_weight=0 and "
                "runner.attention_weight=0"
            )
        depths.append(len(model.stack.blocks))
    if depths[1] % depths[0]:
        raise Unsupported(
            f"each layer of the student learns from one layer of the teacher, so {depths[0]} "
            f"layers must divide the teacher's {depths[1]}: set model.backbone.depth, or "
            "runner.hidden_weight=0 and runner.attention_weight=0"
        )
    every = depths[1] // depths[0]
    return [(layer, (layer + 1) * every - 1) for layer in range(depths[0])]


def _check_facts(student: Backbone, teacher: Backbone) -> None:
    for name in FACTS:
        of_teacher, of_student = getattr(teacher.facts, name), getattr(student.facts, name)
        if of_teacher != of_student and not (name == "classes" and student.per_token):
            raise Unsupported(
                "teacher and student must answer the same question: got a teacher with "
                f"{name}={of_teacher} and a student with {name}={of_student}; name a teacher "
                "that was trained on this task, with this vocabulary"
            )
    if student.facts.memory or teacher.facts.memory:
        raise Unsupported(
            "distillation reads every window from an empty state: got a task with a memory; "
            "choose task.regime=non_overlapping and task.memory=0"
        )


def _cores(model: Backbone) -> dict[int, nn.Module]:
    cores, reasons = readable(model.stack)
    if reasons:
        layer, why = next(iter(reasons.items()))
        raise Unsupported(
            f"layer {layer} has no attention weights to compare: {why}; set "
            "runner.attention_weight=0"
        )
    return cores


def _distance(
    ours: Float[Tensor, "b l d"], theirs: Float[Tensor, "b l d"], keep: Bool[Tensor, "b m"] | None
) -> Float[Tensor, ""]:
    """Return the mean squared distance over real tokens; a CLS vector is one."""
    squared = (ours.float() - theirs.float()).square().mean(-1)
    if keep is None:
        return squared.mean()
    real = F.pad(keep, (squared.shape[1] - keep.shape[1], 0), value=True)
    return (squared * real).sum() / real.sum()


class _Watch:
    """Records of one pass: hidden states by layer, calls of cores, the head's input."""

    def __init__(self, model: Backbone) -> None:
        self.model = model
        self.hidden: dict[int, Tensor] = {}
        self.calls: dict[int, CoreCall] = {}
        self.out: Tensor | None = None

    def logits(self, keep: Bool[Tensor, "b p l"] | None, parts: int) -> Float[Tensor, "b *l c"]:
        """Return the answers of the pass."""
        assert self.out is not None, "a pass comes before its answers"
        if isinstance(self.model.head, TokenHead):
            answers: Tensor = self.model.head(self.out)
            return answers
        return self.model.classify(self.out, keep, parts)


@contextmanager
def _watched(model: Backbone, cores: list[dict[int, nn.Module]]) -> Iterator[_Watch]:
    """Record what a pass inside leaves."""
    watch = _Watch(model)

    def taking(layer: int) -> Callable[..., None]:
        def hook(_: nn.Module, __: object, flow: Any) -> None:
            watch.hidden[layer] = flow.x

        return hook

    def last(_: nn.Module, __: object, out: Tensor) -> None:
        watch.out = out

    with ExitStack() as open_:
        handles = [model.output_dropout.register_forward_hook(last)]
        blocks = model.stack.blocks if isinstance(model.stack, Stack) else ()
        handles += [block.register_forward_hook(taking(at)) for at, block in enumerate(blocks)]
        for handle in handles:
            open_.callback(handle.remove)
        for modules in cores:
            watch.calls = open_.enter_context(recorded_calls(modules, detached=False))
        yield watch
