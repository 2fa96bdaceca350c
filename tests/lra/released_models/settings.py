"""Store every setting of the configuration files of S4, Mega, the Arena and others, as JSON.

    python -P tests/lra/released_models/settings.py s4 CHECKOUT

CHECKOUT is a clone of github.com/state-spaces/s4 (commit e757cef) for `s4`, the same at its tags
v3.0.0 for `s4_v3` and v1 for `s4_v1`, of github.com/ctlllll/SGConv at its branch preview (commit
0c2b3ab) for `sgconv`, of github.com/facebookresearch/mega (commit aeaa4b4) for `mega`, and of
github.com/google-research/long-range-arena (commit cd31e5c) for `lra_code`, of
github.com/IdoAmos/not-from-scratch (commit f919137) for `self_pretraining`, and of
github.com/pablomiralles22/long-transformers (commit ec33dc6) for `rotary`, and of
github.com/lindermanlab/S5 (commit 3c18fdb) for `s5`. Settings of the
Nystromformer and Skyformer code are stored by `small_models.py`. Of language models: clones of
github.com/facebookresearch/adaptive-span (27b815f) for `adaptive_span`, salesforce/awd-lstm-lm
(1d466ec) for `awd_lstm`, kimiyoung/transformer-xl (44781ed) for `transformer_xl`,
facebookresearch/fairseq (3d262bb) for `baevski_auli`, ofirpress/shortformer (edc411f) for
`shortformer` and google/trax (7c189c2) for `reformer`. `compressive`, `longformer_lm` and `lru`
follow papers whose training code was not released.
"""

import importlib
import json
import re
import runpy
import shlex
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import yaml

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
from commands import (  # noqa: E402
    flags,
    given,
    literal,
    of_class,
    of_parser,
    of_signature,
    registering,
)  # fmt: skip

S4_TASKS = {
    "listops": "listops", "text": "imdb", "retrieval": "aan", "image": "cifar",
    "pathfinder": "pathfinder", "pathx": "pathx",
}  # fmt: skip
EXPERIMENTS = {"s4": "experiment/lra/s4-{}", "s4_v3": "experiment/lra/s4-lra-{}",
               "s4_v1": "experiment/s4-lra-{}",
               "sgconv": "experiment/lra/gconv-lra-{}"}  # fmt: skip
PHASES = {"scratch": "experiment/lra/transformer-lra-{}",
          "masked": "experiment/lra/transformer-lra-{}-mlm"}  # fmt: skip
"""Of self-pretraining: the same files are fine-tuning and training from scratch."""
S5_TASKS = {
    "listops": "listops", "text": "imdb", "retrieval": "aan", "image": "cifar",
    "pathfinder": "pathfinder", "pathx": "pathx",
}  # fmt: skip
MEGA_TASKS = {
    "listops": "listop", "text": "imdb", "retrieval": "aan", "image": "cifar10",
    "pathfinder": "pf32", "pathx": "pf128",
}  # fmt: skip
LRA_FOLDERS = {
    "listops": "listops.configs", "text": "text_classification.configs",
    "retrieval": "matching.configs", "image": "image.configs.cifar10",
    "pathfinder": "image.configs.pathfinder32", "pathfinder64": "image.configs.pathfinder64",
    "pathx": "image.configs.pathfinder128", "path256": "image.configs.pathfinder256",
}  # fmt: skip
LRA_FILES = {
    "softmax": "transformer_base", "local": "local_base", "linear": "linear_transformer_base",
    "sparse_transformer": "sparse_transformer_base", "longformer": "longformer_base",
    "linformer": "linformer_base", "reformer": "reformer_base", "performer": "performer_base",
    "sinkhorn": "sinkhorn_base sinkhorn_transformer_base", "synthesizer": "synthesizer_base",
    "big_bird": "bigbird_base", "tlb": "transformer_tlb_base",
}  # fmt: skip
ROTARY_FILES = {
    "listops": "listops/rotary_transformer_noaugment_nopretrain",
    "text": "text_classification/rotary_transformer_wout_mlm",
    "retrieval": "text_retrieval/rotary_transformer_wout_mlm",
    "image": "cifar10/rotary_transformer_no_augment",
    "pathfinder": "pathfinder/rotary_transformer_noaugment_nopretrain",
}
LEFT_OUT = re.compile(r"train\.seed|\.__|dataset\.seed|_workers|pin_memory|metrics")
"""What changes no number or is a seed."""
OF_S4 = {name: re.compile(r"task\.") for name in ("s4", "s4_v3", "sgconv")}
OF_S4 |= {"s4_v1": re.compile(r"model\.layer\.|task\.")}
"""Losses, which are the task's, and what the first S4 has, which is not here."""


def merged(below: dict, above: dict) -> dict:
    """Return two trees as one, where the second wins."""
    found = dict(below)
    for key, value in above.items():
        both = isinstance(value, dict) and isinstance(found.get(key), dict)
        found[key] = merged(found[key], value) if both else value
    return found


def composed(configs: Path, name: str, chosen: dict[str, str]) -> dict | list:
    """Return a file with what its defaults name, as Hydra composes it.

    Args:
        configs: The folder of all files.
        name: Of the file, without its ending.
        chosen: What other files put in place of a group's choice.
    """
    own = yaml.safe_load((configs / f"{name}.yaml").read_text()) or {}
    if isinstance(own, list):  # of layers
        return own
    tree: dict = {}
    defaults = own.pop("defaults", [])
    pairs = [pair for each in defaults if isinstance(each, dict) for pair in each.items()]
    override = "override "
    others = {
        key.removeprefix(override).strip("/ "): choice
        for key, choice in pairs if key.startswith(override)
    }  # fmt: skip
    chosen = others | chosen
    for entry in defaults:
        if isinstance(entry, str):
            tree = merged(tree, composed(configs, f"{Path(name).parent}/{entry}", chosen))
            continue
        ((group, choice),) = entry.items()
        if group.startswith(override):
            continue
        short = group.strip("/ ")
        folder = short if group.startswith("/") else f"{Path(name).parent}/{group}"
        file = f"{folder}/{chosen.get(short, choice)}"
        part = composed(configs, file, chosen)
        everywhere = "@package _global_" in (configs / f"{file}.yaml").read_text()
        tree = merged(tree, part if everywhere else {short: part})
    return merged(tree, own)


def flat(tree: dict, above: str = "") -> dict:
    """Return a tree as one level with dotted keys, which count the entries of lists of trees."""
    found = {}
    for key, value in tree.items():
        here = f"{above}{key}"
        if isinstance(value, list) and any(isinstance(each, dict) for each in value):
            value = dict(enumerate(value))
        found |= flat(value, f"{here}.") if isinstance(value, dict) else {here: value}
    return found


def of_experiment(checkout: Path, name: str) -> dict:
    """Return what a file of experiments composes, but for what changes no number."""
    settings = flat(composed(checkout / "configs", name, {}))
    return {key: value for key, value in settings.items() if not LEFT_OUT.search(key)}


def of_s4(protocol: str, checkout: Path) -> dict:
    """Return the settings of every task."""
    found = {}
    for task, own in S4_TASKS.items():
        settings = of_experiment(checkout, EXPERIMENTS[protocol].format(own))
        found[task] = {
            key: value for key, value in settings.items() if not OF_S4[protocol].search(key)
        }
    return found


def of_phases(checkout: Path) -> dict:
    """Return the settings of both phases of every task."""
    return {
        task: {phase: of_experiment(checkout, name.format(own)) for phase, name in PHASES.items()}
        for task, own in S4_TASKS.items() if task != "pathx"
    }  # fmt: skip


def of_mega(checkout: Path) -> dict:
    """Return the words of each command, and the sizes of each registered model."""
    readme = (checkout / "examples/mega/README.lra.md").read_text()
    scope = registering(checkout / "fairseq/models/lra/model.py")
    found = {}
    for task, own in MEGA_TASKS.items():
        block = re.search(rf"model=mega_lra_{own}\n(.*?)```", readme, re.DOTALL)
        words = shlex.split(block[1].replace("\\\n", " "))
        found[task] = {"command": flags(words[words.index("${DATA}") + 1 :])}
        for model, prefix in (("mega", "mega"), ("softmax", "transformer"), ("luna", "luna")):
            for name, register in scope.items():
                if name.startswith(f"{prefix}_lra_{own}"):
                    args = SimpleNamespace()
                    register(args)
                    found[task][model] = vars(args)
    return found


def of_s5(checkout: Path) -> dict:
    """Return the options of each task's command on top of the parser's defaults."""
    below, found = of_parser(checkout / "run_train.py"), {}
    for task, own in S5_TASKS.items():
        script = (checkout / f"bin/run_experiments/run_lra_{own}.sh").read_text()
        words = shlex.split(script.replace("\\\n", " "))
        found[task] = below | given(words[words.index("run_train.py") + 1 :])
    return found


def of_adaptive_span(checkout: Path) -> dict:
    """Return the settings of training, and what the command of evaluation changes, by task."""
    groups = runpy.run_path(str(checkout / "config.py"))["PARAMS_CONFIG"]
    options = {key: value for group in groups.values() for key, value in group.items()}
    below = {key[2:].replace("-", "_"): value["default"] for key, value in options.items()}
    found = {}
    for task in ("enwik8", "text8"):
        script = (checkout / f"experiments/{task}.sh").read_text().replace("\\\n", " ")
        words = given(shlex.split(re.search(r'args="(.*?)"', script, re.DOTALL)[1]))
        last = given(shlex.split(script.splitlines()[-1].partition("$args")[2]))
        found[task] = {"train": below | words, "evaluate": last}
    return found


def of_awd_lstm(checkout: Path) -> dict:
    """Return the settings of training on WikiText-2."""
    section = (checkout / "README.md").read_text().partition("(WT2) with LSTM")[2]
    words = shlex.split(re.search(r"`python main.py (.*?)`", section)[1])
    return {"wikitext2": {"train": of_parser(checkout / "main.py") | given(words)}}


def of_transformer_xl(checkout: Path) -> dict:
    """Return the settings of training and of evaluation by task."""
    found = {}
    for task, own in (("enwik8", "enwik8"), ("text8", "text8"), ("wikitext103", "wt103")):
        script = (checkout / f"pytorch/run_{own}_base.sh").read_text().replace("\\\n", " ")
        found[task] = {}
        for part, file in (("train", "train.py"), ("evaluate", "eval.py")):
            words = re.search(rf"python {file}(.*?)\$\{{@", script, re.DOTALL)[1]
            found[task][part] = of_parser(checkout / "pytorch" / file) | given(shlex.split(words))
    return found


LM = "transformer_lm_baevski_wiki103"
"""The function of the architecture that both repositories call transformer_lm_wiki103."""


def of_architecture(file: Path, words: dict) -> dict:
    """Return what an architecture makes of the options of a command that concern it."""
    args = SimpleNamespace(**words)
    registering(file)[LM](args)
    return vars(args)


def of_baevski_auli(checkout: Path) -> dict:
    """Return the settings of training."""
    code, below = checkout / "fairseq", {}
    for file, name in (
        ("dataclass/configs.py", "CommonConfig"), ("dataclass/configs.py", "DatasetConfig"),
        ("dataclass/configs.py", "OptimizationConfig"),
        ("dataclass/configs.py", "CheckpointConfig"), ("optim/nag.py", "FairseqNAGConfig"),
        ("models/transformer_lm.py", "TransformerLanguageModelConfig"),
        ("tasks/language_modeling.py", "LanguageModelingConfig"),
        ("optim/lr_scheduler/cosine_lr_scheduler.py", "CosineLRScheduleConfig"),
    ):  # fmt: skip
        below |= of_class(code / file, name)
    readme = (checkout / "examples/language_model/README.adaptive_inputs.md").read_text()
    words = re.search(r"fairseq-train (.*?)```", readme.replace("\\\n", " "), re.DOTALL)[1]
    words = given(shlex.split(words))
    found = below | of_architecture(code / "models/transformer_lm.py", {}) | words
    return {"wikitext103": {"train": found}}


def of_shortformer(checkout: Path) -> dict:
    """Return the settings of each stage of training and of evaluation, by model."""
    code, readme = checkout / "fairseq", (checkout / "README.md").read_text()
    below = of_parser(code / "models/transformer_lm.py", own=False)
    for name in ("get_parser", "add_dataset_args", "add_optimization_args", "add_checkpoint_args"):
        below |= of_parser(code / "options.py", within=name)
    for file in ("optim/nag.py", "optim/lr_scheduler/cosine_lr_scheduler.py",
                 "tasks/language_modeling.py"):  # fmt: skip
        below |= of_parser(code / file)
    below |= of_architecture(code / "models/transformer_lm.py", {})
    found = {}
    for model, title in (("shortformer", "Shortformer"), ("sdpa", "Baseline with Staged Training")):
        section = re.search(rf"\n### {title}\n(.*?)\n### ", readme, re.DOTALL)[1]
        trained = re.findall(r"python train.py (.*)", section)
        judged = re.findall(r"fairseq-eval-lm (.*)", section)
        found[model] = [below | given(shlex.split(words)) for words in trained]
        found[f"{model} evaluate"] = [given(shlex.split(words)) for words in judged]
    return {"wikitext103": found}


def of_reformer(checkout: Path) -> dict:
    """Return the file's settings on top of the defaults of what it names.

    Where a comment says what to use with more memory, that is a key of its own, `… with more`.
    """
    found = {}
    for file, name in (
        ("models/reformer/reformer.py", "ReformerLM"), ("optimizers/adam.py", "Adam"),
        ("layers/research/efficient_attention.py", "SelfAttention"),
        ("layers/research/efficient_attention.py", "LSHSelfAttention"),
        ("supervised/lr_schedules.py", "multifactor"), ("data/inputs.py", "batcher"),
        ("supervised/trainer_lib.py", "train"),
    ):  # fmt: skip
        default = of_signature(checkout / "trax" / file, name)
        found |= {f"{name}.{key}": value for key, value in default.items()}
    text = (checkout / "trax/supervised/configs/reformer_enwik8.gin").read_text()
    text = text.replace("\\\n", " ")
    text = re.sub(r"(?<=[\[,])\s*\n\s*", " ", text)
    for key, value, comment in re.findall(r"^([\w.]+) *= *([^#\n]+)(#.*)?$", text, re.MULTILINE):
        value = re.sub(r"%(\w+)", lambda name: repr(found[name[1]]), value.strip())
        found[key] = literal(re.sub(r"@([\w.]+)", r"'\1'", value))
        more = re.search(r"Use (.*) if (more memory|d_model = 1024)", comment)
        if more:
            found[f"{key} with more"] = literal(more[1])
    return {"enwik8": found}


class Settings(dict):
    """Stand for `ml_collections.ConfigDict`."""

    __getattr__ = dict.__getitem__
    __setattr__ = dict.__setitem__


def of_lra(checkout: Path) -> dict:
    """Return the settings that a task's base file has, and what each model's file changes."""
    sys.path.insert(0, str(checkout))
    options = SimpleNamespace(create=Settings)
    sys.modules["ml_collections"] = SimpleNamespace(ConfigDict=Settings, config_dict=options)
    found = {}
    for task, own in LRA_FOLDERS.items():
        folder = checkout / "lra_benchmarks" / own.replace(".", "/")
        (base,) = (file.stem for file in folder.glob("base_*.py"))
        given = {
            name: flat(importlib.import_module(f"lra_benchmarks.{own}.{file}").get_config())
            for name, files in {"base": base, **LRA_FILES}.items()
            for file in files.split() if (folder / f"{file}.py").exists()
        }  # fmt: skip
        found[task] = {
            name: {key: value for key, value in each.items()
                   if name == "base" or key not in given["base"] or given["base"][key] != value}
            for name, each in given.items()
        }  # fmt: skip
    return found


def of_rotary(checkout: Path) -> dict:
    """Return the settings of each task; layers, which are alike, as one and their number."""
    found = {}
    for task, file in ROTARY_FILES.items():
        tree = json.loads((checkout / "configs" / f"{file}.json").read_text())
        params = tree["model_params"]["params"]
        layers = params.pop("layers")
        if any(layer != layers[0] for layer in layers):
            raise ValueError(f"layers of {file} differ")
        params |= {"layers": len(layers), "layer": layers[0][1]}
        found[task] = flat(tree)
    return found


def main(protocol: str, checkout: Path) -> None:
    """Store the settings of one repository."""
    others = {
        "mega": of_mega, "lra_code": of_lra, "rotary": of_rotary, "awd_lstm": of_awd_lstm,
        "self_pretraining": of_phases, "s5": of_s5,
        "adaptive_span": of_adaptive_span, "transformer_xl": of_transformer_xl,
        "baevski_auli": of_baevski_auli, "shortformer": of_shortformer, "reformer": of_reformer,
    }  # fmt: skip
    read = others.get(protocol, partial(of_s4, protocol))
    found = read(checkout)
    text = json.dumps(found, indent=1, sort_keys=True)
    (HERE / f"{protocol}.json").write_text(text + "\n")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
