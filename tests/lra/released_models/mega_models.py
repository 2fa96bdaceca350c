"""Run Mega, exact attention and Luna of the Mega repository as it registers them; store answers.

    python -P tests/lra/released_models/mega_models.py CHECKOUT

CHECKOUT is a clone of github.com/facebookresearch/mega (commit aeaa4b4), a fork of fairseq. Of it
the models are run as they stand, but on a CPU, in float64, with weights by the rule of `cases.py`;
what trains, logs or loads is left out. Luna's number of slots, which no file says, is SLOTS. As it
is published, Luna stops at a batch without padding, so at all pictures, and adds to its slots in
place what each pass makes of them, which is an error where they are trained: REPAIRS. Mega has what
its commands change of its sizes, and is run in chunks as well; where it has batch norm, in
training, for its outputs grow without bound beside statistics that are not theirs.
"""

import importlib
import json
import sys
import types
from pathlib import Path
from unittest.mock import MagicMock

import numpy as np
import torch
from torch import nn

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
import cases  # noqa: E402

SLOTS = 256
CHUNK = 128
FORMS = {"softmax": "softmax", "luna": "luna", "mega": "mega", "mega_chunk": "mega"}
"""What is stored, and the registered model of each."""
CLASSES = {"listops": 10, "image": 10}
PIXELS = ("image", "pathfinder", "pathx")
MODULES = {
    "gelu": "gelu gelu_accurate", "fairseq_dropout": "FairseqDropout", "layer_norm": "LayerNorm",
    "layer_drop": "LayerDropModuleList", "multihead_attention": "MultiheadAttention",
    "learned_positional_embedding": "LearnedPositionalEmbedding",
    "sinusoidal_positional_embedding": "SinusoidalPositionalEmbedding",
    "positional_embedding": "PositionalEmbedding",
    "real_number_embedding": "RealNumberEmbedding",
    "luna_attention": "LunarMultiheadAttention",
    "luna_sentence_encoder": "LunaSentenceEncoder",
    "transformer_sentence_encoder_layer": "TransformerSentenceEncoderLayer",
    "sequence_norm": "SequenceNorm",
    "mega_sentence_encoder_layer": "MegaSentenceEncoderLayer",
}  # fmt: skip
"""Files of `fairseq.modules` that are read, in an order in which each finds what it needs."""

REPAIRS = {
    "lengths = tokens.size(1)": "lengths = torch.full(tokens.shape[:1], tokens.size(1))",
    "px = self.projected_embeddings[:max_len]": "px = self.projected_embeddings[:max_len].clone()",
}
"""Lines of `luna_lra_encoder.py` that are read otherwise."""


class Encoder(nn.Module):
    """Stand for `FairseqEncoder`."""

    def __init__(self, dictionary: object) -> None:
        super().__init__()


class Model(nn.Module):
    """Stand for `FairseqEncoderModel`."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()


def unchanged(*_: object) -> object:
    """Stand for what registers a name."""
    return lambda found: found


def prepare(checkout: Path) -> types.ModuleType:
    """Return the file of the models, imported without what they do not need; float64 throughout."""
    stand_ins = {"fairseq.data": {"iterators": None}, "fairseq.logging.meters": {"safe_round": 0}}
    stand_ins |= {f"fairseq.models.lra.{kind.lower()}_lra_encoder": {f"{kind}LRAEncoder": None}
                  for kind in ("LSTM", "Flash")}  # fmt: skip
    stand_ins["fairseq.modules.transformer_sentence_encoder"] = {"init_bert_params": MagicMock()}
    for name in ("", ".models", ".models.lra", ".modules", ".logging"):
        stand_ins[f"fairseq{name}"] = {
            "__path__": [str(checkout / f"fairseq{name}".replace(".", "/"))]
        }
    stand_ins["fairseq.models"] |= {
        "register_model": unchanged, "register_model_architecture": unchanged,
        "FairseqEncoder": Encoder, "FairseqEncoderModel": Model,
    }  # fmt: skip
    for name, content in stand_ins.items():
        module = types.ModuleType(name)
        vars(module).update(content)
        sys.modules[name] = module
    package = sys.modules["fairseq.modules"]
    package.__getattr__ = lambda _: MagicMock()  # type: ignore[method-assign]
    for file, names in MODULES.items():
        if file == "multihead_attention":  # each of which imports the other
            utils = importlib.import_module("fairseq.utils")
        module = importlib.import_module(f"fairseq.modules.{file}")
        vars(package).update({name: getattr(module, name) for name in names.split()})
    torch.Tensor.float = lambda tensor: tensor
    torch.Tensor.type_as = lambda tensor, like: tensor.to(like.dtype)
    utils.softmax = lambda x, dim, onnx_trace=False: torch.softmax(x, dim)
    name = "fairseq.models.lra.luna_lra_encoder"
    text = (checkout / f"{name.replace('.', '/')}.py").read_text()
    for line, repaired in REPAIRS.items():
        if text.count(f"{line}\n") != 1:
            raise ValueError(f"not a line of {name}: {line}")
        text = text.replace(f"{line}\n", f"{repaired}\n")
    sys.modules[name] = types.ModuleType(name)
    exec(text, vars(sys.modules[name]))
    return importlib.import_module("fairseq.models.lra.model")


def settings_of(stored: dict, form: str) -> dict:
    """Return the settings of a registered model; of Mega with what its command changes."""
    found = dict(stored[FORMS[form]])
    if form.startswith("mega"):
        command = {key.replace("-", "_"): value for key, value in stored["command"].items()}
        changed = ("attention_activation_fn", "norm_type", "encoder_normalize_before")
        found |= {key: command[key] for key in changed if key in command}
        rates = ("dropout", "attention_dropout", "act_dropout")
        found |= {key: float(command[key]) for key in rates}
        found["norm_type"] = found["norm_type"].removeprefix("sync")  # of one process alike
        found["rel_pos_bias"] = "simple"  # the parser's default
        found["chunk_size"] = CHUNK if form == "mega_chunk" else -1
    return found


def built(code: types.ModuleType, task: str, settings: dict) -> nn.Module:
    """Return a released model with weights by the rule."""
    args = types.SimpleNamespace(**settings, use_p=False, encoder_projection_length=SLOTS)
    args.input_type = "image" if task in PIXELS else "text"
    if task in PIXELS:
        args.sen_rep_type = "mp"  # which it asks for, and not every function sets
    words = types.SimpleNamespace(pad_index=1)
    ids = cases.HIGHEST.get(task, 255) + 5
    dictionary = type("Dictionary", (), {"__len__": lambda _: ids, "pad_index": words.pad_index})()
    found = code.LRAModel.build_model(args, types.SimpleNamespace(dictionary=dictionary))
    found = found.double().train(settings.get("norm_type") == "batchnorm")
    with torch.no_grad():
        for name, value in found.named_parameters():
            value.copy_(cases.weight(name, tuple(value.shape)))
    return found


def answer(model: nn.Module, task: str) -> np.ndarray:
    """Return the logits for the inputs of a task; a CLS vector is for models that answer by it."""
    if task in PIXELS:
        parts = cases.pixels(task)
    else:  # behind four ids that are no symbols, padding being 1, and CLS is the last
        ids = cases.tokens(task)
        cls = torch.full_like(ids[..., :1], cases.HIGHEST.get(task, 255) + 4)
        ids = torch.where(ids == 0, 1, ids + 3)
        parts = ids if model.sen_rep_type == "mp" else torch.cat((cls, ids), dim=-1)
    sample = {}
    for part, x in enumerate(parts.unbind(1)):
        lengths = (x != 1).sum(1) if x.dtype == torch.long else torch.full((len(x),), x.shape[1])
        sample[f"net_input{part or ''}"] = {"src_tokens": x, "src_lengths": lengths}
    with torch.no_grad():
        return model(sample)["encoder_out"].numpy()


def main(checkout: Path) -> None:
    """Store the answers of every registered model."""
    code = prepare(checkout)
    stored = json.loads((HERE / "mega.json").read_text())
    found = {}
    for task, models in stored.items():
        for form, model in FORMS.items():
            if model in models:
                found[f"{task}.{form}"] = answer(built(code, task, settings_of(models, form)), task)
    np.savez_compressed(HERE / "mega.npz", **found)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
