"""The diagnostics as the tests make them: small, one of each kind."""

from lra.tasks.diagnostics.duplicate import Duplicate
from lra.tasks.diagnostics.flip_flop import FlipFlop
from lra.tasks.diagnostics.induction import Induction
from lra.tasks.diagnostics.mqar import MQAR, Filler
from lra.tasks.diagnostics.permutations import Permutations, Steps
from lra.tasks.diagnostics.selective_copy import SelectiveCopy

FEW = {"train_examples": 300, "validation_examples": 60, "test_examples": 80}
TASKS = {
    "mqar": (MQAR, {"pairs": 5, "vocabulary": 40, "length": 30}),
    "mqar-blank": (MQAR, {"pairs": 3, "vocabulary": 17, "length": 21, "filler": Filler.blank}),
    "selective_copy": (SelectiveCopy, {"items": 5, "symbols": 4, "length": 24}),
    "selective_copy-plain": (SelectiveCopy, {"items": 12, "symbols": 4, "length": 24}),
    "selective_copy-gaps": (
        SelectiveCopy,
        {"items": 5, "symbols": 4, "length": 30, "placement": "gaps", "mark": "once"},
    ),
    "selective_copy-memory": (
        SelectiveCopy,
        {"items": 9, "symbols": 4, "length": 31, "placement": "front", "mark": "once"},
    ),
    "induction": (Induction, {"symbols": 6, "length": 20}),
    "duplicate": (Duplicate, {"symbols": 9, "length": 26}),
    "permutations-z2": (Permutations, {"group": "z2", "length": 40}),
    "permutations-z60": (Permutations, {"group": "z60", "length": 9}),
    "permutations-s3": (Permutations, {"group": "s3", "length": 20}),
    "flip_flop": (FlipFlop, {"length": 24}),
    "permutations-a5": (
        Permutations,
        {"group": "a5", "length": 30, "steps": Steps.generators},
    ),
    "permutations-s5": (Permutations, {"group": "s5", "length": 7}),
    "permutations-a4_x_z5": (Permutations, {"group": "a4_x_z5", "length": 8}),
    "permutations-swaps": (
        Permutations,
        {"group": "s5", "length": 40, "steps": "swaps", "tokens_per_element": 4},
    ),
    "permutations-three": (Permutations, {"group": "s4", "length": 12, "steps": "three"}),
}


def made(name, **options):
    kind, known = TASKS[name]
    task = kind(**{**FEW, **known, **options})
    task.prepare()
    return task
