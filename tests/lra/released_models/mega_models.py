"""Run Mega, exact attention and Luna of the Mega repository as it registers them; store answers.

    python -P tests/lra/released_models/mega_models.py CHECKOUT

CHECKOUT is a clone of github.com/facebookresearch/mega (commit aeaa4b4), a fork of fairseq. Of it
the models are run as they stand, but on a CPU, in float64, with weights by the rule of `cases.py`:
its tasks load made-up rows, without an end token, and its criterion calls the models with a batch
of theirs; what updates or logs is left out. Luna's number of slots, which no file says, is SLOTS.
As it is published, Luna stops at a batch without padding, so at all pictures, and adds to its slots
in place what each pass makes of them, which is an error where they are trained: REPAIRS. Mega has
what its commands change of its sizes, and is run in chunks as well; where it has batch norm, in
training, for its outputs grow without bound beside statistics that are not theirs.
"""

import importlib
import json
import sys
import tempfile
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

DATA = {
    "data_utils": "", "fairseq_dataset": "FairseqDataset",
    "base_wrapper_dataset": "BaseWrapperDataset", "dictionary": "Dictionary",
    "id_dataset": "IdDataset", "numel_dataset": "NumelDataset",
    "nested_dictionary_dataset": "NestedDictionaryDataset",
    "num_samples_dataset": "NumSamplesDataset", "offset_tokens_dataset": "OffsetTokensDataset",
    "pad_dataset": "RightPadDataset", "pixel_sequence_dataset": "PixelSequenceDataset",
    "prepend_token_dataset": "PrependTokenDataset", "raw_label_dataset": "RawLabelDataset",
    "shorten_dataset": "TruncateDataset", "strip_token_dataset": "StripTokenDataset",
    "indexed_dataset": "IndexedRawTextDataset",
}  # fmt: skip
"""The same of `fairseq.data`."""

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

    def set_num_updates(self, number: int) -> None:
        """Change nothing."""

    def get_normalized_probs(self, found: dict, log_probs: bool) -> torch.Tensor:
        """Return log probabilities."""
        return found["encoder_out"].log_softmax(-1)

    def get_targets(self, sample: dict, found: dict) -> torch.Tensor:
        """Return classes."""
        return sample["target"]


def unchanged(*_: object) -> object:
    """Stand for what registers a name."""
    return lambda found: found


def prepare(checkout: Path) -> types.ModuleType:
    """Return the file of the models, imported without what they do not need; float64 throughout."""
    stand_ins = {"fairseq.data": {"iterators": None}, "fairseq.logging.meters": {"safe_round": 0}}
    stand_ins |= {f"fairseq.models.lra.{kind.lower()}_lra_encoder": {f"{kind}LRAEncoder": None}
                  for kind in ("LSTM", "Flash")}  # fmt: skip
    stand_ins["fairseq.modules.transformer_sentence_encoder"] = {"init_bert_params": MagicMock()}
    folders = ("", ".models", ".models.lra", ".modules", ".logging", ".data", ".criterions",
               ".tasks")  # fmt: skip
    for name in folders:
        stand_ins.setdefault(f"fairseq{name}", {})["__path__"] = [
            str(checkout / f"fairseq{name}".replace(".", "/"))
        ]
    stand_ins["fairseq"] |= {"metrics": None}
    stand_ins["fairseq.models"] |= {
        "register_model": unchanged, "register_model_architecture": unchanged,
        "FairseqEncoder": Encoder, "FairseqEncoderModel": Model,
    }  # fmt: skip
    for name, content in stand_ins.items():
        module = types.ModuleType(name)
        vars(module).update(content)
        sys.modules[name] = module
    np.float = float
    for package, files in (("modules", MODULES), ("data", DATA)):
        whole = sys.modules[f"fairseq.{package}"]
        whole.__getattr__ = lambda _: MagicMock()  # type: ignore[method-assign]
        for file, names in files.items():
            if file == "multihead_attention":  # each of which imports the other
                utils = importlib.import_module("fairseq.utils")
            module = importlib.import_module(f"fairseq.{package}.{file}")
            vars(whole).update({name: getattr(module, name) for name in names.split()})
    tasks, criterions = (sys.modules[f"fairseq.{name}"] for name in ("tasks", "criterions"))
    tasks.register_task = criterions.register_criterion = unchanged
    tasks.FairseqTask = importlib.import_module("fairseq.tasks.fairseq_task").FairseqTask
    name = "FairseqCriterion"
    criterion = importlib.import_module("fairseq.criterions.fairseq_criterion")
    setattr(criterions, name, getattr(criterion, name))
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
    levels = stored["command"].get("pixel-normalization")
    found["pixel_normalization"] = levels and [float(each) for each in levels.split()]
    return found


def lines(folder: Path, texts: list[str]) -> None:
    """Write the training split of a folder, one row a line."""
    folder.mkdir()
    (folder / "train").write_text("".join(f"{text}\n" for text in texts))


def loaded(args: types.SimpleNamespace, task: str, folder: Path) -> object:
    """Return the task of fairseq for made-up rows, which it has loaded."""
    code = importlib.import_module("fairseq.tasks.long_range_arena")
    args.data, args.dataset_impl, args.no_shuffle, args.seed = str(folder), "raw", True, 0
    args.regression_target = False
    words = [[" ".join(map(str, part[part > 0].tolist() if task not in PIXELS else part.tolist()))
              for part in row] for row in cases.tokens(task)]  # fmt: skip
    if task in PIXELS:
        lines(folder / "input", [row[0] for row in words])
        (folder / "input" / "train").rename(folder / "input" / "train.src")
        (folder / "label").mkdir()
        (folder / "label" / "train.label").write_text("0\n" * cases.ROWS)
        found = code.LRAImageTask.setup_task(args)
    else:
        for part, name in enumerate(["src-bin", "src1-bin"][: len(words[0])]):
            lines(folder / name, [row[part] for row in words])
        lines(folder / "label-bin", ["0"] * cases.ROWS)
        for name, symbols in (("src-bin", cases.HIGHEST.get(task, 255)), ("label-bin", 1)):
            counts = "".join(f"{i + (name == 'src-bin')} 1\n" for i in range(symbols))
            (folder / name / "dict.txt").write_text(counts)
        found = code.LRATextTask.setup_task(args)
    found.load_dataset("train")
    return found


def answer(code: types.ModuleType, task: str, settings: dict) -> np.ndarray:
    """Return the logits of a released model with weights by the rule, in a step of its trainer."""
    args = types.SimpleNamespace(**settings, use_p=False, encoder_projection_length=SLOTS)
    args.input_type = "image" if task in PIXELS else "text"
    if task in PIXELS:
        args.sen_rep_type = "mp"  # which it asks for, and not every function sets
    args.sen_rep_type = getattr(args, "sen_rep_type", "cls")
    with tempfile.TemporaryDirectory() as folder:
        given = loaded(args, task, Path(folder))
    model, seen = code.LRAModel.build_model(args, given).double(), {}
    with torch.no_grad():
        for name, value in model.named_parameters():
            value.copy_(cases.weight(name, tuple(value.shape)))
    model.register_forward_hook(lambda *call: seen.update(call[-1]))
    rows = given.datasets["train"]
    sample = rows.collater([rows[i] for i in range(len(rows))])
    criterion = importlib.import_module("fairseq.criterions.lra_cross_entropy")
    judged = criterion.LRACrossEntropyCriterion(given, sentence_avg=True)
    if settings.get("norm_type") == "batchnorm":
        given.train_step(sample, model, judged, MagicMock(), 0)
    else:
        given.valid_step(sample, model, judged)
    return seen["encoder_out"].detach().numpy()


def main(checkout: Path) -> None:
    """Store the answers of every registered model."""
    code = prepare(checkout)
    raw = importlib.import_module("fairseq.data.indexed_dataset")
    raw.IndexedRawTextDataset.__init__.__defaults__ = (False, False)  # no end token, not reversed
    stored = json.loads((HERE / "mega.json").read_text())
    found = {}
    for task, models in stored.items():
        for form, model in FORMS.items():
            if model in models:
                settings = settings_of(models, form)
                found[f"{task}.{form}"] = answer(code, task, settings)
    np.savez_compressed(HERE / "mega.npz", **found)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
