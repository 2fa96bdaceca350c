"""What makes a setting of a released configuration one of ours: rules by its key, by repository.

A rule takes the released value and what a protocol composes, and says whether they agree. Keys of
`ELSEWHERE` have a reason why no option of ours can be them.
"""

import math

TRAINING = {"listops": 96_000, "text": 25_000, "retrieval": 147_086, "image": 45_000,
            "pathfinder": 160_000, "pathx": 160_000}  # fmt: skip
"""Examples that are trained on."""


class Ours:
    """What a protocol composes, by short names."""

    def __init__(self, config):
        self.config, self.task = config, config["task"]
        self.name = config["task"]["name"]
        self.backbone, self.optim = config["model"]["backbone"], config["optim"]
        self.mixer = config["model"].get("mixer") or config["model"]["stack"]
        self.runner = config["runner"]
        self.deviations = config["deviations"]

    def __getitem__(self, key):
        return self.backbone[key]

    @property
    def epoch(self):
        """Updates of one epoch, whose last batch is left out."""
        return TRAINING[self.name] // self.optim["batch_size"]


def same(*path):
    """Return the rule that one option of the backbone, or of another node, is the setting."""

    def rule(value, ours):
        node = ours if len(path) == 1 else getattr(ours, path[0])
        return node[path[-1]] == value

    return rule


def full_length(value, ours):
    """The length that a power of two follows, to which sequences are padded."""
    longest = 2 ** math.ceil(math.log2(value))
    if ours.name in ("image", "pathfinder"):
        return value == 1024
    least = ours.task.get("max_length", 2000)
    return (least, ours.task["padded_length"]) == (value, longest)


def before(value, ours):
    """Whether norms stand before the layers, and one closes the stack, or none opens it."""
    wanted = ("pre_norm", True) if value else ("post_norm", False)
    return (ours["residual"], ours["stack_norm"]) == wanted


ARENA = {  # of the Nystromformer and the Skyformer code
    "model.learn_pos_emb": lambda value, ours: (ours["positions"] == "learned") == value,
    "model.tied_weights": lambda value, ours: (ours["layer_groups"] == 1) == value,
    "model.embedding_dim": same("width"),
    "model.transformer_dim": same("width"),
    "model.transformer_hidden_dim": lambda value, ours:
        value == ours["feed_forward_width"] and ours["head_hidden_width"] is None
        and ours["head_hidden_layers"] == 1,
    "model.head_dim": lambda value, ours: ours["width"] // ours["heads"] == value
        and ours["head_width"] is None,
    "model.num_head": same("heads"),
    "model.num_layers": same("depth"),
    "model.vocab_size": lambda _, ours: "vocabulary" in ours.deviations,
    "model.max_seq_len": full_length,
    "model.dropout_prob": lambda value, ours:
        value == ours["dropout"] == ours["embedding_dropout"]
        and ours["activation_dropout"] is None,
    "model.attention_dropout": lambda value, ours: ours["attention_dropout"] == (
        value if ours.config["model"]["name"] in ("softmax", "kernelised") else 0.0),
    "model.pooling_mode": lambda value, ours:
        (value, ours["pooling"]) == ("MEAN", "mean_over_padded"),
    "training.batch_size": same("optim", "batch_size"),
    "training.learning_rate": same("optim", "peak_learning_rate"),
    "training.warmup": lambda value, ours: ours.optim["warmup_steps"] == value - 1,
    "training.lr_decay": lambda value, ours:
        (value, ours.optim["schedule"], ours.optim.get("anneal", "linear"))
        == ("linear", "one_cycle", "linear")
        and ours.optim["momentum_range"] == [0.85, 0.95],  # PyTorch's own
    "training.weight_decay": same("optim", "weight_decay"),
    "training.eval_frequency": lambda value, ours:
        (ours.runner["evaluate_every_steps"], ours.runner["keep"]) == (value, "best"),
    "training.num_train_steps": same("optim", "steps"),
    "training.num_eval_steps": lambda _, ours: {"scored", "best"} & {*ours.deviations},
    "attention.num_landmarks": same("mixer", "landmarks"),
    "attention.nb_features": same("mixer", "landmarks"),
    "attention.conv_kernel_size": same("mixer", "conv_kernel"),
    "attention.linformer_k": lambda value, ours: ours.mixer["projected_length"] == [value],
    "attention.num_hash": same("mixer", "rounds"),
    "attention.rp_dim": same("mixer", "features"),
    "attention.num_random_blocks": same("mixer", "random_blocks"),
    "attention.block_size": same("mixer", "block"),
    "attention.sketched_kernel": lambda value, ours:
        (value, ours.mixer["form"], ours.mixer["gamma"]) == ("kernel_RS_RBF", "skyformer", 0.1),
    "attention.accumulation": lambda value, _: value == 1,
}  # fmt: skip
S4 = {
    "model.n_layers": same("depth"),
    "model.d_model": same("width"),
    "model.norm": same("norm"),
    "model.residual": lambda value, ours: value == "R" and ours["residual"] != "none",
    "model.prenorm": before,
    "model.dropout": lambda value, ours: (ours["dropout"], ours["tied_dropout"])
    == (value, value > 0),
    "model.transposed": lambda *_: True,
    "model.tie_dropout": lambda value, _: value is True,  # see model.dropout
    "encoder": lambda value, ours:
        (value == "linear") == (ours.task.get("encoding", "ids") == "scalars"),
    "decoder.mode": lambda value, ours: {"pool": "mean", "last": "last"}[value] == ours["pooling"],
    "decoder._name_": lambda value, ours:
        ours["head_hidden_layers"] == {"sequence": 0, "retrieval": 1}[value],
    "decoder.nli": lambda value, ours: value == (ours["interaction"] == "nli"),
    "decoder.activation": same("head_activation"),
    "decoder.d_model": lambda value, ours: value is None
        and ours["head_hidden_width"] == ours["width"],
    "loader.batch_size": same("optim", "batch_size"),
    "optimizer._name_": lambda value, ours: ours.optim.get("optimiser", value) == value == "adamw",
    "optimizer.lr": same("optim", "peak_learning_rate"),
    "optimizer.betas": same("optim", "betas"),
    "optimizer.weight_decay": same("optim", "weight_decay"),
    "scheduler._name_": lambda value, ours: ours.optim["schedule"] in (
        ("plateau",) if value == "plateau" else ("cosine", "lra_cosine")),
    "scheduler.num_warmup_steps": same("optim", "warmup_steps"),
    "scheduler.num_training_steps": lambda value, ours: value == (
        ours.optim["cycle_steps"] + ours.optim["warmup_steps"]
        if ours.optim["schedule"] == "lra_cosine" else ours.optim["steps"]),
    "scheduler.factor": same("optim", "plateau_factor"),
    "scheduler.patience": same("optim", "plateau_patience"),
    "scheduler.min_lr": lambda value, ours: ours.optim.get("plateau_least", 0.0) == value,
    "scheduler.mode": lambda value, _: value == "${train.mode}",
    "train.mode": lambda value, _: value == "max",
    "train.monitor": lambda value, ours:
        (value, ours.runner["keep"]) == ("val/accuracy", "best"),
    "train.interval": lambda value, ours: value in ("step", "epoch"),
    "trainer.max_epochs": lambda value, ours:
        value * ours.epoch == ours.optim["steps"]
        and ours.epoch == ours.runner["evaluate_every_steps"],
    "trainer.gradient_clip_val": lambda value, ours: not value and ours.optim["clip"] is None,
    "dataset.l_max": lambda value, ours: ours.task.get("max_length", 2000) in (value, 2000),
    "dataset.level": lambda value, ours: value == "char" and "characters" in ours.deviations,
    "dataset.min_freq": lambda value, ours: value == 15 and "characters" in ours.deviations,
    "dataset.append_eos": lambda value, ours: value and {"end", "characters"} & {*ours.deviations},
    "dataset.max_vocab": lambda _, ours: {"end", "characters"} & {*ours.deviations},
    "dataset.val_split": lambda value, ours:
        (value == 0.0) == (ours.task.get("validation") == "test"),
    "dataset.grayscale": lambda value, _: value is True,
    "dataset.center": lambda value, ours:
        value or (ours.task["mean"], ours.task["deviation"]) == (0, 1),
    "dataset.resolution": lambda value, ours: value == {"pathfinder": 32, "pathx": 128}[ours.name]
        and ours.task["mean"] == (0.0 if ours.config["protocol"] == "s4" else 0.5),  # see center
}  # fmt: skip


def learns(*options):
    """Return the rule that a rate is what options of S4 make of the run's; None: the run's."""

    def rule(value, ours):
        peak = ours.optim["peak_learning_rate"]
        rates = [ours.mixer[name] * peak for name in options]
        return all(math.isclose(rate, peak if value is None else value) for rate in rates)

    return rule


def every_rate(value, ours):
    """One rate for A, B and dt, and in the code of today for C as well."""
    today = ours.config["protocol"] == "s4"
    options = ["rate", "rate_of_step", *(["rate_of_readout"] if today else [])]
    return learns(*options)(value, ours) and (today or ours.mixer["rate_of_readout"] == 1.0)


def dropped(_, ours):
    """Behind GELU, a channel at once; in the code of today also before it, number by number."""
    share, mixer = ours["dropout"], ours.mixer
    before = share if ours.config["protocol"] == "s4" else 0.0
    found = mixer["dropout"], mixer["tied_dropout"], mixer["convolution_dropout"]
    return found == (share, share > 0, before)


S4_LAYER = {
    **S4,
    "model.layer._name_": lambda value, ours: ours.config["model"]["name"] == value == "s4",
    "model.layer.mode": lambda value, ours:
        {"nplr": "dplr", "diag": "diagonal"}[value] == ours.mixer["kernel"],
    "model.layer.rank": lambda value, _: value == 1,
    "model.layer.channels": lambda value, _: value == 1,
    "model.layer.d_state": same("mixer", "states"),
    "model.layer.n_ssm": lambda value, ours: (
        ours["width"] if value in {None, "${..d_model}"} else value
    ) == (ours.mixer["independent"] or ours["width"]),
    "model.layer.dt_min": same("mixer", "step_min"),
    "model.layer.dt_max": same("mixer", "step_max"),
    "model.layer.dt_transform": lambda value, ours: value == "softplus"
        and "steps" in ours.deviations,
    "model.layer.init": same("mixer", "init"),
    "model.layer.bidirectional": same("mixer", "bidirectional"),
    "model.layer.activation": lambda value, _: value == "gelu",
    "model.layer.final_act": same("mixer", "mixing"),
    "model.layer.measure": lambda value, ours:  # at its tag
        {"legs": "legs", "diag-legs": "legs_ones", None: "legs"}[value] == ours.mixer["init"],
    "model.layer.postact": lambda value, ours: value in (None, ours.mixer["mixing"]),  # at its tag
    "model.layer.lr": every_rate,
    "model.layer.lr.A": learns("rate"),
    "model.layer.lr.B": learns("rate"),
    "model.layer.lr.dt": learns("rate_of_step"),
    "model.layer.wd": lambda value, _: value == 0.0,
    "model.layer.tie_dropout": dropped,
    "model.layer.dropout": lambda value, _: value == "${..dropout}",
}  # fmt: skip
GPUS = {"retrieval": 2, "pathx": 4}
MODES = {"cat_randn": ("normal", "piece"), "cat_cos": ("cosine", "piece"),
         "cat_randn_learnable_fixed": ("normal", "lag")}  # fmt: skip
SGCONV = {
    **S4,
    "model.dropout": lambda value, ours: S4["model.dropout"](value, ours)
        and ours.mixer["dropout"] == value,
    "loader.batch_size": lambda value, ours:
        ours.optim["batch_size"] == value * GPUS.get(ours.name, 1),
    "trainer.gpus": lambda value, ours:
        value == GPUS[ours.name] and {"halves", "quarters"} & {*ours.deviations},
    "model.layer._name_": lambda value, ours:
        (value, ours.mixer["kernel"]) == ("gconv", "pieces"),
    "model.layer.activation": lambda value, _: value == "gelu",
    "model.layer.bidirectional": same("mixer", "bidirectional"),
    "model.layer.channels": same("mixer", "kernels"),
    "model.layer.decay_max": same("mixer", "decay_max"),
    "model.layer.decay_min": same("mixer", "decay_min"),
    "model.layer.init_scale": lambda value, ours: ours.mixer["stretch"] == 2**value,
    "model.layer.initializer": lambda value, ours:
        value is None and "initialisation" in ours.deviations,
    "model.layer.kernel_dim": same("mixer", "smallest"),
    "model.layer.l_max": lambda value, ours: value == 1024 or ours.name != "image",
    "model.layer.lr": lambda value, ours:
        math.isclose(value, ours.mixer["rate"] * ours.optim["peak_learning_rate"]),
    "model.layer.mode": lambda value, ours:
        MODES[value] == (ours.mixer["init"], ours.mixer["decay"]),
    "model.layer.n_scales": lambda value, _: value is None,  # as many as reach l_max
    "model.layer.postact": same("mixer", "mixing"),
}  # fmt: skip
HIDDEN = {"sequence": 0, "retrieval": 1, "sequence_nonelinear": 1}
SCRATCH = {  # of self-pretraining, whose files are much like those of S4
    **S4,
    "model.dropout": same("dropout"),
    "model.tie_dropout": same("tied_dropout"),
    "model.encoder._name_": lambda value, ours:
        (value, ours["positions"]) == ("position", "sinusoidal"),
    "model.encoder.dropout": lambda value, ours:
        value == "${..dropout}" and ours["embedding_dropout"] == ours["dropout"],
    "model.layer.0._name_": lambda value, ours: ours["padding"] == (  # its mask is never given
        "masked" if ours.name in ("image", "pathfinder") else "attended") and value == "mhfa",
    "model.layer.0.n_heads": same("heads"),
    "model.layer.0.dropout": lambda value, ours: value is None
        and ours["attention_dropout"] == ours["dropout"],
    "model.layer.0.bias": same("mixer", "bias"),
    "model.layer.0.causal": lambda value, _: not value,
    "model.layer.0.rotary": lambda value, _: not value,
    "model.layer.1._name_": lambda value, _: value == "ff",
    "model.layer.1.activation": same("feed_forward"),
    "model.layer.1.expand": lambda value, ours: value * ours["width"] == ours["feed_forward_width"],
    "model.layer.1.dropout": lambda value, ours: value == "${...dropout}"
        and ours["activation_dropout"] is None,
    "decoder._name_": lambda value, ours: ours["head_hidden_layers"] == HIDDEN[value] and (
        value != "sequence_nonelinear"
        or (ours["head_hidden_width"], ours["head_activation"]) == (ours["width"], "relu")),
    "optimizer.lr": lambda value, ours:
        ours.optim["peak_learning_rate"] == value or "rates" in ours.deviations,
    "scheduler._name_": lambda value, ours:
        (value, ours.optim["schedule"]) == ("constant_warmup", "constant"),
    "task.loss": lambda value, ours: value == "cross_entropy" or "loss" in ours.deviations,
}  # fmt: skip
MASKED = {
    **SCRATCH,
    "encoder": lambda value, ours: (value == "linear") == ("pixels" in ours.deviations),
    "decoder._name_": lambda value, ours: value == "sequence" and "answers" in ours.deviations
        and not ours["tied_embeddings"],
    "decoder.mode": lambda value, ours: value == "last",  # as many as there are
    "dataset.lm_loss": lambda value, ours: value == "ce" or "loss" in ours.deviations,
    "dataset.mlm_prob": lambda value, ours: ours.task["masked_share"] is None and value == (
        0.5 if ours.name == "image" else 0.0),  # which commands change
    "dataset.ignore_val": lambda value, ours: value and ours.task["masked_replacement"] == "mask",
    "dataset.causal_lm": lambda value, ours: (ours.task["objective"] == "causal") == value,
    "train.mode": lambda *_: True,
    "train.monitor": lambda _, ours:
        ours.runner["keep"] == "last" and "checkpoint" in ours.deviations,
    "trainer.max_epochs": lambda value, ours: value * ours.epoch == ours.optim["steps"],
}  # fmt: skip
ROTARY = {
    "model_params.params.layers": same("depth"),
    "model_params.params.input_embedding_dim": same("width"),
    "model_params.params.output_embedding_dim": same("width"),
    "model_params.params.layer.d_model": same("width"),
    "model_params.params.layer.nhead": same("heads"),
    "model_params.params.layer.dim_feedforward": same("feed_forward_width"),
    "model_params.params.layer.dropout": same("dropout"),
    "model_params.params.layer.attention_params.type": same("positions"),
    "model_params.params.layer.attention_params.freq": lambda value, _: value == 10_000,
    "head_params.ff_dim": lambda value, ours: (
        not ours["head_hidden_layers"] or ours["head_hidden_width"] == value
    ),
    "head_params.num_hidden_layers": same("head_hidden_layers"),
    "head_params.dropout_p": lambda value, ours: (
        ours["head_dropout"] == (value if ours["head_hidden_layers"] else 0.0)
    ),
    "head_params.reduction_method": lambda value, ours: (
        (value, ours["pooling"]) == ("mean", "mean_with_cls")
    ),
    "head_params.concat_consecutive": lambda value, ours: (
        (value, ours["interaction"]) == (True, "product")
    ),
    "data_module_params.params.max_len": lambda value, ours: (
        value - 1 == (ours.task.get("max_length") or {"listops": 2000}.get(ours.name, 1024))
    ),
    "data_module_params.params.batch_size": same("optim", "batch_size"),
    "data_module_params.params.augment": lambda value, _: not value,
    "data_module_params.params.enable_augment": lambda value, _: not value,
    "optimizer_params.lr": same("optim", "peak_learning_rate"),
    "optimizer_params.betas": same("optim", "betas"),
    "optimizer_params.weight_decay": same("optim", "weight_decay"),
    "optimizer_params.mlm_aux_task": lambda value, _: not value,
    "trainer_params.max_epochs": lambda value, ours: value * ours.epoch == ours.optim["steps"],
    "trainer_params.val_check_interval": lambda value, ours: (
        ours.epoch * value == ours.runner["evaluate_every_steps"]
    ),
    "trainer_params.precision": lambda value, ours: (
        value == "16-mixed" and "precision" in ours.deviations
    ),
}
POOLINGS = {"CLS": "cls", "MEAN": "mean_all"}


def lra_positions(ours):
    """Those of the sequence, or of chunks."""
    found = ours["positions"]
    return ours.mixer.get("chunk_positions") if found == "none" else found


def lra_pooling(value, ours):
    """Pairs answer at the first token, Sinkhorn and TLB by the mean, their only pooling."""
    if ours.config["model"]["name"] == "tlb":
        return ours["pooling"] == "mean"
    if ours.name == "retrieval":
        return (value, ours["pooling"]) == ("CLS", "first")
    if ours.config["model"]["name"] == "sinkhorn":
        return ours["pooling"] == "mean_all"
    return ours["pooling"] == POOLINGS[value]


LRA_SIZES = {
    "emb_dim": same("width"),
    "num_heads": same("heads"),
    "num_layers": lambda value, ours:
        value == ours["depth"] or ours.config["model"]["name"] == "tlb",  # which reads none
    "mlp_dim": same("feed_forward_width"),
    "qkv_dim": lambda value, ours: ours.config["model"]["name"] == "reformer"  # which reads none
        or value == ours["heads"] * (ours["head_width"] or ours["width"] // ours["heads"]),
    "num_head": lambda _, ours: "big_bird_image" in ours.deviations,
    "dropout_rate": lambda value, ours: value == ours["dropout"] == ours["embedding_dropout"],
    "attention_dropout_rate": same("attention_dropout"),
    "classifier_pool": lra_pooling,
    "pooling_mode": lra_pooling,
    "learn_pos_emb": lambda value, ours:
        lra_positions(ours) == ("learned" if value else "sinusoidal"),
    "block_size": lambda value, ours: value == (
        ours.mixer["chunk"] if ours.config["model"]["name"] == "tlb" else ours.mixer["block"]),
    "num_state_tokens": same("mixer", "state_tokens"),
    "self_to_cross_ratio_input_updater": same("mixer", "self_layers"),
    "num_cross_layers_input_updater": same("mixer", "groups"),
    "num_cross_layers_state_updater": same("mixer", "state_layers"),
    "use_global_pos_encoding": lambda value, ours: value == (ours["positions"] != "none"),
    "tied_weights": lambda value, ours: (ours["layer_groups"] == 1) == value,
}  # fmt: skip
LRA = {
    **LRA_SIZES,
    **{f"model.{key}": rule for key, rule in LRA_SIZES.items()},
    "batch_size": same("optim", "batch_size"),
    "learning_rate": same("optim", "peak_learning_rate"),
    "weight_decay": same("optim", "weight_decay"),
    "warmup": same("optim", "warmup_steps"),
    "num_train_steps": same("optim", "steps"),
    "steps_per_cycle": same("optim", "cycle_steps"),
    "grad_clip_norm": same("optim", "clip"),
    "factors": lambda value, ours: ours.optim["schedule"] == {
        "constant * linear_warmup * rsqrt_decay": "rsqrt",
        "constant * linear_warmup * cosine_decay": "lra_cosine"}[value],
    "eval_frequency": lambda _, ours: "evaluation" in ours.deviations,
    "max_length": lambda value, ours: ours.task["padded_length"] == value,
    "tokenizer": lambda value, _: value == "char",
    "model_kwargs.attention_fn_cls": same("mixer", "kernel"),
    "model_kwargs.attention_fn_kwargs.nb_features": same("mixer", "features"),
    "model_kwargs.attention_fn_kwargs.ortho_scaling": lambda value, ours:
        (value, ours.mixer["norms"]) == (0.0, "chi"),
}  # fmt: skip
NORMS = {"layernorm": "layer", "scalenorm": "scale", "batchnorm": "batch", "syncbatchnorm": "batch"}
COMMAND = {  # of Mega
    "encoder-layers": lambda value, ours: ours["depth"] == int(value),
    "activation-fn": same("feed_forward"),
    "attention-activation-fn": same("mixer", "attention"),
    "n-dim": lambda value, ours: ours.mixer["ema_states"] == int(value),
    "chunk-size": lambda value, ours:
        "CHUNK" in value and ours.mixer["chunk_length"] is None,
    "norm-type": lambda value, ours: NORMS[value] == ours["norm"],
    "sen-rep-type": lambda value, ours: (value, ours["pooling"]) == ("mp", "mean"),
    "encoder-normalize-before": before,
    "optimizer": lambda value, ours: value == "adam"  # whose decay is decoupled there
        and ours.optim.get("optimiser", "adamw") == "adamw",
    "lr": lambda value, ours: ours.optim["peak_learning_rate"] == float(value),
    "adam-betas": lambda value, ours: str(tuple(ours.optim["betas"])) == value,
    "adam-eps": lambda value, ours: ours.optim["epsilon"] == float(value),
    "clip-norm": lambda value, ours: ours.optim["clip"] == float(value),
    "dropout": lambda value, ours:
        float(value) == ours["dropout"] == ours["embedding_dropout"] == ours["head_dropout"],
    "attention-dropout": lambda value, ours: ours["attention_dropout"] == float(value),
    "act-dropout": lambda value, ours: float(value) == (
        ours["dropout"] if ours["activation_dropout"] is None else ours["activation_dropout"]),
    "weight-decay": lambda value, ours: ours.optim["weight_decay"] == float(value),
    "lr-scheduler": lambda value, ours:
        (value, ours.optim["schedule"]) == ("linear_decay", "linear"),
    "total-num-update": lambda value, ours: ours.optim["steps"] == int(value),
    "max-update": lambda value, ours: ours.optim["steps"] == int(value),
    "end-learning-rate": lambda value, ours: ours.optim["final_fraction"] == float(value),
    "warmup-updates": lambda value, ours: ours.optim["warmup_steps"] == int(value),
    "warmup-init-lr": lambda value, ours: value == "1e-07" and "warm_up" in ours.deviations,
    "warmup-power": lambda value, ours: value == "2" and "warmup" in ours.deviations,
    "best-checkpoint-metric": lambda value, ours:
        (value, ours.runner["keep"]) == ("accuracy", "best"),
    "maximize-best-checkpoint-metric": lambda value, _: value is True,
    "input-type": lambda value, ours:
        (value == "image") == (ours.task.get("encoding", "ids") == "scalars"),
    "pixel-normalization": lambda value, ours:
        value == f"{ours.task['mean']} {ours.task['deviation']}",
}  # fmt: skip
REGISTERED = {  # of exact attention and of Luna in the Mega repository
    "activation_fn": same("feed_forward"),
    "act_dropout": same("activation_dropout"),
    "attention_dropout": same("attention_dropout"),
    "dropout": lambda value, ours:
        value == ours["dropout"] == ours["embedding_dropout"] == ours["head_dropout"],
    "encoder_attention_heads": same("heads"),
    "encoder_embed_dim": same("width"),
    "encoder_ffn_embed_dim": same("feed_forward_width"),
    "encoder_layers": same("depth"),
    "encoder_learned_pos": lambda value, ours: value == (ours["positions"] == "learned"),
    "encoder_normalize_before": lambda value, ours:
        (value, ours["residual"], ours["stack_norm"]) == (True, "post_norm", True),
    "classifier_layers": same("head_hidden_layers"),
    "classifier_activation_fn": same("head_activation"),
    "classifier_out_dim": lambda value, ours:
        (ours["head_hidden_width"] or ours["feed_forward_width"]) == value,
    "sen_rep_type": lambda value, ours: (value, ours["pooling"]) == ("mp", "mean"),
    "tie_layer_weights": lambda value, ours:
        value == (ours["layer_groups"] == 1),
}  # fmt: skip
SIZES = {  # of Mega itself
    "encoder_hidden_dim": lambda value, ours: (
        value == (ours.mixer["value_width"] or 2 * ours["width"])
    ),
    "z_dim": same("mixer", "key_width"),
    "n_dim": same("mixer", "ema_states"),
    "truncation_length": same("mixer", "truncation"),
    "chunk_size": lambda value, ours: (  # which the command sets, to -1 or to 128
        ours.mixer["chunk_length"] is None and value in (-1, 1024, 128**2)
    ),
    "encoder_embed_dim": same("width"),
    "encoder_ffn_embed_dim": same("feed_forward_width"),
    "classifier_layers": same("head_hidden_layers"),
    "classifier_activation_fn": same("head_activation"),
    "classifier_out_dim": REGISTERED["classifier_out_dim"],
    "tie_layer_weights": REGISTERED["tie_layer_weights"],
}
ELSEWHERE = {
    "small_models": {
        "model.num_classes": "the task's",
        "training.num_init_steps": "read nowhere",
        "training.patience": "read nowhere",
        "attention.attention_grad_checkpointing": "changes no number",
        "attention.bz_rate": "parts of a batch: changes no number where statistics are not its",
        "attention.kernel_type": "handed over, and not read: generalised attention stays off",
        "attention.sampling_factor": "read where nb_features is not given",
        "attention.no_projection": "read nowhere",
    },
    "s4": {
        "dataset._name_": "the task's",
        **dict.fromkeys(
            ("dataset.append_bos", "dataset.augment", "dataset.cutout", "dataset.permute",
             "dataset.random_erasing", "dataset.tokenize", "dataset.pool", "dataset.sequential",
             "dataset.test_split"), "switched off, or a split that is the task's own",
        ),
        "decoder.use_lengths": "what is read behind padding: pooling leaves it out",
        **dict.fromkeys(
            ("model._name_", "model.bidirectional", "model.decoder", "model.encoder",
             "model.track_norms", "model.init", "model.verbose", "model.dropinp",
             "model.pool._name_", "model.pool.expand", "model.pool.stride", "model.pool.pool"),
            "switched off, or for another model",
        ),
        **dict.fromkeys(
            ("bottleneck", "deterministic", "drop_kernel", "gate", "gate_act", "initializer",
             "hyper_act", "mult_act", "verbose", "weight_norm", "model.layer.layer"),
            "switched off, or the only one",
        ),
        "model.layer.l_max": "of what is learned in place of C",
        "loader.drop_last": "as training here",
        "loader.eval_resolutions": "of one", "loader.train_resolution": "of one",
        **dict.fromkeys(
            ("accelerator", "accumulate_grad_batches", "devices", "enable_model_summary",
             "limit_train_batches", "limit_val_batches", "log_every_n_steps", "strategy", "gpus",
             "progress_bar_refresh_rate", "resume_from_checkpoint", "track_grad_norm",
             "weights_summary"), "of the machine or of the log",
        ),
    },
    "sgconv": {
        **dict.fromkeys(
            ("d_state", "deterministic", "dt_max", "dt_min", "measure", "n_ssm", "rank"),
            "of S4's layer, and not read by this one",
        ),
        "model.layer.tie_dropout": "not read",
        **dict.fromkeys(("hyper_act", "verbose", "weight_norm"), "switched off, or of the log"),
    },
    "self_pretraining": dict.fromkeys(
        ("add_bias_kv", "add_zero_attn", "kdim", "vdim", "append_cls", "span_masking",
         "span_length", "nesting_lvl", "val_check_interval", "task._name_"),
        "switched off, and beside the models",
    ),
    "lra_code": {
        **dict.fromkeys(
            ("checkpoint_freq", "max_eval_target_length", "max_predict_token_length",
             "max_target_length", "num_eval_steps", "prompt", "random_seed", "restore_checkpoints",
             "sampling_temperature", "sampling_top_k", "save_checkpoints", "trial"),
            "of the run or of its evaluation, or read nowhere",
        ),
        "model_type": "the model's name",
        **dict.fromkeys(
            ("ignore_dot_product", "k", "low_rank_features", "synthesizer_mode"), "read nowhere"
        ),
    },
    "rotary": {
        **dict.fromkeys(
            ("name", "data_path", "pin_memory", "num_workers", "limit_tree_height",
             "enable_checkpointing", "default_root_dir", "accelerator", "devices", "num_classes"),
            "the task's, or of the machine",
        ),
        "fit_params": "empty",
    },
    "command": dict.fromkeys(
        ("a", "batch-size", "criterion", "ddp-backend",
         "find-unused-parameters", "keep-last-epochs", "log-format", "log-interval",
         "max-sentences-valid", "num-workers", "required-batch-size-multiple", "save-dir",
         "seed", "sentence-avg", "task", "update-freq"),
        "of the machine or of the log; batches are held together below",
    ),
    "registered": dict.fromkeys(
        ("adaptive_input", "apply_bert_init", "attention_activation_fn", "chunk_size",
         "classifier_in_dim", "encoder_hidden_dim", "feature_dropout",
         "layer_type", "max_positions", "n_dim", "no_token_positional_embeddings", "norm_type",
         "normalize_embedding", "sent_loss", "sentence_class_num",
         "share_encoder_input_output_embed", "truncation_length", "z_dim"),
        "of other layers, the task's, or deviations: classifier, initialisation",
    ),
}  # fmt: skip
OF_COMMANDS = frozenset(
    {"act_dropout", "activation_fn", "attention_dropout", "dropout", "encoder_layers",
     "encoder_attention_heads", "encoder_learned_pos", "encoder_normalize_before", "sen_rep_type"}
)  # fmt: skip
"""Sizes of Mega that its commands set anew, or that belong to other layers."""
