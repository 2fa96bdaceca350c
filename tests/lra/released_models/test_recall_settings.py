"""Every setting of zoology's and mad-lab's configurations beside the protocols, and first weights.

`recall_models.py` has stored the settings, also those that are a default in the released code, and
what the trainers made of them. The settings of `mamba_synthetics` are those of a paper.
"""

import re

import pytest
import torch

from lra.composition.compose import build_model, facts, typed
from lra.composition.hydra_entry import entries
from lra.runners.training.optimisers.groups import parameter_groups
from lra.runners.training.schedules import learning_rate
from tests.lra.released_models.setting_rules import Ours, same
from tests.lra.released_models.test_recall_models import (
    ARRAYS,
    FACTS,
    names_of,
    order_of,
)
from tests.lra.released_models.test_settings import differing


def whole(case):
    """Return the configuration of a case at its full size, and its run."""
    protocol, model = case.split(" ")
    recall = protocol in ("zoology", "based")
    words = [f"+protocol={protocol if recall else 'mad'}", f"model={model}", "runner=train",
             "logger=none", f"task={'mqar' if recall else protocol}"]  # fmt: skip
    (entry,) = entries(words)
    return entry.config, typed(entry.config)


def flat(node, above=""):
    if not isinstance(node, dict) or not node:
        return {above: node}
    parts = (flat(value, f"{above}.{key}" if above else key) for key, value in node.items())
    return {key: value for part in parts for key, value in part.items()}


def segments(part):
    def rule(value, ours):
        listed = ours.task["segments" if part == "train" else "test_segments"] or [
            {"length": ours.task["length"], "pairs": ours.task["pairs"],
             "examples": ours.task[f"{part}_examples"]}]  # fmt: skip
        fillers = {True: "random", False: "blank"}
        return [
            (each["input_seq_len"], each["num_kv_pairs"], each["num_examples"]) for each in value
        ] == [(each["length"], each["pairs"], each["examples"]) for each in listed] and all(
            (each["vocab_size"], each["power_a"], fillers[each["random_non_queries"]])
            == (ours.task["vocabulary"], ours.task["power"], ours.task["filler"])
            for each in value
        )

    return rule


def epochs(value, ours):
    """The last batch of each segment is a deviation."""
    rows = [each["examples"] for each in ours.task.get("segments") or ()]
    rows = rows or [ours.task["train_examples"]]
    updates = sum(number // ours.optim["batch_size"] for number in rows)
    return (ours.optim["steps"], ours.runner["evaluate_every_steps"]) == (value * updates, updates)


def in_blocks(rule):
    """Mamba's blocks have no dropout and norms of another kind, whatever the configuration says."""
    return lambda value, ours: rule(0.0 if ours["norm"] == "rms" else value, ours)


BLOCKS = {"TransformerBlock": ("layer", "identity"), "MambaBlock": ("rms", "none"),
          "Mamba2Block": ("rms", "none")}  # fmt: skip
ZOOLOGY = {
    "data.batch_size": lambda value, ours: (
        (value if isinstance(value, list) else [value, value])
        == [ours.optim["batch_size"], ours.runner["evaluation_batch_size"]]
    ),
    "data.num_passes": same("task", "passes"),
    "data.train_configs": segments("train"), "data.test_configs": segments("test"),
    "early_stopping_metric": lambda value, ours: {value} == {
        f"valid/{name}" for name in ours.runner["stop_at"]},
    "early_stopping_threshold": lambda value, ours: [*ours.runner["stop_at"].values()] == [value],
    "learning_rate": lambda _, ours: "rate" in ours.deviations,
    "loss_type": lambda value, ours: value == "ce" and ours.task["loss"] == "answers",
    "max_epochs": epochs,
    "model.block_type": lambda value, ours: BLOCKS[value] == (ours["norm"], ours["feed_forward"]),
    "model.d_model": same("width"), "model.n_layers": same("depth"),
    "model.embed_dropout": in_blocks(same("embedding_dropout")),
    "model.resid_dropout": same("dropout"), "model.layer_norm_epsilon": same("norm_epsilon"),
    "model.learnable_word_embeddings": same("tied_embeddings"),
    "model.embedding_init_type": lambda value, ours: (
        value == "default" and ours["embedding_deviation"] == 0.02),
    "model.max_position_embeddings": lambda value, ours: (
        ours["positions"] == ("learned" if value else "none")),
    "model.vocab_size": same("task", "vocabulary"),
    "model.sequence_mixer.kwargs.dropout": same("attention_dropout"),
    "model.sequence_mixer.kwargs.num_heads": same("heads"),
    "model.sequence_mixer.kwargs.d_state": same("mixer", "states"),
    "model.sequence_mixer.kwargs.l_max": same("task", "length"),
    "model.sequence_mixer.kwargs": lambda value, ours: (
        not value and ours.mixer["states"] == 16),  # its default
    "model.sequence_mixer.name": lambda value, ours: (
        value.rpartition(".")[2].replace("MHA", "softmax").lower() == ours.config["model"]["name"]),
    "weight_decay": lambda value, ours: (
        (ours.optim["weight_decay"], ours.optim["decayed_weights"]) == (value, "all")),
}  # fmt: skip
NO_SETTING = {
    *(f"data.{name}" for name in ("cache_dir", "force_cache", "seed")), "launch_id", "run_id",
    "sweep_id", "seed", "slice_keys", "input_type", "model.name",
    "model.drop_path",  # 0
    "model.pad_vocab_size_multiple",  # 1
    "model.state_mixer.name", "model.state_mixer.kwargs",  # see model.block_type
    "logger.entity", "logger.project_name",
}  # fmt: skip
WITHOUT_LAST = {"mad_recall", "mad_noisy"}
"""Rows here have one token less, which is only an answer."""
MAD = {
    "batch_size": lambda value, ours: (
        {ours.optim["batch_size"], ours.runner["evaluation_batch_size"]} == {value}),
    "epochs": lambda value, ours: (
        ours.optim["steps"] == value * -(-ours.task["train_examples"] // ours.optim["batch_size"])),
    "lr": lambda _, ours: ours.optim["peak_learning_rate"] == 5e-4,  # of three, the default
    "weight_decay": lambda value, ours: (
        (ours.optim["weight_decay"], ours.optim["decayed_weights"]) == (value, "all")),
    "optimizer": same("optim", "optimiser"),
    "scheduler": lambda _, ours: ours.optim["schedule"] == "constant",  # see `rates`
    "precision": lambda _, ours: "precision" in ours.deviations,
    "num_train_examples": same("task", "train_examples"),
    "num_test_examples": same("task", "test_examples"),
    "vocab_size": lambda value, ours: (
        value == ours.task.get("vocabulary", ours.task.get("symbols", 0) + 2)),
    "seq_len": lambda value, ours: value == ours.task["length"] + (ours.name in WITHOUT_LAST),
    "frac_noise": lambda value, ours: value == ours.task.get("noise", 0),
    "noise_vocab_size": lambda value, ours: value == ours.task.get("noise_ids", 0),
    "num_tokens_to_copy": lambda value, ours: value == ours.task.get("items", 0),
    "k_motif_size": lambda value, ours: value == (3 if ours.name == "mad_fuzzy" else 1),
    "v_motif_size": lambda value, ours: value == (3 if ours.name == "mad_fuzzy" else 1),
    "early_stop": lambda value, ours: not value and [*ours.runner["stop_at"].values()] == [0.999],
}  # fmt: skip
NO_SETTING_OF_MAD = {
    "task", "multi_query", "seed", "data_path", "num_data_workers", "persistent_data_workers",
    "accelerator", "devices", "save_checkpoints", "target_ignore_index",
    "min_lr", "plateau_patience", "plateau_factor", "stop_patience",  # of what is not used
}  # fmt: skip


@pytest.mark.parametrize("case", FACTS)
def test_settings_are_those_of_the_released_configuration(case):
    config, _ = whole(case)
    settings = FACTS[case]["settings"]
    rules = (ZOOLOGY, NO_SETTING) if "data" in settings else (MAD, NO_SETTING_OF_MAD)
    assert not differing(flat(settings), Ours(config), *rules)


MORE = {"output_biases": lambda run: run.task.vocabulary, "last_norm": lambda run: 64,
        "padding": lambda run: -64}  # fmt: skip
"""Parameters that the source has and we do not, by the deviation that says so."""
DRAWN_OTHERWISE = re.compile(
    r"proj\.?\d?\.weight|Wqkv|\.w[123]\.|unembed\.1\.w|implicit_filter|decoder\.[14]\.w"
)
"""Maps, whose draws `initialisation`, `outputs` and `mixer` declare; no table, taps or gains."""


@pytest.mark.parametrize("case", FACTS)
def test_parameters_are_as_many_and_begin_as_in_the_source(case):
    config, run = whole(case)
    model = build_model(run, given_facts=facts(run))
    more = sum(count(run) for name, count in MORE.items() if name in config["deviations"])
    assert sum(each.numel() for each in model.parameters()) + more == FACTS[case]["parameters"]
    ours, apart = dict(model.named_parameters()), set()
    for name, wanted in FACTS[case]["begin"].items():
        parts = [ours[part] for part in names_of(case)[name] if part in ours]
        if not parts:
            assert name.endswith("bias")
            continue
        joined = torch.cat([each.detach() for each in parts])
        order = order_of(case, name, len(joined))
        found = (joined if order is None else joined[order]).square().mean().item()
        if joined.numel() < 8:  # two numbers of Mamba-2's heads tell nothing
            continue
        enough = 0.5 if joined.numel() < 1000 else 0.25
        if found != pytest.approx(wanted, rel=enough, abs=1e-6):
            apart.add(name)
    allowed = {"initialisation", "outputs", "mixer"} & {*config["deviations"]}
    assert not apart or allowed, apart
    assert all(map(DRAWN_OTHERWISE.search, apart)), apart


@pytest.mark.parametrize("case", FACTS)
def test_rates_weights_and_the_evaluated_model_are_those_of_the_trainers(case):
    config, run = whole(case)
    rates = FACTS[case]["rates"]
    steps = range(0, run.optim.steps, 97)
    ours = [learning_rate(run.optim, step) / run.optim.peak_learning_rate for step in steps]
    if "evaluated" in FACTS[case]:  # mad-lab
        assert {*rates} == {*ours} == {1.0}
        assert FACTS[case]["evaluated"] == ["best.ckpt", "test/Perplexity_epoch", "min"]
        assert config["runner"]["keep"] == "best"
        assert {"chosen", "target"} <= {*config["deviations"]}
    else:
        assert rates == pytest.approx([1, 0.75, 0.25])  # a cosine of three epochs, to 0
        assert ours[0] == 1
        assert learning_rate(run.optim, run.optim.steps - 1) == pytest.approx(0, abs=1e-12)
        assert {"schedule", "last_batch", "order", "chosen"} <= {*config["deviations"]}
    with torch.device("meta"):
        model = build_model(run, given_facts=facts(run))
    groups = parameter_groups(model, run.optim)
    assert {group["scale"] for group in groups} == {1.0}  # their trainers know no others
    kept = {id(each) for group in groups for each in group["params"]
            if run.optim.weight_decay and not group["weight_decay"]}  # fmt: skip
    assert not kept or "decay" in config["deviations"]


def answers_of(task, row):
    """Return the answers to a released row by the rule of our task, at the places that it asks."""
    if task == "mad_copy":  # the last 16 places, by the symbols before
        symbols = [token for token in row if token < 14]
        return dict(zip(range(len(row) - len(symbols), len(row)), symbols, strict=True))
    values = dict(zip(row[:8:2], row[1:8:2], strict=True))
    return {at: values[token] for at, token in enumerate(row) if at >= 8 and token in values}


@pytest.mark.parametrize("case", ["zoology softmax", "based mamba", "mad_copy sdpa"])
def test_our_rules_answer_released_rows(case):
    rows, targets = ARRAYS[f"{case} tokens"].tolist(), ARRAYS[f"{case} targets"].tolist()
    for row, answers in zip(rows, targets, strict=True):
        wanted = {at: answer for at, answer in enumerate(answers) if answer != -100}
        found = answers_of(case.partition(" ")[0], row)
        assert {at: found[at] for at in wanted} == wanted
        # fillers that are a key are not asked
        assert "based" in case or found == wanted


PAPER = {  # section 4.1 and appendix E.1 of arXiv:2312.00752: width, rate, updates
    ("selective_copy", "mamba"): (64, 1e-4, 400_000, 64),
    ("selective_copy", "s4"): (64, 1e-4, 400_000, 64),
    ("selective_copy", "hyena"): (64, 1e-4, 400_000, 64),
    ("induction", "mamba"): (64, 1e-3, 25 * 8192, 8),
    ("induction", "softmax"): (128, 2e-4, 50 * 8192, 8),
    ("induction", "sdpa"): (128, 2e-4, 50 * 8192, 8),
    ("induction", "hyena"): (128, 2e-4, 10 * 8192, 8),
}


@pytest.mark.parametrize(("task", "model"), PAPER)
def test_settings_of_the_mamba_paper(task, model):
    words = ["+protocol=mamba_synthetics", f"task={task}", f"model={model}", "runner=train"]
    (entry,) = entries([*words, "logger=none"])
    ours, run = Ours(entry.config), typed(entry.config)
    width, rate, steps, batch = PAPER[task, model]
    found = (ours["width"], *(ours.optim[key] for key in ("peak_learning_rate", "steps",
                                                          "batch_size")))  # fmt: skip
    assert found == (width, rate, steps, batch)
    assert (ours["depth"], ours["feed_forward"], run.task.vocabulary) == (2, "none", 16)
    assert (ours.optim["schedule"], ours.optim["weight_decay"]) == ("constant", 0)
    assert (ours.task["train_examples"], "source" in ours.deviations) == (None, True)
    with torch.device("meta"):
        thousands = sum(p.numel() for p in build_model(run, given_facts=facts(run)).parameters())
    if task == "induction" and model in ("softmax", "sdpa"):
        assert (ours["heads"], round(thousands / 1000)) == (8, 137)  # as printed in table 11
    if (task, model) == ("induction", "mamba"):
        assert f"here {round(thousands / 1000)} thousand" in ours.deviations["parameters"]
