"""Run the Long Range Arena models of the Nystromformer or the Skyformer code; store their answers.

    python -P tests/lra/released_models/small_models.py nystrom CHECKOUT LIBRARIES

CHECKOUT is a clone of github.com/mlpen/Nystromformer (commit 5689313) or, for `skyformer`, of
github.com/pkuzengqi/Skyformer (commit 1a677cb). LIBRARIES holds what they import, as `pip install
--no-deps --target LIBRARIES performer-pytorch==1.0.0 einops transformers==3.5.1` (skyformer:
transformers==4.5.0) leaves it. The code is run as it stands, but on a CPU, in float64, with shorter
sequences (but for Big Bird), weights by the rule of `cases.py`, draws in place of random ones, and
libraries that no model here needs left out. Made-up rows go through a file, its data set, whose
order is kept, and the loader; the model is called with a batch as the trainer calls it.
Beside answers it stores every setting of the configuration files, as JSON.
"""

import importlib
import json
import pickle
import sys
import tempfile
import types
from pathlib import Path

import numpy as np
import torch

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
import cases  # noqa: E402

TASKS = {
    "nystrom": {name: name for name in ("listops", "text", "retrieval", "image")}
    | {"pathfinder": "pathfinder32"},
    "skyformer": {
        name: f"lra-{name}" for name in ("listops", "text", "retrieval", "image", "pathfinder")
    },
}
MODELS = {
    "nystrom": {
        "softmax": "softmax", "nystromformer": "nystrom-64", "linformer": "linformer-256",
        "reformer": "reformer-2", "performer": "performer-256", "linear": "linear",
    },
    "skyformer": {
        "softmax": "softmax", "kernelised": "kernelized", "skyformer": "skyformer",
        "nystromformer": "nystrom", "linformer": "linformer", "performer": "performer",
        "reformer": "reformer", "big_bird": "bigbird",
    },
}  # fmt: skip
CODE = {"nystrom": "LRA/code", "skyformer": "src"}
WRAPPER = {"nystrom": "model_wrapper", "skyformer": "models.model_LRA"}
DATA = {"nystrom": "dataset", "skyformer": "models.dataset_LRA"}
SETTINGS = {"nystrom": ("lra_config", "config"), "skyformer": ("config", "Config")}


def empty(name: str, **content: object) -> None:
    """Put a module in place of one that is not read."""
    module = types.ModuleType(name)
    vars(module).update(content)
    sys.modules[name] = module


def prepare(protocol: str, checkout: Path, libraries: Path) -> None:
    """Make the released code importable, and its numbers float64."""
    sys.path[:0] = [str(checkout / CODE[protocol]), str(libraries)]
    empty("local_attention", LocalAttention=None)
    empty("axial_positional_embedding", AxialPositionalEmbedding=None)
    package = libraries / "transformers"
    parts = ["transformers"]
    if protocol == "skyformer":
        parts += ["transformers.models", "transformers.models.reformer"]
        empty("transformers.models.big_bird.modeling_big_bird", BigBirdConfig=None)  # never read
    for part in parts:  # without what their __init__ files import
        folder = package.joinpath(*part.split(".")[1:])
        empty(part, __path__=[str(folder)], __version__="4.5.0")
    torch.Tensor.float = torch.Tensor.double
    torch.Tensor.type_as = lambda tensor, _: tensor


def built(protocol: str, task: str, model: str, length: int) -> torch.nn.Module:
    """Return a released model of sequences of some length, with weights by the rule."""
    module, name = SETTINGS[protocol]
    entry = getattr(importlib.import_module(module), name)[TASKS[protocol][task]]
    attention = MODELS[protocol][model]
    config = {
        **entry["model"], **entry["extra_attn_config"][attention],
        "mixed_precision": False, "attn_type": attention, "device": "cpu", "random_seed": 42,
        "max_seq_len": length, "seq_len": length, "attention_grad_checkpointing": False,
    }  # fmt: skip
    wrapper = importlib.import_module(WRAPPER[protocol])
    if model == "linformer":  # its first instance decides the shape of all
        folder = "models." if protocol == "skyformer" else ""
        importlib.import_module(
            f"{folder}attention_linformer"
        ).LinformerAttention.projection_matrix = None
    kind = wrapper.ModelForSCDual if task == "retrieval" else wrapper.ModelForSC
    found = kind(config).double().eval()
    with torch.no_grad():
        for key, value in [*found.named_parameters(), *found.named_buffers()]:
            if "mask_value" not in key:
                value.copy_(cases.weight(key, tuple(value.shape)))
    for layer in range(config["num_layers"]):
        block = getattr(found.model, f"transformer_{layer}")
        block.mha.grad_checkpointing = False
        block.mha.attn.hash_seed = cases.HASH_SEED
        block.mha.attn.layer = layer
    return found


def chosen(attention: torch.nn.Module, n: int, rows: int, columns: int, real: torch.Tensor):
    """Stand for the choice of landmarks of the Skyformer's code, with draws by the rule."""
    picks = torch.einsum("b,d->bd", real, cases.uniforms(attention.layer, rows * columns)).long()
    picks[:, rows * columns // 2 :] += n
    picks = picks.reshape(-1, rows, columns)
    return picks, torch.ones(picks.shape, dtype=torch.float64)


def batch(protocol: str, inputs: torch.Tensor) -> dict:
    """Return what the loader makes of rows that are stored as the scripts of the data do it."""
    code = importlib.import_module(DATA[protocol])
    code.random = types.SimpleNamespace(shuffle=lambda rows: rows)
    rows = [{f"input_ids_{part}": ids for part, ids in enumerate(row.numpy())} | {"label": 0}
            for row in inputs]  # fmt: skip
    with tempfile.NamedTemporaryFile() as file:
        Path(file.name).write_bytes(pickle.dumps(rows))
        data = code.LRADataset(file.name, False)
    (found,) = torch.utils.data.DataLoader(data, batch_size=len(rows), drop_last=True)
    return found


def answer(protocol: str, task: str, model: str) -> np.ndarray:
    """Return a released model's logits for the inputs of a task."""
    inputs = cases.inputs(protocol, model, task)
    found, seen = built(protocol, task, model, inputs.shape[-1]), {}
    found.seq_classifer.register_forward_hook(lambda *call: seen.update(logits=call[-1]))
    with torch.no_grad():
        found(**batch(protocol, inputs))
    return seen["logits"].numpy()


def main(protocol: str, checkout: Path, libraries: Path) -> None:
    """Store the answers of every model on every task, and the settings."""
    prepare(protocol, checkout, libraries)
    if protocol == "skyformer":
        sky = importlib.import_module("models.attention_skyformer")
        sky.Skyformer.uniform_sketching = chosen
    found = {
        f"{task}.{model}": answer(protocol, task, model)
        for task in TASKS[protocol]
        for model in MODELS[protocol]
    }
    np.savez_compressed(HERE / f"{protocol}.npz", **found)
    module, name = SETTINGS[protocol]
    whole = getattr(importlib.import_module(module), name)
    settings = {
        task: {
            **{part: whole[own][part] for part in ("model", "training")},
            "attention": {
                model: whole[own]["extra_attn_config"][attention]
                for model, attention in MODELS[protocol].items()
            },
            "passes": {  # rows that one pass holds at most, where the code says it
                model: whole[own]["gpu_memory"][attention]
                for model, attention in MODELS[protocol].items()
                if "gpu_memory" in whole[own]
            },
        }
        for task, own in TASKS[protocol].items()
    }
    (HERE / f"{protocol}.json").write_text(json.dumps(settings, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
