"""What makes an option of S5's commands one of ours: rules by name, as in `setting_rules.py`."""

import math

from tests.lra.released_models.setting_rules import same

OUTPUTS = {
    "lecun_normal": "lecun",
    "trunc_standard_normal": "truncated",
    "complex_normal": "complex",
}
SETS = {"standard": (False, False), "BandCdecay": (True, False), "BfastandCdecay": (False, True)}
"""Which of `decay_input` and `fast_input` are set."""
DATASETS = {
    "listops": "listops", "text": "imdb", "retrieval": "aan", "image": "lra-cifar",
    "pathfinder": "pathfinder", "pathx": "pathx",
}  # fmt: skip


def dropped(value, ours):
    """The share dropped behind the state space and behind its map, by channels of a row."""
    tied = ours["tied_dropout"] or not value
    return value == ours["dropout"] == ours.mixer["dropout"] and tied


def normed(value, ours):
    """Norms before the layers, and none behind them."""
    return value and (ours["residual"], ours["stack_norm"]) == ("pre_norm", False)


S5 = {
    "n_layers": same("depth"),
    "d_model": same("width"),
    "ssm_size_base": same("mixer", "states"),
    "blocks": same("mixer", "blocks"),
    "C_init": lambda value, ours: OUTPUTS[value] == ours.mixer["output"],
    "discretization": same("mixer", "discretisation"),
    "activation_fn": same("mixer", "mixing"),
    "clip_eigs": same("mixer", "clip_eigenvalues"),
    "conj_sym": lambda value, _: value is True,
    "bidirectional": same("mixer", "bidirectional"),
    "dt_min": same("mixer", "step_min"),
    "dt_max": same("mixer", "step_max"),
    "mode": lambda value, ours: (value, ours["pooling"]) == ("pool", "mean"),
    "prenorm": normed,
    "batchnorm": lambda value, ours: value and ours["norm"] == "batch",
    "bn_momentum": lambda value, ours: (value == 0.9) == ("statistics" not in ours.deviations),
    "p_dropout": dropped,
    "dataset": lambda value, ours: value == f"{DATASETS[ours.name]}-classification",
    "bsz": same("optim", "batch_size"),
    "epochs": lambda value, ours: (
        value * ours.epoch == ours.optim["steps"]
        and (ours.runner["evaluate_every_steps"], ours.runner["keep"]) == (ours.epoch, "best")
    ),
    "warmup_end": lambda value, ours: (
        value * ours.epoch == ours.optim["warmup_steps"]
        and bool(value) == bool(ours.deviations.get("cosine"))
    ),
    "cosine_anneal": lambda value, ours: value and ours.optim["schedule"] == "cosine",
    "lr_min": lambda value, ours: value == ours.optim["final_fraction"],
    "weight_decay": same("optim", "weight_decay"),
    "opt_config": lambda value, ours: (
        SETS[value] == (ours.mixer["decay_input"], ours.mixer["fast_input"])
        and ours.optim["decayed_weights"] == "all"
    ),
    "dt_global": same("mixer", "fast_step"),
    "lr_factor": lambda value, ours: math.isclose(value * ours.mixer["rate"], 1),
    "ssm_lr_base": lambda value, ours: math.isclose(
        value, ours.optim["peak_learning_rate"] * ours.mixer["rate"]
    ),
}
ELSEWHERE = {
    **dict.fromkeys(
        ("USE_WANDB", "wandb_entity", "wandb_project", "dir_name", "jax_seed"),
        "of the log, of the machine, or a seed",
    ),
    **dict.fromkeys(
        ("early_stop_patience", "lr_patience", "reduce_factor"),
        "more epochs than there are, and a factor of 1",
    ),
}
