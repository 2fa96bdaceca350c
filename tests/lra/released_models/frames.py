"""Run whole models of the S4 code, or the frame of its first version; store their answers.

    python -P tests/lra/released_models/frames.py s4 CHECKOUT LIBRARIES

CHECKOUT is a clone of github.com/state-spaces/s4 (commit e757cef) for `s4` and `s4_v3`, the same
at its tag v1 for `s4_v1`. LIBRARIES holds what it imports, as `pip install --no-deps --target
LIBRARIES einops opt_einsum` leaves it. Models are built by the settings that `settings.py` has
stored. The S4 of the tag v1 is not among the models here: what stands around it is compared,
encoder, norms, residuals, pooling and classifier, around layers that hand on their input.

For `self_pretraining` the same is done with github.com/IdoAmos/not-from-scratch (commit f919137),
which has grown from that code: its Transformers whole, with their layers and positions; and for
`sgconv` with github.com/ctlllll/SGConv (branch preview, commit 0c2b3ab): its models whole.
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

MODELS = {
    **dict.fromkeys(("s4", "s4_v3"), "src.models.sequence.backbones.model"),
    **dict.fromkeys(("s4_v1", "self_pretraining", "sgconv"), "src.models.sequence.model"),
}
LENGTHS = {"s4_v1": "l_batch"}
"""What a decoder calls the numbers of real tokens, where not lengths."""
CLASSES = {"listops": 10, "image": 10}
RATES = ("lr", "wd")
"""Settings of a layer that concern its training."""
OPEN = ("dropout", "l_max", "tie_dropout")
"""Settings of a layer that refer to others: none is seen in an answer."""
ROWS = 257
"""Of the table of tokens."""
UNREAD = (
    "pytorch_lightning", "pytorch_lightning.utilities", "opt_einsum", "rich.syntax", "rich.tree",
    "src.models.sequence.unet", "src.models.sequence.ff", "src.models.nn.exprnn",
    "src.models.nn.exprnn.orthogonal", "src.tasks.encoders",
)  # fmt: skip
"""What is imported, and not called by a frame."""
READ = {"src.models.sequence.ff", "src.tasks.encoders"}
"""Of these, by a whole Transformer."""
UNREAD_BY_TRANSFORMERS = (
    "local_attention.local_attention", "local_attention.pykeops.local_attention",
    "rotary_embedding_torch", "src.models.sequence.ss",
)  # fmt: skip


GIVEN = ("pe", "multiplier", "kernel_norm", "layer.decay")
"""Positions, and decays and norms of kernels, which are no weights."""


def stored(protocol: str) -> dict:
    """Return the settings of every task."""
    found = json.loads((HERE / f"{protocol}.json").read_text())
    return {task: each.get("scratch", each) for task, each in found.items()}


def layers_of(own: dict) -> list[dict]:
    """Return the layers of one block of a model, for sequences of the length of these cases."""
    if own.get("layer._name_") == "gconv":
        layer = {key.removeprefix("layer."): each for key, each in own.items() if "layer." in key}
        return [layer | {"l_max": cases.LENGTH, "verbose": False}]
    layers: dict[str, dict] = {}
    for key, value in own.items():
        if key.startswith("layer."):
            *number, name = key.split(".")[1:]
            if name == "n_ssm" and value == "${..d_model}":
                value = own["d_model"]
            if name not in RATES:
                layers.setdefault("".join(number), {})[name] = None if name in OPEN else value
    layers.pop("lr", None)
    return [*layers.values()] or [{"_name_": "id"}]


def built(protocol: str, task: str) -> nn.ModuleDict:
    """Return encoder, model and decoder of a task with weights by the rule."""
    settings = stored(protocol)[task]
    own = {key.removeprefix("model."): value for key, value in settings.items()}
    width, classes = own["d_model"], CLASSES.get(task, 2)
    model = importlib.import_module(MODELS[protocol]).SequenceModel(
        width, n_layers=own["n_layers"], transposed=own["transposed"], prenorm=own["prenorm"],
        norm=own["norm"], residual=own["residual"], layer=layers_of(own),
    )  # fmt: skip
    decoders = importlib.import_module("src.tasks.decoders")
    given = {key: settings.get(f"decoder.{key}") for key in ("mode", "use_lengths")}
    given["use_lengths"] = bool(given["use_lengths"])
    if settings["decoder._name_"] == "retrieval":
        head = {key: settings[f"decoder.{key}"] for key in ("nli", "activation", "d_model")}
        decoder = decoders.RetrievalDecoder(width, classes, **head, **given)
    else:
        hidden = settings["decoder._name_"] == "sequence_nonelinear"
        kind = decoders.NoneLinearSequenceDecoder if hidden else decoders.SequenceDecoder
        decoder = kind(width, d_output=classes, l_output=0, **given)
    linear = settings["encoder"] == "linear"
    encoder = nn.Linear(1, width) if linear else nn.Embedding(ROWS, width)
    if own.get("encoder._name_") == "position":
        position = importlib.import_module("src.tasks.encoders").PositionalEncoder
        encoder = nn.Sequential(encoder, position(width, dropout=0.0))
    parts = nn.ModuleDict({"encoder": encoder, "model": model, "decoder": decoder})
    parts = parts.double().eval()
    with torch.no_grad():
        for name, value in [*parts.named_parameters(), *parts.named_buffers()]:
            if value.is_floating_point() and not name.endswith(GIVEN):
                value.copy_(cases.weight(name, tuple(value.shape)))
    return parts


def answer(protocol: str, parts: nn.ModuleDict, task: str) -> np.ndarray:
    """Return the logits for the inputs of a task; the texts of pairs stand behind each other."""
    if any(isinstance(part, nn.Linear) for part in parts["encoder"].modules()):
        x = cases.pixels(task).transpose(0, 1).flatten(0, 1)[..., None]
        lengths = torch.full((len(x),), cases.LENGTH)
    else:
        x = cases.tokens(task).transpose(0, 1).flatten(0, 1)
        lengths = (x != 0).sum(1)
    with torch.no_grad():
        y, _ = parts["model"](parts["encoder"](x))
        logits = parts["decoder"](y, state=None, **{LENGTHS.get(protocol, "lengths"): lengths})
    return (logits[0] if isinstance(logits, tuple) else logits).numpy()


def main(protocol: str, checkout: Path, libraries: Path) -> None:
    """Store the answers of every task."""
    sys.path[:0] = [str(checkout), str(libraries)]
    whole = protocol == "self_pretraining"
    torch.set_default_dtype(torch.float64)
    unread = ({*UNREAD} - READ).union(UNREAD_BY_TRANSFORMERS) if whole else {*UNREAD}
    if protocol == "sgconv":
        unread = unread - {"opt_einsum"} | {"IPython"}
    for name in unread:
        stand_in = types.ModuleType(name)
        stand_in.__getattr__ = lambda _: MagicMock()  # type: ignore[method-assign]
        stand_in.__path__ = []
        sys.modules[name] = stand_in
    found = {task: answer(protocol, built(protocol, task), task) for task in stored(protocol)}
    np.savez_compressed(HERE / f"{protocol}.npz", **found)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
