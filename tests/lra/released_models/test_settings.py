"""Every setting of a released configuration beside the configuration that a protocol composes.

`small_models.py` and `settings.py` have stored the settings. Each is held against ours by a rule of
`setting_rules.py`, `state_space_rules.py` or `language_rules.py`; why some are no option of ours is
there and in `language_reasons.py`. A key that they do not know fails. `compressive`,
`longformer_lm` and `lru` follow papers without released training code.
"""

import json
from functools import cache
from pathlib import Path

import pytest

from lra.composition.compose import typed
from lra.composition.hydra_entry import entries
from lra.sweep.trainings import trainings
from tests.lra.released_models import cases, language_rules as language
from tests.lra.released_models.language_reasons import ELSEWHERE as NO_OPTION
from tests.lra.released_models.setting_rules import (
    ARENA,
    COMMAND,
    ELSEWHERE,
    LRA,
    MASKED,
    OF_COMMANDS,
    REGISTERED,
    ROTARY,
    S4,
    S4_LAYER,
    SCRATCH,
    SGCONV,
    SIZES,
    Ours,
)
from tests.lra.released_models.state_space_rules import ELSEWHERE as BESIDE_S5, S5

HERE = Path(__file__).parent
SAMPLES = ("text", "retrieval", "image", "enwik8", "text8", "wikitext2", "wikitext103")
PAIRS = {
    "nystrom": ("softmax", "nystromformer", "linformer", "reformer", "performer", "linear"),
    "skyformer": ("softmax", "kernelised", "skyformer", "nystromformer", "linformer", "performer",
                  "reformer", "big_bird"),
    **dict.fromkeys(("s4", "s4_v3", "s4d"), ("s4",)),
    "s4_v1": ("local",),  # for the model of the source, which is not here
    "s5": ("s5",),
    "sgconv": ("sgconv",),
    "mega": ("mega", "softmax", "luna"),
    "rotary": ("softmax",),
    "self_pretraining": ("softmax",),
    "lra_code": ("softmax", "local", "sparse_transformer", "longformer", "linformer", "reformer",
                 "sinkhorn", "synthesizer", "big_bird", "linear", "performer", "tlb"),
    "adaptive_span": ("adaptive_span",),
    "awd_lstm": ("lstm",),
    "transformer_xl": ("transformer_xl",),
    "baevski_auli": ("sdpa", "softmax"),
    "shortformer": ("shortformer", "sdpa"),
    "reformer": ("reformer",),
}  # fmt: skip


@cache
def stored(protocol):
    if protocol == "s4d":  # files of s4_v3, and words
        words = dict(word.split("=") for word in cases.S4D)
        found = {task: {**settings, **words} for task, settings in stored("s4_v3").items()}
        found["pathx"]["model.layer.dt_max"] = 0.01  # of commit 643a518, before the paper
        return found
    return json.loads((HERE / f"{protocol}.json").read_text())


@cache
def composed(protocol, task, runner="train"):
    words = ["-m", f"+protocol={protocol}", f"task={task}", "logger=none", f"runner={runner}"]
    words += [f"model={','.join(PAIRS[protocol])}"]
    words += ["task.source=sample"] if task in SAMPLES else []
    configs = [entry.config for entry in entries(words)]
    if runner == "transfer":  # whose first phase is a training of its own
        configs = [each.config for found in configs for each in trainings(typed(found)).values()]
    found = [Ours(config) for config in configs]
    return {ours.config["model"]["name"]: ours for ours in found}


def differing(settings, ours, rules, elsewhere):
    """Return the settings that no rule finds in ours."""
    found = {}
    for key, value in settings.items():
        if key in elsewhere or key.rpartition(".")[2] in elsewhere:
            continue
        assert key in rules, f"a setting that no rule knows: {key}"
        if not rules[key](value, ours):
            found[key] = value
    return found


@pytest.mark.parametrize("task", ["listops", "text", "retrieval", "image", "pathfinder"])
@pytest.mark.parametrize("protocol", ["nystrom", "skyformer"])
def test_settings_of_the_small_models(protocol, task):
    given = stored(protocol)[task]
    for model, ours in composed(protocol, task).items():
        flat = {
            f"{part}.{key}": value
            for part in ("model", "training")
            for key, value in given[part].items()
        }
        flat |= {f"attention.{key}": value for key, value in given["attention"][model].items()}
        assert not differing(flat, ours, ARENA, ELSEWHERE["small_models"]), model


ONE_MODEL = {
    **dict.fromkeys(("s4", "s4_v3", "s4d"), (S4_LAYER, ELSEWHERE["s4"])),
    "s4_v1": (S4, ELSEWHERE["s4"]),
    "s5": (S5, BESIDE_S5),
    # batches are multiplied by the number of GPUs
    "sgconv": (SGCONV, {*ELSEWHERE["s4"], *ELSEWHERE["sgconv"]} - {"gpus"}),
    "rotary": (ROTARY, ELSEWHERE["rotary"]),
    "reformer": (language.REFORMER, NO_OPTION["reformer"]),
}


@pytest.mark.share(2)
@pytest.mark.parametrize(
    ("protocol", "task"), [(name, task) for name in ONE_MODEL for task in stored(name)]
)
def test_settings_of_one_model(protocol, task):
    (ours,) = composed(protocol, task).values()
    usual = {"model.layer.init_scale": 0} if protocol == "sgconv" else {}
    assert not differing({**usual, **stored(protocol)[task]}, ours, *ONE_MODEL[protocol])


@pytest.mark.parametrize("task", ["listops", "text", "retrieval", "image", "pathfinder", "pathx"])
def test_settings_of_mega(task):
    given, ours = stored("mega")[task], composed("mega", task)
    command = {"encoder-normalize-before": False, **given["command"]}
    assert not differing(command, ours["mega"], COMMAND, ELSEWHERE["command"])
    batch = int(command["batch-size"]) * int(command["update-freq"]) * (8 if task == "pathx" else 1)
    assert ours["mega"].optim["batch_size"] == batch
    elsewhere = ({*ELSEWHERE["registered"]} | OF_COMMANDS) - {*SIZES}
    assert not differing(given["mega"], ours["mega"], SIZES, elsewhere)
    for model in {"softmax", "luna"} & {*given}:
        assert not differing(given[model], ours[model], REGISTERED, ELSEWHERE["registered"]), model


@pytest.mark.parametrize("task", stored("lra_code"))
def test_settings_of_the_arena(task):
    given, ours = stored("lra_code")[task], composed("lra_code", task)
    found = {}
    for model in given.keys() - {"base"}:
        settings = {**given["base"], **given[model]}
        found[model] = differing(settings, ours[model], LRA, ELSEWHERE["lra_code"])
    assert not any(found.values()), found


LANGUAGE = {
    "adaptive_span": (language.ADAPTIVE_SPAN, language.ADAPTIVE_SPAN_TEST),
    "awd_lstm": (language.AWD_LSTM, {}),
    "transformer_xl": (language.TRANSFORMER_XL, language.TRANSFORMER_XL_TEST),
}


@pytest.mark.parametrize(
    ("protocol", "task"), [(name, task) for name in LANGUAGE for task in stored(name)]
)
def test_settings_of_language_models(protocol, task):
    (ours,) = composed(protocol, task).values()
    given, reasons = stored(protocol)[task], NO_OPTION[protocol]
    trained, judged = LANGUAGE[protocol]
    assert not differing(given["train"], ours, trained, reasons)
    assert not differing(given.get("evaluate", {}), ours, judged, reasons)


@pytest.mark.parametrize("model", PAIRS["baevski_auli"])
def test_settings_of_baevski_auli(model):
    given = stored("baevski_auli")["wikitext103"]["train"]
    ours = language.Staged(composed("baevski_auli", "wikitext103")[model], stage=0)
    assert not differing(given, ours, language.FAIRSEQ, NO_OPTION["fairseq"])
    assert language.tokens_of(given, ours)


@pytest.mark.parametrize("model", PAIRS["shortformer"])
def test_settings_of_shortformer(model):
    given = stored("shortformer")["wikitext103"]
    base, reasons = composed("shortformer", "wikitext103")[model], NO_OPTION["fairseq"]
    for stage, settings in enumerate(given[model]):
        ours = language.Staged(base, stage)
        assert not differing(settings, ours, language.SHORTFORMER, reasons), stage
        assert language.tokens_of(settings, ours)
    assert len(given[model]) == len(base.runner["stages"]) + 1
    judged = given[f"{model} evaluate"][-1 if model == "sdpa" else 0]
    assert not differing(judged, base, language.SHORTFORMER_TEST, reasons)


@pytest.mark.parametrize("task", stored("self_pretraining"))
def test_settings_of_self_pretraining(task):
    given = stored("self_pretraining")[task]
    elsewhere = {**ELSEWHERE["s4"], **ELSEWHERE["self_pretraining"]}
    for phase, runner, rules in (("scratch", "train", SCRATCH), ("masked", "transfer", MASKED)):
        (ours,) = composed("self_pretraining", task, runner).values()
        assert not differing(given[phase], ours, rules, elsewhere), phase
