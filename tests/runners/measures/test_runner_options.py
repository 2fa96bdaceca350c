"""Options of every runner that make no sense: refused by name, value and what is wanted."""

from typing import Any

import pytest

from lra.models.compression.magnitude import Scope
from lra.runners.measures.approximation import Approximation
from lra.runners.measures.attention_maps import AttentionMaps
from lra.runners.measures.attention_mass import AttentionMass
from lra.runners.measures.compress import Compress, CompressionMethod
from lra.runners.measures.context import LossByContext
from lra.runners.measures.decode import Decode
from lra.runners.measures.dynamic_evaluation import DynamicEvaluation
from lra.runners.measures.extrapolate import Extrapolate
from lra.runners.measures.loops import LoopScores
from lra.runners.measures.recall import TextRecall
from lra.runners.measures.scaling import Batching, Scaling
from lra.runners.measures.span import Span
from lra.runners.measures.transfer import Transfer
from lra.runners.training.config import Keep, TrainConfig

REFUSED: dict[type, list[tuple[dict[str, Any], str]]] = {
    Approximation: [
        ({"lengths": []}, r"lengths: got \[\]; wanted different positive"),
        ({"budgets": [4, 4]}, "budgets: got .*; wanted different positive"),
        ({"own_budgets": {"yoso": [0]}}, r"own_budgets\.yoso: got"),
        ({"top": [-1]}, "top: got"),
        ({"deviation": 0.0}, "deviation must be above 0: got 0.0"),
        ({"draws": 0}, "draws must be at least 1: got 0"),
        ({"sequences": 0}, "sequences must be at least 1"),
        ({"timed_steps": 1}, "timed_steps must be at least 3"),
    ],
    AttentionMaps: [
        ({"measures": []}, "wanted one or more of locality, spectrum"),
        ({"split": "dev"}, "wanted one of train, validation, test"),
        ({"map_cells": 0}, "map_cells must be at least 1"),
        ({"within": [-1]}, "wanted different distances of 0 or more"),
    ],
    AttentionMass: [
        ({"split": "train"}, "wanted one of validation, test"),
        ({"segments": 0}, "segments must be at least 1"),
        ({"buckets": 0}, "buckets must be at least 1"),
    ],
    Compress: [
        ({"method": CompressionMethod.unshare, "amounts": [0.5]}, "amounts"),
        ({"method": CompressionMethod.int8, "amounts": [1.0]}, "choose a smaller fraction"),
        ({"method": CompressionMethod.int8, "steps": 5}, "steps"),
        ({"scope": Scope.layer}, "scope"),
        ({"gradual": True, "method": CompressionMethod.magnitude}, "gradual"),
        ({"learning_rate": 0.1}, "learning_rate"),
        ({"amounts": [1.0]}, "every layer needs a head"),
        ({"amounts": [0.5, 0.25]}, "ascending"),
        (
            {"amounts": [1.0], "method": CompressionMethod.magnitude},
            "choose a smaller fraction",
        ),
        ({"evaluate_splits": ["train"]}, "evaluate_splits"),
        (
            {"amounts": [1.5], "method": CompressionMethod.shared_heads},
            "at most 1: got 1.5",
        ),
        ({"temperature": 0.0, "method": CompressionMethod.distillation}, "temperature"),
        ({"taught_share": 2.0, "method": CompressionMethod.distillation}, "share must be from 0"),
        ({"hidden_weight": 1.0}, "hidden_weight"),
        (
            {"student_layers": 1, "weights": "c", "method": CompressionMethod.distillation},
            "student_layers",
        ),
        ({"steps": -1}, "steps must be at least 0"),
        ({"timed_steps": 1}, "timed_steps"),
    ],
    LossByContext: [
        ({"contexts": []}, "wanted one or more different numbers of tokens"),
        ({"contexts": [0, 2]}, "wanted one or more different numbers of tokens"),
        ({"contexts": [2, 2]}, "wanted one or more different numbers"),
        ({"contexts": [2], "longest": 4}, "set one of them to null"),
        ({"step": 0}, "step must be at least 1"),
        ({"targets": 0}, "targets must be at least 1"),
        ({"split": "dev"}, "wanted one of train, validation, test"),
    ],
    Decode: [
        ({"lengths": []}, "one or more positive numbers"),
        ({"lengths": [0]}, "got .0.; wanted one or more positive numbers"),
        ({"modes": []}, "modes: got an empty list"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        (
            {"timed_tokens": 19},
            "timed_tokens must be at least 20, because .*95th percentile.*: got 19",
        ),
        ({"timed_prefills": 2}, "timed_prefills must be at least 3"),
        ({"warmup_tokens": 0}, "warmup_tokens must be at least 1"),
        ({"token_limit_s": 0.0}, "token_limit_s must be positive"),
        ({"temperature": -1.0}, "temperature must be 0"),
        ({"top_k": 0}, "top_k .* must be at least 1"),
    ],
    DynamicEvaluation: [
        ({"learning_rate": -1.0}, "learning_rate must be at least 0: got -1"),
        ({"decay": 1.5}, "must be at most 1: got 1.5"),
        ({"splits": ["train"]}, "splits: got 'train'; wanted one or more of validation, test"),
        ({"rule": "adam"}, "rule: got 'adam'; wanted one of sgd, rms"),
        ({"epsilon": 0.5}, "epsilon has no effect under rule=sgd"),
        ({"batch_size": 0}, "batch_size must be at least 1: got 0"),
    ],
    Extrapolate: [
        ({"factors": []}, "factors: got .*; wanted one or more positive numbers"),
        ({"factors": [1.0, -2.0]}, "wanted one or more positive numbers"),
        ({"factors": [2.0, 2.0]}, "wanted no number twice"),
        ({"examples": 0}, "examples must be at least 1: got 0; null evaluates"),
        ({"batch_size": 0}, "batch_size must be at least 1: got 0"),
    ],
    LoopScores: [
        ({"counts": []}, "wanted one or more positive numbers of passes"),
        ({"counts": [0, 1]}, "got .0, 1.; wanted one or more positive"),
        ({"counts": [2, 2]}, "none of them twice"),
        ({"examples": 0}, "examples must be at least 1: got 0; null evaluates"),
        ({"batch_size": 0}, "batch_size must be at least 1: got 0"),
    ],
    TextRecall: [
        ({"measures": []}, "wanted one or more of copies, pairs"),
        ({"split": "dev"}, "wanted one of train, validation, test"),
        ({"distances": []}, "distances: got .*; wanted one or more different numbers"),
        ({"distances": [0, 4]}, r"got \[0, 4\]; wanted .* all at least 1"),
        ({"distances": [4, 4]}, "wanted one or more different numbers of tokens"),
        ({"segment": 0}, "segment must be at least 1, or null: got 0"),
        ({"examples": 0}, "examples must be at least 1, or null: got 0"),
        ({"segments": 1}, "segments must be at least 2: got 1"),
        ({"batch_size": 0}, "batch_size must be at least 1: got 0"),
        ({"mutated": [1.5]}, r"mutated: got \[1.5\]; wanted .* numbers from 0 to 1"),
        ({"mutated": []}, "mutated: got .*; wanted one or more different numbers"),
        ({"rare": -0.1}, "rare must be from 0 to 1: got -0.1"),
        ({"forms": []}, "forms: got .*; wanted one or more of exact, reversed"),
        ({"controls": ["native"] * 2}, "wanted one or more of native, foreign, none of them twice"),
    ],
    Scaling: [
        ({"lengths": []}, "one or more positive numbers"),
        ({"lengths": [0]}, "one or more positive numbers"),
        ({"modes": []}, "modes: got an empty list"),
        ({"batch_size": 4}, "batch=fixed needs a batch_size"),
        ({"batch": Batching.fixed}, "batch=fixed needs a batch_size"),
        ({"timed_steps": 1}, "timed_steps must be at least 3: got 1"),
    ],
    Span: [
        ({"measures": []}, "wanted one or more of attention, gradient, occlusion"),
        ({"split": "tset"}, "got 'tset'; wanted one of train"),
        ({"examples": 0}, "examples must be at least 1: got 0"),
        ({"queries": 0}, "queries must be at least 1: got 0"),
        ({"keeps": 1.5}, "keeps must be above 0 and at most 1: got"),
    ],
    TrainConfig: [
        ({"evaluate_splits": ["tset"]}, "got 'tset'; wanted one or more of validation, test"),
        (
            {"evaluate_splits": ["test", "test"]},
            "got 'test'; wanted one or more of validation, test, none of them twice",
        ),
        ({"keep": Keep.best}, "keep=best needs evaluate_every_steps above 0"),
        ({"log_every_steps": 0}, "log_every_steps must be at least 1: got 0"),
        ({"window_deviation": 0.0}, "window_deviation must be positive: got 0.0"),
        (
            {"halved_windows": 0.1},
            "halved_windows=0.1 has an effect only together with window_deviation",
        ),
        (
            {"window_deviation": 1.0, "halved_windows": 1.0},
            "must be at least 0 and below 1: got 1.0",
        ),
    ],
    Transfer: [
        ({"source": None}, "got source=None, weights=None; set source to a family"),
        ({"weights": "a.safetensors"}, "got source=softmax, weights=a.safetensors"),
        ({"source": None, "weights": "nowhere.safetensors"}, "there is no file nowhere"),
        ({"pretraining": {"model": {}}}, "wanted options of the groups optim and task"),
        ({"pretraining": {"optim": 5}}, "got optim=5; wanted options"),
        ({"evaluate_every_steps": 0}, "evaluate_first=true needs evaluate_every_steps above 0"),
        ({"validation_examples": 0}, "validation_examples must be at least 1: got 0"),
        ({"evaluate_splits": ["train"]}, "got 'train'; wanted one or more of"),
    ],
}
"""Each with a pattern of its message."""
CASES = [(kind, *case) for kind, cases in REFUSED.items() for case in cases]


@pytest.mark.parametrize(("kind", "options", "message"), CASES)
def test_options_that_make_no_sense_are_refused(
    kind: type, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        kind(**options)
