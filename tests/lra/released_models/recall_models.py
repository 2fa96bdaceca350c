"""Run whole models of zoology and of mad-lab through their own trainers; store what they answer.

    python -P tests/lra/released_models/recall_models.py ZOOLOGY MAD LIBRARIES

ZOOLOGY is a clone of github.com/HazyResearch/zoology (commit d88d6f5), MAD one of
github.com/athms/mad-lab (commit 0f49a45). LIBRARIES holds what `pip install --no-deps --target
LIBRARIES einops==0.8.2 torchmetrics==1.9.0 lightning_utilities==0.15.3 pytorch_lightning==2.6.6`
leaves. The code is run as it stands, but on a CPU, in float64, with few rows, 128 ids (zoology),
weights by the rule of `cases.py` and without dropout. Kernels of GPUs are replaced by what their
files have as reference, or by loops where they have none. Zoology's trainer takes embeddings for
logits at this commit, so its model is asked for logits. Stored are the batch that the loader gave,
logits, the loss, learning rates by epoch, what mad-lab evaluates, and of each parameter its first
mean square, and what the first update does to it along a vector that its name decides.
"""

import dataclasses
import importlib
import json
import os
import runpy
import sys
import tempfile
import types
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
import cases  # noqa: E402

ROWS, IDS, ANSWERS = 4, 128, 32
ZOOLOGY = {
    "zoology softmax": ("iclr24_zoology_figure2", "attention"),
    "zoology hyena": ("iclr24_zoology_figure2", "hyena"),
    "zoology mamba": ("iclr24_zoology_figure2", "mamba"),
    "based mamba": ("arxiv24_based_figure2", "mamba"),
    "based mamba2": ("arxiv24_based_figure2", "mamba2"),
}
MAD = {"sdpa": "mh-attention", "mamba": "mamba", "gla": "mh-gated-linear-attention"}
MAD_TASKS = {
    "mad_recall": "in-context-recall", "mad_noisy": "noisy-in-context-recall",
    "mad_fuzzy": "fuzzy-in-context-recall", "mad_copy": "selective-copying",
    "mad_compression": "compression", "mad_memorisation": "memorization",
}  # fmt: skip


class AnyName(types.ModuleType):
    """A module of which every name is something that does nothing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args, **_: args[0] if args and callable(args[0]) else (lambda f: f)


def module(name: str, folder: Path | None = None, **content: object) -> types.ModuleType:
    """Put a module in place of one, or of what the __init__ file of a folder imports."""
    found = AnyName(name)
    vars(found).update(content, **({"__path__": [str(folder)]} if folder else {}))
    sys.modules[name] = found
    above, _, last = name.rpartition(".")
    if isinstance(sys.modules.get(above), AnyName):
        setattr(sys.modules[above], last, found)
    return found


class Rotary(nn.Module):
    """Stands for multi-head attention of flash_attn, with the options that mad-lab uses."""

    def __init__(self, embed_dim: int, num_heads: int, rotary_emb_dim: int, **options: Any) -> None:
        super().__init__()
        assert options["causal"]
        assert rotary_emb_dim == embed_dim // num_heads
        assert options["window_size"] in ([-1, -1], (-1, -1))
        self.heads = num_heads
        self.Wqkv = nn.Linear(embed_dim, 3 * embed_dim, bias=options["qkv_proj_bias"])
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=options["out_proj_bias"])
        self.base = options["rotary_emb_base"]

    def forward(self, x: Tensor) -> Tensor:
        """Attend to earlier tokens; the first half of a head's channels turns with the second."""
        q, k, v = self.Wqkv(x).unflatten(-1, (3, self.heads, -1)).movedim(2, 0).transpose(2, 3)
        half = q.shape[-1] // 2
        angle = torch.outer(torch.arange(x.shape[1]), self.base ** (-torch.arange(half) / half))
        turn = torch.polar(torch.ones_like(angle), angle)
        q, k = (
            torch.view_as_real(torch.complex(z[..., :half], z[..., half:]) * turn)
            .movedim(-1, -2).flatten(-2) for z in (q, k)
        )  # fmt: skip
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out_proj(y.transpose(1, 2).flatten(2))


def scan_of_heads(x, dt, A, B, C, *, D, dt_bias, dt_softplus, z, **_):
    """Stand for Mamba-2's kernel of chunks: token by token."""
    assert dt_softplus
    assert z is None
    dt, state, outputs = F.softplus(dt + dt_bias), 0, []
    for t in range(x.shape[1]):
        write = torch.einsum("bh,bhp,bn->bhpn", dt[:, t], x[:, t], B[:, t, 0])
        state = state * torch.exp(dt[:, t] * A)[..., None, None] + write
        outputs.append(torch.einsum("bhpn,bn->bhp", state, C[:, t, 0]) + D[:, None] * x[:, t])
    return torch.stack(outputs, dim=1)


class GatedNorm(nn.Module):
    """Stands for a gated norm, by the reference in its file."""

    def __init__(
        self, size: int, *, eps: float, reference: Any, device: Any, dtype: Any, **options: Any
    ) -> None:
        super().__init__()
        self.weight, self.call = nn.Parameter(torch.ones(size)), partial(reference, **options)
        self.eps = eps

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        """Norm x, which z gates."""
        return self.call(x, self.weight, None, z=z, eps=self.eps)


def prepare(zoology: Path, mad: Path, libraries: Path) -> None:
    """Make the released code importable on a CPU, and its numbers float64."""
    sys.path[:0] = [str(zoology), str(mad), str(libraries)]
    torch.set_default_dtype(torch.float64)
    torch.Tensor.float = torch.Tensor.double
    importlib.import_module("torch._dynamo")  # which would look for a whole triton
    importlib.import_module("torch._inductor.standalone_compile")
    for name in ("triton", "triton.language", "selective_scan_cuda", "torchvision"):
        module(name)
    module("torchvision.ops", StochasticDepth=lambda rate, mode: nn.Identity())
    module("wandb")
    module("causal_conv1d", causal_conv1d_fn=None, causal_conv1d_update=None)
    module("causal_conv1d_cuda")
    module("flash_attn")
    module("flash_attn.modules")
    module("flash_attn.modules.mha", MHA=Rotary)
    module("transformers")
    module("transformers.activations", ACT2FN={"swish": F.silu})
    module("huggingface_hub", PyTorchModelHubMixin=type("Mixin", (), {}))
    layers = mad / "mad/model/layers"
    for part in ("ops.gla", "ops.norm", "ops.mamba_ssm"):
        module(f"mad.model.layers.{part}", layers.joinpath(*part.split(".")))
    module("mad.model.layers.ops.gla.recurrent_fuse")
    module("mad.model.layers.ops.norm.fused_norm_gate")
    package = module("mad.model.layers", layers)
    naive = importlib.import_module("mad.model.layers.ops.gla.naive").naive_recurrent_gla
    sys.modules["mad.model.layers.ops.gla"].chunk_gla = naive
    scans = ("mad.model.layers.ops.mamba_ssm", "zoology.mixers.mamba_ssm")
    for place in scans:
        scan = importlib.import_module(f"{place}.selective_scan_interface")
        scan.selective_scan_fn, scan.mamba_inner_fn = scan.selective_scan_ref, None
    for name in ("mad.model.layers.ops.norm.rmsnorm", "zoology.mixers.mamba_ssm.triton.layernorm"):
        norm = importlib.import_module(name)
        norm.rms_norm_fn = lambda x, w, b, residual_in_fp32=False, ref=norm.rms_norm_ref, **more: (
            ref(x, w, b, **more)
        )
    gated = importlib.import_module("zoology.mixers.mamba_ssm.ops.triton.layernorm_gated")
    gated.RMSNorm = partial(GatedNorm, reference=gated.rms_norm_ref)
    module("zoology.mixers.mamba_ssm.ops.triton.ssd_combined",
           mamba_chunk_scan_combined=scan_of_heads)  # fmt: skip
    for name, found in (("mlp", "SwiGLU"), ("attention", "Attention"), ("mamba", "Mamba"),
                        ("attention_gated_linear", "GatedLinearAttention")):  # fmt: skip
        file = importlib.import_module(f"mad.model.layers.{name}")
        setattr(package, found, getattr(file, found))


def put_weights(model: nn.Module) -> None:
    """Set every parameter by the rule, and take dropout away."""
    with torch.no_grad():
        for name, value in model.named_parameters():
            value.copy_(cases.weight(name, tuple(value.shape)))
    for part in model.modules():
        for key in ("p", "dropout_p"):
            if isinstance(getattr(part, key, None), float):
                setattr(part, key, 0.0)


def described(model: nn.Module) -> dict[str, Any]:
    """Return the number of parameters, and the mean squares that they begin with."""
    squares = {
        name: float(f"{value.square().mean().item():.4g}")
        for name, value in model.named_parameters()
    }
    return {"parameters": sum(each.numel() for each in model.parameters()), "begin": squares}


def moved(model: nn.Module) -> dict[str, float]:
    """Return what an update has done to each parameter, along a vector of its name."""
    return {
        name: ((value.detach() - cases.weight(name, tuple(value.shape)))
               * cases.weight(f"probe {name}", tuple(value.shape))).sum().item()
        for name, value in model.named_parameters()
    }  # fmt: skip


def of_zoology(checkout: Path, case: str) -> dict[str, Any]:
    """Return what zoology's trainer does with a model of its configuration file."""
    file, wanted = ZOOLOGY[case]
    path = checkout / "zoology/experiments/paper_configs" / file / "configs.py"
    text = path.read_text().replace('included = ["based"]', f'included = ["{wanted}"]')
    place: dict[str, Any] = {"__name__": "configs"}
    exec(compile(text, str(path), "exec"), place)
    config = next(
        each for each in place["configs"]
        if each.model.d_model == 64 and each.data.train_configs[0].input_seq_len == 64
        and (each.model.name == wanted or each.run_id.startswith(f"{wanted}-"))
        and each.model.sequence_mixer.kwargs.get("d_state", 16) == 16
    )  # fmt: skip
    whole = asked_for_logits(config)
    settings = config.model_dump()
    for key in ("train_configs", "test_configs"):
        settings["data"][key] = [each.model_dump() for each in getattr(config.data, key)]
    data = config.data.model_copy(deep=True)
    data.cache_dir = None
    for part in (*data.train_configs, *data.test_configs):
        part.num_examples, part.vocab_size = ROWS, IDS
    data.train_configs, data.test_configs = data.train_configs[:1], data.test_configs[:1]
    config.model.vocab_size = IDS
    train = importlib.import_module("zoology.train")
    model = asked_for_logits(config).train()
    put_weights(model)
    loaders = train.prepare_data(data)
    first, test = loaders
    (batch,) = first
    found: dict[str, Any] = {"rates": [], "losses": []}

    class Seen(train.Trainer):
        def train_epoch(self, epoch_idx: int) -> None:
            found["rates"].append(self.optimizer.param_groups[0]["lr"])
            super().train_epoch(epoch_idx)
            found.setdefault("moved", moved(self.model))

    logger = types.SimpleNamespace(log=lambda row: found["losses"].append(row.get("train/loss")))
    with torch.no_grad():
        logits = model(batch[0]).numpy()
    Seen(
        model=model, train_dataloader=first, test_dataloader=test, max_epochs=3,
        learning_rate=config.learning_rate, weight_decay=config.weight_decay, device="cpu",
        early_stopping_metric=config.early_stopping_metric,
        early_stopping_threshold=config.early_stopping_threshold, logger=logger,
    ).fit()  # fmt: skip
    return {
        "settings": settings, **described(whole), "tokens": batch[0].numpy(),
        "targets": batch[1].numpy(), "logits": logits[batch[1] != -100][:ANSWERS],
        "loss": found["losses"][0],
        "rates": [rate / config.learning_rate for rate in found["rates"]],
        "moved": found["moved"],
    }  # fmt: skip


def asked_for_logits(config: Any) -> nn.Module:
    """Return zoology's model on a CPU, which answers with logits."""
    code = importlib.import_module("zoology.model")
    code.TokenEmbeddings.__init__.__defaults__ = tuple(
        {"cuda": "cpu", torch.float32: torch.float64}.get(each, each)
        for each in code.TokenEmbeddings.__init__.__defaults__
    )
    if config.model.block_type != "TransformerBlock":
        mixer = importlib.import_module("zoology.mixers.mamba").Mamba
        mixer.forward.__kwdefaults__ = None
    model = code.LanguageModel(config.model)
    for part in model.modules():
        if hasattr(part, "use_fast_path"):
            part.use_fast_path = False
    model.forward = partial(model.forward, return_embeddings=False)
    return model


def of_mad(checkout: Path, task: str, model: str) -> dict[str, Any]:
    """Return what mad-lab's trainer does with a model of its benchmark on a task's baseline."""
    os.chdir(checkout)
    configs = importlib.import_module("mad.configs")
    registry = importlib.import_module("mad.registry")
    own = MAD_TASKS[task]
    config = next(each for each in configs.make_benchmark_mad_configs() if each.task == own)
    whole = dataclasses.asdict(config)
    layers = [MAD[model], "swiglu"] * 2
    own_options = {"max_length": config.seq_len, "dim": 128}
    registered = [registry.layer_registry[each] for each in layers]
    kind = registry.model_registry["autoencoder" if own == "compression" else "language-model"]
    net = kind(
        dim=128, vocab_size=config.vocab_size, max_length=config.seq_len,
        layer_cfgs=[configs.load_yml(each["cfg"]) | own_options for each in registered],
        layers=[each["module"] for each in registered],
    )  # fmt: skip
    facts = described(net)
    put_weights(net)
    config.epochs, config.num_train_examples, config.num_test_examples = 3, ROWS, ROWS
    config.precision, config.accelerator = "64-true", "cpu"
    found: dict[str, Any] = {"rates": []}
    wrap = importlib.import_module("mad.model.pl_model_wrapper").PLModelWrap

    class Seen(wrap):
        def training_step(self, batch, batch_idx):
            step = super().training_step(batch, batch_idx)
            found["rates"].append(self.optimizers().param_groups[0]["lr"])
            if "tokens" not in found:
                logits = step["outputs"].detach()[batch[1] != -100][:ANSWERS].numpy()
                found.update(tokens=batch[0].numpy(), targets=batch[1].numpy(), logits=logits,
                             loss=step["loss"].item())  # fmt: skip
            return step

        def on_train_batch_end(self, *_):
            found.setdefault("moved", moved(self.model))

        def on_validation_start(self):
            if self.trainer.state.fn == "validate":  # after the training
                chosen = self.trainer.checkpoint_callback
                found["evaluated"] = [
                    Path(self.trainer.ckpt_path).name,
                    chosen.monitor,
                    chosen.mode,
                ]

    trainer = runpy.run_path("train.py", run_name="train")["train"]
    trainer.__globals__["PLModelWrap"] = Seen
    with tempfile.TemporaryDirectory() as folder:
        config.data_path = f"{folder}/data"
        with torch.serialization.safe_globals([configs.MADConfig]):
            trainer(net, config, f"{folder}/log", log_to_csv=False)
    found["rates"] = [rate / config.lr for rate in found["rates"]]
    return {"settings": whole, **facts, **found}


def main(zoology: Path, mad: Path, libraries: Path) -> None:
    """Store facts as JSON, and logits and batches as arrays."""
    zoology, mad, libraries = (each.resolve() for each in (zoology, mad, libraries))
    prepare(zoology, mad, libraries)
    found = {case: of_zoology(zoology, case) for case in ZOOLOGY}
    for name in [name for name, each in sys.modules.items() if type(each) is AnyName]:
        if not name.startswith(("mad.", "zoology.")):
            del sys.modules[name]  # Lightning looks for such packages
    found |= {f"{task} {model}": of_mad(mad, task, model) for task in MAD_TASKS for model in MAD}
    arrays = {
        f"{case} {key}": facts.pop(key)
        for case, facts in found.items() for key in ("tokens", "targets", "logits")
    }  # fmt: skip
    np.savez_compressed(HERE / "recall_models.npz", **arrays)
    text = json.dumps(found, indent=1, sort_keys=True, default=lambda x: dataclasses.asdict(x))
    (HERE / "recall_models.json").write_text(text + "\n")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
