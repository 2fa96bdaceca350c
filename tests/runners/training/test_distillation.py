"""What a student learns from its teacher, against the formulas written out."""

import math

import pytest
import torch

from lra.models.backbone.attention_weights import readable
from lra.models.backbone.config import BackboneConfig, Head, TaskFacts
from lra.models.backbone.model import Backbone
from lra.models.families.lstm import LSTM
from lra.models.families.softmax import SoftmaxAttention
from lra.models.mixer import Unsupported
from lra.runners.training.distillation import Distillation, DistillationLoss
from lra.runners.training.objective import whole_batch

CLASSES = TaskFacts(head=Head.classification, vocabulary=9, classes=3, max_length=6, padded=True)
TOKENS = torch.arange(18).view(3, 1, 6) % 9
TARGET = torch.tensor([0, 2, 1])
KEEP = (torch.arange(6) < torch.tensor([6, 3, 5])[:, None])[:, None]


def model_of(seed, *, facts=CLASSES, depth=2, mixer=SoftmaxAttention, **options):
    config = BackboneConfig(
        **{"width": 8, "heads": 2, "depth": depth, "feed_forward_width": 8, **options}
    )
    return Backbone(config, facts, [mixer], seed=seed).double()


def probabilities(logits, temperature):
    scaled = [float(x) / temperature for x in logits]
    total = sum(math.exp(x) for x in scaled)
    return [math.exp(x) / total for x in scaled]


def test_the_loss_is_the_formula_item_by_item():
    student, teacher = model_of(0, depth=1), model_of(1, depth=2)
    taught = Distillation(student, teacher, DistillationLoss(temperature=3.0, share=0.25))
    found = taught(TOKENS, TARGET, KEEP)
    with torch.no_grad():
        ours, theirs = (m.predict(TOKENS, KEEP)[0] for m in (student.eval(), teacher))
    for item in range(3):
        p, t = (probabilities(x[item], 3.0) for x in (ours, theirs))
        kl = sum(b * math.log(b / a) for a, b in zip(p, t, strict=True))
        hard = -math.log(probabilities(ours[item], 1.0)[int(TARGET[item])])
        wanted = 0.75 * hard + 0.25 * 9.0 * kl
        assert float(found.nll.detach()[item]) == pytest.approx(wanted, rel=1e-5)
    assert not any(p.requires_grad for p in teacher.parameters())
    assert not teacher.training


def test_hidden_states_and_attention_are_compared_at_every_so_many_layers():
    student, teacher = model_of(0, depth=2), model_of(1, depth=4)
    loss = DistillationLoss(share=0.0, hidden=2.0, attention=3.0)
    taught = Distillation(student, teacher, loss)
    found = taught(TOKENS, TARGET, KEEP)
    states, maps = [], []
    for model in (student, teacher):
        hidden, attention = [], []
        handles = [
            block.register_forward_hook(lambda m, a, out, own=hidden: own.append(out.x))
            for block in model.stack.blocks
        ]
        for core in readable(model.stack)[0].values():
            handles.append(core.register_forward_hook(
                lambda m, a, out, own=attention: own.append((m, a))
            ))  # fmt: skip
        with torch.no_grad():
            model(TOKENS, TARGET, KEEP)
            for handle in handles:
                handle.remove()
            states.append(hidden)
            maps.append([core(q, k, torch.eye(7).double().expand(3, 2, 7, 7), layout)
                         for core, (q, k, _, layout) in attention])  # fmt: skip
    real = torch.cat((torch.ones(3, 1, dtype=torch.bool), KEEP[:, 0]), 1)  # with CLS
    hidden = [(states[0][i] - states[1][j])[real].square().mean() for i, j in ((0, 1), (1, 3))]
    attention = [
        (maps[1][j] * ((maps[1][j] + 1e-9).log() - (maps[0][i] + 1e-9).log())).sum(-1).mean()
        for i, j in ((0, 1), (1, 3))
    ]
    penalties = found.penalties
    assert float(penalties["distilled_hidden"].detach()) == pytest.approx(
        2 * float(sum(hidden)) / 2, rel=1e-5
    )
    assert float(penalties["distilled_attention"].detach()) == pytest.approx(
        3 * float(sum(attention)) / 2, rel=1e-5
    )
    whole_batch(found).backward()  # the one formula takes them up, and they reach the projections
    assert float(student.stack.blocks[1].mixer.q_proj.weight.grad.abs().max()) > 0


def test_every_position_of_a_language_model_is_taught():
    facts = TaskFacts(head=Head.language_modelling, vocabulary=9, classes=9, max_length=6)
    student, teacher = model_of(0, facts=facts, depth=1), model_of(1, facts=facts)
    taught = Distillation(student, teacher, DistillationLoss(temperature=1.0, share=1.0))
    target = TOKENS[:, 0]
    found = taught(TOKENS, target)
    with torch.no_grad():
        ours, theirs = (m.predict(TOKENS)[0].log_softmax(-1) for m in (student, teacher))
    wanted = (theirs.exp() * (theirs - ours)).sum(-1)
    torch.testing.assert_close(found.nll.detach(), wanted, rtol=1e-5, atol=1e-6, check_dtype=False)
    with pytest.raises(Unsupported, match=r"task\.memory=0"):
        taught(TOKENS, target, None, (torch.zeros(3), ()))


@pytest.mark.parametrize(
    ("student", "teacher", "loss", "words"),
    [
        ({}, {"facts": {"vocabulary": 10}}, {}, "vocabulary=10"),
        ({}, {"facts": {"classes": 4}}, {}, "classes=4"),
        ({}, {"facts": {"head": Head.masked_modelling}}, {}, "head=masked_modelling"),
        ({"width": 16}, {}, {"hidden": 1.0}, "model.backbone.width"),
        ({"depth": 2}, {"depth": 3}, {"hidden": 1.0}, "must be a multiple"),
        ({}, {"layer_groups": 1}, {"hidden": 1.0}, "layer_groups=null"),
        ({"mixer": LSTM}, {}, {"attention": 1.0}, "runner.attention_weight=0"),
        ({"heads": 4}, {}, {"attention": 1.0}, "student has 4 heads and the teacher 2"),
    ],
)
def test_what_cannot_be_compared_is_refused(student, teacher, loss, words):
    made = []
    for options in (student, teacher):
        facts = TaskFacts(**{
            "head": Head.classification, "vocabulary": 9, "classes": 3, "max_length": 6,
            **options.get("facts", {}),
        })  # fmt: skip
        made.append(model_of(0, **{**options, "facts": facts}))
    with pytest.raises(Unsupported, match=words):
        Distillation(*made, DistillationLoss(**loss))
