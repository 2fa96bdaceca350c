"""Rules as in `setting_rules.py`, of the settings of language models."""

import math

from tests.lra.released_models.setting_rules import Ours, same

WORDS = 103_227_021
"""Of WikiText-103's training text, ends of lines among them."""
WORDS_2 = 2_088_628
"""Of WikiText-2's."""
GPUS = 8
"""That commands of fairseq and trax are meant for, as their READMEs or papers say."""


class Staged(Ours):
    """What a protocol composes, as one stage of its training sees it."""

    def __init__(self, ours, stage):
        super().__init__(ours.config)
        stages = ours.runner["stages"]
        self.total = ours.optim["steps"]
        if stage < len(stages):
            given = {key: value for key, value in stages[stage].items() if value is not None}
            done = sum(each["steps"] for each in stages[: stage + 1])
            self.task = {**ours.task, **given}
            self.optim = {**ours.optim, "batch_size": given["batch_size"], "steps": done}


def off(value, _):
    """Whether a feature that is none of ours is switched off."""
    return not value or value in (-1, "none", "{}")


def one(value, _):
    """Whether something is done once, or always."""
    return value == 1


def heads_of(value, ours):
    """The width of a head."""
    return (ours["head_width"] or ours["width"] // ours["heads"]) == value


def pre_norm(value, ours):
    """Whether norms stand before the layers."""
    return ours["residual"] == ("pre_norm" if value else "post_norm")


ADAPTIVE_SPAN = {
    "adapt_io": lambda value, ours: not value and ours["embedding"] == "full",
    "adapt_span": lambda value, ours: value and ours.config["model"]["name"] == "adaptive_span",
    "adapt_span_init": same("mixer", "initial"),
    "adapt_span_loss": same("mixer", "penalty"),
    "adapt_span_ramp": same("mixer", "ramp"),
    "attn_span": lambda value, ours: value == ours.mixer["span"] == ours["memory"]
        == ours.task["memory"],
    "batch_sz": same("optim", "batch_size"),
    "block_sz": lambda value, ours:
        value == ours.task["length"] == ours.task["evaluation_length"],
    "dropout": lambda value, ours:
        value == ours["activation_dropout"] == ours["attention_dropout"] and not ours["dropout"],
    "emb_dropout": lambda value, ours:
        value == ours["embedding_dropout"] == ours["output_dropout"],
    "grad_clip": lambda value, ours:
        ours.optim["tensor_clip"] == value and ours.optim["clip"] is None,
    "hid_sz": same("width"),
    "inner_hid_sz": same("feed_forward_width"),
    "lr": same("optim", "peak_learning_rate"),
    "lr_warmup": lambda value, ours:
        (ours.optim["warmup_steps"], ours.optim["schedule"]) == (value, "constant"),
    "momentum": off,
    "nbatches": lambda value, ours: ours.optim["steps"] % value == 0,
    "nheads": same("heads"),
    "niter": lambda value, ours: value * 1000 == ours.optim["steps"],  # see nbatches
    "nlayers": same("depth"),
    "optim": same("optim", "optimiser"),
    "pers_mem_size": same("mixer", "persistent"),
}  # fmt: skip


def windows(ours):
    """Return the windows of an epoch on average: one of twenty is half as long."""
    rows = WORDS_2 / ours.optim["batch_size"]
    return rows / ours.task["length"] / (1 - ours.runner["halved_windows"] / 2)


AWD_LSTM = {
    "alpha": same("mixer", "activation_penalty"),
    "batch_size": same("optim", "batch_size"),
    "beta": same("mixer", "change_penalty"),
    "bptt": same("task", "length"),
    "clip": same("optim", "clip"),
    "dropout": lambda value, ours: ours.mixer["output_dropout"] == [0.0, 0.0, value],
    "dropoute": same("word_dropout"),
    "dropouth": lambda value, ours: ours.mixer["input_dropout"][1:] == [value] * 2,
    "dropouti": lambda value, ours: ours.mixer["input_dropout"][0] == value,
    "emsize": same("width"),
    "epochs": lambda value, ours: round(value * windows(ours), -2) == ours.optim["steps"]
        and math.ceil(windows(ours)) == ours.runner["evaluate_every_steps"],
    "lr": lambda value, ours:
        (ours.optim["peak_learning_rate"], ours.optim["schedule"]) == (value, "constant"),
    "model": lambda value, ours: ours.config["model"]["name"] == value.lower(),
    "nhid": same("mixer", "hidden_width"),
    "nlayers": same("depth"),
    "nonmono": same("optim", "average_after"),
    "optimizer": same("optim", "optimiser"),
    "wdecay": same("optim", "weight_decay"),
    "wdrop": same("mixer", "weight_drop"),
    "when": lambda value, _: value == [-1],
}  # fmt: skip
TRANSFORMER_XL = {
    "adaptive": lambda value, ours:
        (ours["softmax"] == "adaptive") == value == (ours["embedding"] == "adaptive"),
    "attn_type": lambda value, ours: value == 0 and ours["positions"] == "transformer_xl",
    "batch_size": same("optim", "batch_size"),
    "clamp_len": lambda value, ours: ours.mixer["clamp"] == (None if value == -1 else value),
    "clip": same("optim", "clip"),
    "clip_nonemb": off,
    "d_embed": lambda value, ours: value == -1 and ours["embedding_width"] is None,
    "d_head": heads_of,
    "d_inner": same("feed_forward_width"),
    "d_model": same("width"),
    "div_val": lambda value, ours: ours["softmax"] == "full" or ours["softmax_shrink"] == value,
    "dropatt": same("attention_dropout"),
    "dropout": lambda value, ours: value == ours["dropout"] == ours["embedding_dropout"]
        == ours["output_dropout"] == ours.mixer["position_dropout"]
        and ours["activation_dropout"] is None,
    "eta_min": lambda value, ours: ours.optim["final_fraction"] == value,
    "eval_interval": lambda value, ours:
        (ours.runner["evaluate_every_steps"], ours.runner["keep"]) == (value, "best"),
    "eval_tgt_len": lambda value, ours: f"{value}" in ours.deviations["validation"],
    "ext_len": off,
    "fp16": lambda value, ours: (ours.config["hardware"]["precision"] == "float32") != value,
    "init": lambda value, ours: value == "normal" and ours["initial_deviation"] is not None,
    "init_std": same("initial_deviation"),
    "lr": same("optim", "peak_learning_rate"),
    "max_step": same("optim", "steps"),
    "mem_len": lambda value, ours: value == ours["memory"] == ours.task["memory"],
    "n_head": same("heads"),
    "n_layer": same("depth"),
    "not_tied": lambda value, ours: ours["tied_embeddings"] != value,
    "optim": same("optim", "optimiser"),
    "pre_lnorm": pre_norm,
    "proj_init_std": lambda _, ours:  # of maps between widths, which are equal
        ours["softmax"] == "full" or ours["softmax_shrink"] == 1,
    "same_length": lambda value, ours: not value and ours.mixer["same_length"] == "evaluation",
    "sample_softmax": off,
    "scheduler": same("optim", "schedule"),
    "tgt_len": same("task", "length"),
    "varlen": off,
    "warmup_step": same("optim", "warmup_steps"),
}  # fmt: skip
TRANSFORMER_XL_TEST = {
    "batch_size": same("runner", "evaluation_batch_size"),
    "clamp_len": same("mixer", "evaluation_clamp"),
    "ext_len": off,
    "mem_len": same("evaluation_memory"),
    "same_length": lambda value, ours: value and ours.mixer["same_length"] == "evaluation",
    "split": lambda value, _: value == "test",
    "tgt_len": same("task", "evaluation_length"),
}
ADAPTIVE_SPAN_TEST = {"batch_sz": same("runner", "evaluation_batch_size")}


def cut(value, ours):
    """Where groups of rarer words begin, in and out."""
    return [int(edge) for edge in value.split(",")] == ours["softmax_cutoffs"] and (
        ours["embedding"] == ours["softmax"] == "adaptive"
    )


def tokens_of(settings, ours):
    """Whether so many tokens make one update of ours, on all GPUs."""
    parts = settings["max_tokens"] // settings["tokens_per_sample"] * settings["update_freq"]
    epoch = math.ceil(WORDS / (settings["max_tokens"] * settings["update_freq"] * GPUS))
    return (parts * GPUS, epoch) == (ours.optim["batch_size"], ours.runner["evaluate_every_steps"])


FAIRSEQ = {
    "activation_dropout": same("activation_dropout"),
    "activation_fn": same("feed_forward"),
    "adaptive_input": lambda value, ours: (ours["embedding"] == "adaptive") == value,
    "adaptive_input_cutoff": cut,
    "adaptive_input_factor": same("softmax_shrink"),
    "adaptive_softmax_cutoff": cut,
    "adaptive_softmax_dropout": same("softmax_dropout"),
    "adaptive_softmax_factor": same("softmax_shrink"),
    "attention_dropout": same("attention_dropout"),
    "best_checkpoint_metric": lambda value, ours:
        (value, ours.runner["keep"]) == ("loss", "best"),
    "clip_norm": same("optim", "clip"),
    "criterion": lambda value, ours: value == "adaptive_loss" and ours["softmax"] == "adaptive",
    "curriculum": lambda value, ours: (value > 0) == (ours.task["regime"] == "memory"),
    "decoder_attention_heads": same("heads"),
    "decoder_embed_dim": same("width"),
    "decoder_ffn_embed_dim": same("feed_forward_width"),
    "decoder_input_dim": same("width"),
    "decoder_layers": same("depth"),
    "decoder_normalize_before": pre_norm,
    "decoder_output_dim": same("width"),
    "dropout": lambda value, ours: value == ours["dropout"] == ours["embedding_dropout"],
    "fp16": lambda value, ours: value == ("precision" in ours.deviations),
    "lr": lambda value, ours: ours.optim["peak_learning_rate"] == value,
    "lr_period_updates": lambda value, ours: ours.optim["warmup_steps"] + value == ours.total,
    "lr_scheduler": same("optim", "schedule"),
    "max_update": same("optim", "steps"),
    "maximize_best_checkpoint_metric": off,
    "min_lr": lambda value, ours: ours.optim["final_fraction"] == value,
    "momentum": same("optim", "momentum"),
    "no_decoder_final_norm": lambda value, ours: ours["stack_norm"] != value,
    "no_token_positional_embeddings": lambda value, ours: not value and (
        ours["positions"] in ("sinusoidal", "position_infused")),
    "optimizer": lambda value, ours:
        (value, ours.optim["optimiser"], ours.optim["nesterov"]) == ("nag", "sgd", True),
    "sample_break_mode": lambda value, ours: value == "none" and not ours.task["within_documents"],
    "tie_adaptive_proj": same("tied_embeddings"),
    "tie_adaptive_weights": same("tied_embeddings"),
    "tokens_from_prev": lambda value, ours: ours.task["memory"] == value,
    "tokens_per_sample": same("task", "length"),
    "update_freq": lambda value, ours: value in (1, 3),  # see `tokens_of`
    "max_tokens": lambda value, _: value % 3072 == 0,
    "warmup_init_lr": lambda value, ours: value == 1e-7 and "warm_up" in ours.deviations,
    "validate_interval": one,  # in epochs: see `tokens_of`
    "warmup_updates": same("optim", "warmup_steps"),
    "weight_decay": same("optim", "weight_decay"),
    **dict.fromkeys(
        ("add_bos_token", "base_layers", "character_embeddings", "decoder_layerdrop",
         "decoder_layers_to_keep", "decoder_learned_pos", "layernorm_embedding", "bf16", "amp",
         "memory_efficient_bf16", "memory_efficient_fp16", "no_scale_embedding", "quant_noise_pq",
         "quant_noise_scalar", "scale_attn", "scale_fc", "scale_heads", "scale_resids",
         "self_target", "future_target", "past_target", "sentence_avg", "shorten_method",
         "share_decoder_input_output_embed", "output_dictionary_size", "max_epoch", "use_bmuf",
         "decoder_xformers_att_config", "max_target_positions", "pad_to_fixed_length",
         "pad_to_fixed_bsz", "skip_remainder_batch", "finetune_from_model", "stop_time_hours",
         "validate_interval_updates", "validate_after_updates", "max_valid_steps", "patience",
         "disable_validation", "optimizer_overrides", "reset_lr_scheduler",
         "reset_optimizer"), off),
}  # fmt: skip
SHORTFORMER = {
    **FAIRSEQ,
    "max_lr": FAIRSEQ["lr"],  # which later became lr, and this one's lr min_lr
    "lr": FAIRSEQ["min_lr"],
    "min_lr": lambda value, ours: value < ours.optim["final_fraction"],  # now stop_min_lr
}
SHORTFORMER_TEST = {
    "max_sentences": same("runner", "evaluation_batch_size"),
    "sample_break_mode": FAIRSEQ["sample_break_mode"],
    "context_window": lambda value, ours:
        ours.task["evaluation_length"] - value == ours.task["stride"],
}  # fmt: skip


def layers_of(value, ours):
    """Which layers look at blocks and which hash."""
    names = {"SelfAttention": "local", "LSHSelfAttention": "reformer"}
    return [names[each] for each in value] * (ours["depth"] // len(value)) == (
        ours.config["model"]["layers"]
    )


def local(key):
    """Return the rule that one option of the layers that look at blocks is the setting."""
    return lambda value, ours: ours.config["model"]["layer_options"]["local"][key] == value


REFORMER = {
    "Adam.b1": lambda value, ours: ours.optim["betas"][0] == value,
    "Adam.b2": lambda value, ours: ours.optim["betas"][1] == value,
    "Adam.clip_grad_norm": same("optim", "clip"),
    "Adam.eps": same("optim", "epsilon"),
    "Adam.weight_decay_rate": same("optim", "weight_decay"),
    "LSHSelfAttention.attention_dropout": same("attention_dropout"),
    "LSHSelfAttention.bias": same("qkv_bias"),
    "LSHSelfAttention.chunk_len": same("mixer", "chunk"),
    "LSHSelfAttention.n_buckets": lambda value, ours: ours.mixer["buckets"] == [value],
    "LSHSelfAttention.n_chunks_after": same("mixer", "after"),
    "LSHSelfAttention.n_chunks_before": same("mixer", "before"),
    "LSHSelfAttention.n_hashes": same("mixer", "rounds"),
    "SelfAttention.attention_dropout": same("attention_dropout"),
    "SelfAttention.bias": same("qkv_bias"),
    "SelfAttention.chunk_len": local("block"),
    "SelfAttention.n_chunks_after": off,
    "SelfAttention.n_chunks_before": local("look_back"),
    "SelfAttention.share_qk": off,
    "ReformerLM.attention_type": layers_of,
    "ReformerLM.d_ff with more": same("feed_forward_width"),
    "ReformerLM.d_model with more": same("width"),
    "ReformerLM.dropout": lambda value, ours: value == ours["dropout"]
        == ours["embedding_dropout"] == ours["output_dropout"]
        and ours["activation_dropout"] is None,
    "ReformerLM.ff_activation": lambda value, ours:
        value.rpartition(".")[2].lower() == ours["feed_forward"],
    "ReformerLM.max_len": same("task", "length"),
    "ReformerLM.n_heads": same("heads"),
    "ReformerLM.n_layers": same("depth"),
    "ReformerLM.pos_axial_shape": same("axial_shape"),
    "ReformerLM.pos_d_axial_embs with more": lambda value, ours:
        list(value) == ours["axial_widths"] and ours["positions"] == "axial",
    "ReformerLM.pos_max_offset_to_add": off,
    "ReformerLM.pos_start_from_zero_prob": one,
    "ReformerLM.vocab_size": lambda value, ours: value == 258 and "ids" in ours.deviations,
    "attn_kv with more": heads_of,
    "batcher.batch_size_per_device": lambda value, ours: value * GPUS == ours.optim["batch_size"],
    "batcher.eval_batch_size": same("runner", "evaluation_batch_size"),
    "batcher.max_eval_length": same("task", "evaluation_length"),
    "data_streams.dataset_name": lambda value, ours: value == f"t2t_{ours.name}_l65k",
    "multifactor.constant": same("optim", "peak_learning_rate"),
    "multifactor.factors": lambda value, ours: value == "constant * linear_warmup * rsqrt_decay"
        and ours.optim["schedule"] == "rsqrt",
    "multifactor.minimum": off,
    "multifactor.warmup_steps": same("optim", "warmup_steps"),
    "train.loss_fn": lambda value, ours:
        "CrossEntropy" in value and not ours.optim["label_smoothing"],
    "train.optimizer": lambda value, ours:
        value.rpartition(".")[2].lower() == ours.optim["optimiser"],
    "train.steps": same("optim", "steps"),
    "train.checkpoint_highest": lambda value, ours:
        (value, ours.runner["keep"]) == (None, "last"),
    "train.checkpoint_lowest": lambda value, ours: (value, ours.runner["keep"]) == (None, "last"),
    **dict.fromkeys(
        ("ReformerLM.ff_sparsity", "ReformerLM.ff_use_sru", "ReformerLM.loss_sparsity",
         "ReformerLM.loss_d_lowrank", "train.init_checkpoint", "train.additional_train_tasks",
         "train.adasum"), off),
    "train.n_weights_shards": one,
}  # fmt: skip
