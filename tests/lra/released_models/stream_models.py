"""Run small language models of released code over a stream, memory handed on; store their losses.

    python -P tests/lra/released_models/stream_models.py transformer_xl CHECKOUT

CHECKOUT is a clone of github.com/kimiyoung/transformer-xl (commit 44781ed), whose folder `pytorch`
is read, or, for `adaptive_span`, of github.com/facebookresearch/adaptive-span (commit 27b815f).
The settings are those of their commands, as `settings.py` has stored them, but for sizes (SMALL)
and dropout. A stream of ids is cut by their code. Segments go through their forward, one behind
the other, in training and, for Transformer-XL, in evaluation with its longer memory, on a CPU, in
float64, with weights by the rule of `cases.py`. Biases of outputs, which are not here, are 0.
Stored is the loss of every token [tokens, rows].
"""

import importlib
import json
import sys
from pathlib import Path
from unittest.mock import MagicMock

import numpy as np
import torch
from torch import Tensor, nn

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
import cases  # noqa: E402

VOCABULARY = {"enwik8": 256, "text8": 27, "wikitext103": 80}
ROWS, TOKENS = 2, 99
"""Of a stream: TOKENS in each row, of which the last is predicted alone."""
WIDTH, HEADS, HIDDEN, DEPTH, SEGMENT = 16, 2, 24, 2, 16
CUTOFFS = [20, 40, 60]
JUDGED = {"tgt_len": 6, "mem_len": 40, "clamp_len": 30}
"""Of the evaluation of Transformer-XL."""
SPAN, RAMP = 16, 4
"""Of adaptive_span; SPAN is as long as a segment, so that its memory is full behind the first."""


def stream(task: str) -> Tensor:
    """Return the ids of a stream, a row behind the other."""
    draws = cases.generator(f"stream {task}")
    return torch.randint(VOCABULARY[task], (ROWS * TOKENS,), generator=draws)


def fill(model: nn.Module) -> None:
    """Give a model weights by the rule."""
    with torch.no_grad():
        for name, value in model.named_parameters():
            value.copy_(weight(name, value))


def weight(name: str, value: Tensor) -> Tensor:
    """Return a parameter by the rule: tables as embeddings, spans within what is allowed."""
    if name.endswith("bias") and name.startswith(("crit", "out_emb")):
        return torch.zeros_like(value)
    drawn = cases.weight(name, tuple(value.shape))
    return drawn.abs() if name.endswith("current_val") else drawn


def transformer_xl(checkout: Path, task: str, settings: dict) -> dict[str, np.ndarray]:
    """Return the losses of a Transformer-XL in training and in evaluation."""
    sys.path.insert(0, str(checkout / "pytorch"))
    sys.path.insert(1, str(checkout / "pytorch" / "utils"))
    torch.version.cuda = "11.0"
    torch.Tensor.byte, torch.Tensor.float = torch.Tensor.bool, lambda tensor: tensor
    code = importlib.import_module("mem_transformer")
    cut = importlib.import_module("data_utils").LMOrderedIterator
    trained, judged = settings["train"], settings["evaluate"]
    cutoffs = CUTOFFS if trained["adaptive"] else []
    model = code.MemTransformerLM(
        VOCABULARY[task], DEPTH, HEADS, WIDTH, WIDTH // HEADS, HIDDEN, 0.0, trained["dropatt"],
        tie_weight=not trained["not_tied"], div_val=trained["div_val"],
        tie_projs=[False] + [True] * len(cutoffs), pre_lnorm=trained["pre_lnorm"],
        tgt_len=SEGMENT, ext_len=trained["ext_len"], mem_len=SEGMENT, cutoffs=cutoffs,
        same_length=trained["same_length"], attn_type=trained["attn_type"],
        clamp_len=trained["clamp_len"], sample_softmax=trained["sample_softmax"],
    )  # fmt: skip
    fill(model)
    model.crit.keep_order = True  # of losses, which else stand by groups of words
    found = {}
    for phase in ("train", "evaluate"):
        length = SEGMENT
        if phase == "evaluate":
            length = JUDGED["tgt_len"]
            model.eval()
            model.reset_length(length, judged["ext_len"], JUDGED["mem_len"])
            model.clamp_len, model.same_length = JUDGED["clamp_len"], judged["same_length"]
        losses, mems = [], ()
        for data, target, _ in cut(stream(task), ROWS, length, ext_len=judged["ext_len"]):
            loss, *mems = model(data, target, *mems)
            losses.append(loss.detach())
        found[f"{task}.{phase}"] = torch.cat(losses).numpy()
    return found


def adaptive_span(checkout: Path, task: str, settings: dict) -> dict[str, np.ndarray]:
    """Return the losses of a model with learned spans."""
    sys.path.insert(0, str(checkout))
    sys.modules["adaptive_io"] = MagicMock()
    trained = settings["train"]
    model = importlib.import_module("models").TransformerSeq(
        VOCABULARY[task], WIDTH, HEADS, DEPTH, SPAN, trained["emb_dropout"],
        {"adapt_io_enabled": trained["adapt_io"]}, inner_hidden_size=HIDDEN, dropout=0.0,
        adapt_span_params={
            "adapt_span_enabled": trained["adapt_span"], "adapt_span_loss": 0.0,
            "adapt_span_ramp": RAMP, "adapt_span_init": 0.0,
            "adapt_span_cache": trained["adapt_span_cache"],
        },
        pers_mem_params={"pers_mem_size": trained["pers_mem_size"]},
    )  # fmt: skip
    fill(model)
    losses: list[Tensor] = []

    def judged(_: nn.Module, __: tuple, given: dict, found: tuple) -> None:
        losses.append(-found[0].gather(-1, given["target"][..., None]).squeeze(-1).T)

    model.register_forward_hook(judged, with_kwargs=True)
    data = importlib.import_module("data")._batchify(stream(task), ROWS)
    whole = importlib.import_module("trainer").full_eval
    with torch.no_grad():
        whole(nn.DataParallel(model), MagicMock(), None, data, SEGMENT, WIDTH)
    return {f"{task}.evaluate": torch.cat(losses).numpy()}


def main(protocol: str, checkout: Path) -> None:
    """Store the losses of every task."""
    torch.set_default_dtype(torch.float64)
    stored = json.loads((HERE / f"{protocol}.json").read_text())
    found: dict[str, np.ndarray] = {}
    for task, settings in stored.items():
        found |= {"transformer_xl": transformer_xl, "adaptive_span": adaptive_span}[protocol](
            checkout, task, settings
        )
    np.savez_compressed(HERE / f"{protocol}.npz", **found)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
