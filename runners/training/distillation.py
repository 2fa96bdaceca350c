"""Learning from another model: from its answers, its hidden states and its attention.

    L = (1 - a) CE(y, p) + a T^2 KL(t^T || p^T) + b mean |h_s - h_t|^2 + c mean KL(A_t || A_s)

p and t are the probabilities of student and teacher, and p^T = softmax(logits / T). h are hidden
states after a layer, and A are attention weights of heads. Layer i of the student is compared with
layer i L_t / L_s of the teacher, counted from 1. The factor T^2 makes up for the smaller gradients
at a larger T. The first two terms replace the loss of an item; the others are penalties. See
`lra.runners.training.objective` for the loss of a step.

Sources: Hinton et al. 2015, arXiv:1503.02531; Jiao et al. 2020, arXiv:1909.10351 (hidden states and
attention, every k-th layer); Sun et al. 2020, arXiv:2004.02984 (attention by KL).
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from lra.conf.choices import by_name
from lra.models.backbone.attention_weights import CoreCall, readable, recorded_calls, weights
from lra.models.backbone.choices import Head
from lra.models.backbone.heads import TokenHead, spread_items
from lra.models.backbone.model import Backbone, Outcome
from lra.models.backbone.placing import PLAIN
from lra.models.backbone.stack import Stack
from lra.models.mixer import Layout, State, Unsupported

FACTS = ("head", "vocabulary", "classes", "scalars", "channels")
"""Facts of the task that both models must share."""
LEAST = 1e-9
"""Added to weights before their logarithm, because weights outside a window are 0."""


@by_name
@dataclass(frozen=True, kw_only=True)
class DistillationLoss:
    """The weights of the parts of a student's loss; the module has the formula."""

    temperature: float = 2.0
    """T, by which logits are divided."""
    share: float = 0.5
    """a: with 0 the student learns from labels alone, with 1 from the teacher's answers alone."""
    hidden: float = 0.0
    """b: weight of the mean squared distance of hidden states; needs models of equal width."""
    attention: float = 0.0
    """c: weight of the divergence of attention weights; needs equal numbers of heads."""

    def __post_init__(self) -> None:
        """Check the options; a ValueError says what to type instead."""
        if not self.temperature > 0:
            raise ValueError(f"temperature must be positive: got {self.temperature}; 2 is usual")
        if not 0 <= self.share <= 1:
            raise ValueError(
                f"share must be from 0 (labels alone) to 1 (the teacher alone): got {self.share}"
            )
        for name in ("hidden", "attention"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must be 0 or more: got {getattr(self, name)}")


class Distillation:
    """Computes a student's loss with the teacher's answers; it is called instead of the student.

    Args:
        student: The model that is trained.
        teacher: A trained model, which is set to evaluation mode, without gradients.
        loss: The weights of the parts of the loss.

    Raises:
        Unsupported: The models have different tasks, or their hidden states or attention weights
            cannot be compared.
    """

    def __init__(self, student: Backbone, teacher: Backbone, loss: DistillationLoss) -> None:
        self.student, self.teacher, self.loss = student, teacher.eval().requires_grad_(False), loss
        _check_facts(student, teacher)
        self.layers: list[tuple[int, int]] = []
        if loss.hidden or loss.attention:
            self.layers = paired_layers(student, teacher)
        if loss.hidden and student.config.width != teacher.config.width:
            raise Unsupported(
                f"hidden states have width {student.config.width} in the student and width "
                f"{teacher.config.width} in the teacher, but their comparison needs equal widths: "
                f"set model.backbone.width={teacher.config.width}, or runner.hidden_weight=0"
            )
        self.cores: list[dict[int, nn.Module]] = []
        if loss.attention and student.config.heads != teacher.config.heads:
            raise Unsupported(
                f"attention is compared head by head, but the student has {student.config.heads} "
                f"heads and the teacher {teacher.config.heads}: set "
                f"model.backbone.heads={teacher.config.heads}, or runner.attention_weight=0"
            )
        if loss.attention:
            self.cores = [_read_cores(model) for model in (student, teacher)]

    def __call__(
        self,
        tokens: Tensor,
        target: Tensor,
        keep: Bool[Tensor, "b p l"] | None = None,
        state: State = None,
        label_smoothing: float = 0.0,
        *,
        layout: Layout = PLAIN,
        asked: Int[Tensor, " n"] | None = None,
    ) -> Outcome:
        """Return the outcome of the student with the loss and penalties of the module's formula.

        Only the items `asked` reach the heads: see `Backbone.forward`.

        Raises:
            Unsupported: There is a state that continues from window to window.
        """
        if state is not None:
            raise Unsupported(
                "distillation reads every window with an empty state, but this task carries a "
                "state from window to window; choose task.regime=non_overlapping and "
                "task.memory=0"
            )
        # self.cores is [of the student, of the teacher], or empty without an attention term
        with _record_pass(self.teacher, self.cores[1:]) as theirs, torch.no_grad():
            self.teacher(tokens, target, keep, layout=layout, asked=asked)
            taught = theirs.logits(keep, tokens.shape[1], asked)
        with _record_pass(self.student, self.cores[:1]) as ours:
            outcome: Outcome = self.student(
                tokens, target, keep, None, label_smoothing, layout=layout, asked=asked
            )
            logits = ours.logits(keep, tokens.shape[1], asked)
        soft = divergence(taught, logits, self.loss.temperature)
        soft = spread_items(soft.flatten(), asked, target)
        nll = (1 - self.loss.share) * outcome.nll + self.loss.share * soft
        penalties = dict(outcome.penalties)
        real = None if keep is None else keep.flatten(0, 1)
        if self.loss.hidden:
            distances = [
                _mean_squared_distance(ours.hidden[i], theirs.hidden[j], real)
                for i, j in self.layers
            ]
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
    """Return T^2 KL(t^T || p^T) of every item, in nats; t is from the logits `taught`."""
    theirs = F.log_softmax(taught.float() / temperature, -1)
    ours = F.log_softmax(logits.float() / temperature, -1)
    return temperature**2 * (theirs.exp() * (theirs - ours)).sum(-1)


def attention_divergence(
    teacher: tuple[Any, CoreCall], student: tuple[Any, CoreCall]
) -> Float[Tensor, ""]:
    """Return mean KL(A_t || A_s) over heads and queries; each argument is a core and its call."""
    with torch.no_grad():
        theirs = torch.cat([part for _, part in weights(*teacher)], -1)
    ours = torch.cat([part for _, part in weights(*student)], -1)
    terms = theirs * ((theirs + LEAST).log() - (ours + LEAST).log())
    return terms.sum(-1).mean()


def paired_layers(student: Backbone, teacher: Backbone) -> list[tuple[int, int]]:
    """Return pairs of a student's layer and the teacher's layer for it, counted from 0.

    Raises:
        Unsupported: A model is no stack of separate layers, or the number of the student's layers
            does not divide the number of the teacher's.
    """
    depths = []
    for name, model in (("student", student), ("teacher", teacher)):
        if not isinstance(model.stack, Stack):
            raise Unsupported(
                f"the {name} arranges its layers itself, so lra cannot compare layers: set "
                "runner.hidden_weight=0 and runner.attention_weight=0"
            )
        if len({*model.stack.blocks}) < len(model.stack.visits):
            raise Unsupported(
                f"several layers of the {name} share one module, so lra cannot distinguish them: "
                "set model.backbone.layer_groups=null and loop_first=null, or "
                "runner.hidden_weight=0 and runner.attention_weight=0"
            )
        depths.append(len(model.stack.blocks))
    student_depth, teacher_depth = depths
    if teacher_depth % student_depth:
        raise Unsupported(
            f"the teacher has {teacher_depth} layers, which must be a multiple of the "
            f"{student_depth} layers of the student: set model.backbone.depth, or "
            "runner.hidden_weight=0 and runner.attention_weight=0"
        )
    ratio = teacher_depth // student_depth
    return [(layer, (layer + 1) * ratio - 1) for layer in range(student_depth)]


def _check_facts(student: Backbone, teacher: Backbone) -> None:
    """Raise Unsupported if the models have different tasks, or a memory of earlier windows."""
    for name in FACTS:
        of_teacher, of_student = getattr(teacher.facts, name), getattr(student.facts, name)
        # A model that predicts tokens has a vocabulary instead of classes.
        if of_teacher != of_student and not (name == "classes" and student.per_token):
            raise Unsupported(
                f"teacher and student need the same task, but the teacher has {name}={of_teacher} "
                f"and the student {name}={of_student}; name a teacher that was trained on this "
                "task, with this vocabulary"
            )
    if student.facts.head == Head.regression:
        raise Unsupported(
            "a student learns the teacher's probabilities of classes, but this task asks for a "
            "real number, which has none; choose another task"
        )
    if student.facts.head == Head.replaced_detection:
        raise Unsupported(
            "teacher and student must read the same tokens, but with objective=replaced each reads "
            "samples of its generator; choose another objective of the task"
        )
    if student.facts.memory or teacher.facts.memory:
        raise Unsupported(
            "distillation reads every window with an empty state, but this task has a memory; "
            "choose task.regime=non_overlapping and task.memory=0"
        )


def _read_cores(model: Backbone) -> dict[int, nn.Module]:
    """Return the attention functions by layer. Raises Unsupported if a layer has no weights."""
    cores, reasons = readable(model.stack)
    if reasons:
        layer, why = next(iter(reasons.items()))
        raise Unsupported(
            f"layer {layer} has no attention weights that lra can compare: {why}; set "
            "runner.attention_weight=0"
        )
    return cores


def _mean_squared_distance(
    ours: Float[Tensor, "b l d"], theirs: Float[Tensor, "b l d"], keep: Bool[Tensor, "b m"] | None
) -> Float[Tensor, ""]:
    """Return the mean squared distance over tokens without padding; `keep` may lack the CLS one."""
    squared = (ours.float() - theirs.float()).square().mean(-1)
    if keep is None:
        return squared.mean()
    real = F.pad(keep, (squared.shape[1] - keep.shape[1], 0), value=True)
    return (squared * real).sum() / real.sum()


class _PassRecord:
    """Records of one pass: hidden states and attention calls by layer, and the head's input."""

    def __init__(self, model: Backbone) -> None:
        self.model = model
        self.hidden: dict[int, Tensor] = {}
        self.calls: dict[int, CoreCall] = {}
        self.out: Tensor | None = None

    def logits(
        self,
        keep: Bool[Tensor, "b p l"] | None,
        parts: int,
        asked: Int[Tensor, " n"] | None = None,
    ) -> Float[Tensor, "*items c"]:
        """Return the logits of the recorded pass, [b l c] or [b c], or [n c] of the items `asked`.

        `parts` is the number p of sequences.
        """
        assert self.out is not None, "the model has not run yet"
        if isinstance(self.model.head, TokenHead):
            read = self.out if asked is None else self.out.flatten(0, 1).index_select(0, asked)
            logits: Tensor = self.model.head(read)
            return logits
        return self.model.classify(self.out, keep, parts, asked)


@contextmanager
def _record_pass(model: Backbone, cores: list[dict[int, nn.Module]]) -> Iterator[_PassRecord]:
    """Record the pass of the model in the `with` block.

    `cores` has the attention functions by layer as its only entry, or none if they do not count.
    """
    record = _PassRecord(model)

    def hidden_recorder(layer: int) -> Callable[..., None]:
        def record_hidden(_: nn.Module, __: object, flow: Any) -> None:
            record.hidden[layer] = flow.x

        return record_hidden

    def record_output(_: nn.Module, __: object, out: Tensor) -> None:
        record.out = out

    with ExitStack() as contexts:
        handles = [model.output_dropout.register_forward_hook(record_output)]
        blocks = model.stack.blocks if isinstance(model.stack, Stack) else ()
        handles += [
            block.register_forward_hook(hidden_recorder(layer))
            for layer, block in enumerate(blocks)
        ]
        for handle in handles:
            contexts.callback(handle.remove)
        for modules in cores:
            record.calls = contexts.enter_context(recorded_calls(modules, detached=False))
        yield record
