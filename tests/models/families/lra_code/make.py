"""Outputs of the released Long Range Arena attention modules, for test_lra_code.py.

    git clone https://github.com/google-research/long-range-arena        # commit 264227c
    pip install jax==0.4.13 jaxlib==0.4.13 flax==0.3.6 'numpy<1.25' 'scipy<1.11' gin-config attrs
    PYTHONPATH=long-range-arena python tests/models/families/lra_code/make.py

flax 0.3.6 imports `isin` from a private module of jax: change that line of flax/linen/module.py to
`from jax.numpy import isin`. What jax has removed since is put back below, as it was.
"""

from pathlib import Path

import jax
import numpy as np

jax.lax.tie_in = lambda x, y: y
jax.custom_transforms = lambda f: f
jax.defvjp_all = lambda f, rule: None

import jax.numpy as jnp  # noqa: E402
from cases import CASES, weights  # noqa: E402
from flax.deprecated import nn  # noqa: E402
from lra_benchmarks.models.bigbird import bigbird_attention  # noqa: E402
from lra_benchmarks.models.linear_transformer import linear_attention  # noqa: E402
from lra_benchmarks.models.linformer import linformer_attention  # noqa: E402
from lra_benchmarks.models.local import local_attention  # noqa: E402
from lra_benchmarks.models.longformer import longformer_attention  # noqa: E402
from lra_benchmarks.models.performer import performer_attention  # noqa: E402
from lra_benchmarks.models.reformer import reformer_attention  # noqa: E402
from lra_benchmarks.models.sinkhorn_transformer import sinkhorn_attention  # noqa: E402
from lra_benchmarks.models.sparse_transformer import sparse_attention  # noqa: E402
from lra_benchmarks.models.synthesizer import synthesizer_attention  # noqa: E402

MODULES = {
    "big_bird": bigbird_attention.BigBirdSelfAttention,
    "linear": linear_attention.LinearSelfAttention,
    "linformer": linformer_attention.LinformerSelfAttention,
    "local": local_attention.LocalSelfAttention,
    "longformer": longformer_attention.LongformerSelfAttention,
    "performer": nn.SelfAttention,
    "reformer": reformer_attention.ReformerSelfAttention,
    "sinkhorn": sinkhorn_attention.SinkhornSelfAttention,
    "softmax": nn.SelfAttention,
    "sparse_transformer": sparse_attention.SparseSelfAttention,
    "synthesizer": synthesizer_attention.SynthesizerSelfAttention,
}


def options(case):
    """Return the released module's own options of a case, as its model gives them."""
    given = dict(case.released)
    if case.family == "performer":
        kind, width = given.pop("kernel"), case.width // case.heads
        make = getattr(performer_attention, f"make_fast_{kind}_attention")
        return {"attention_fn": make(width, **given)}
    if case.family == "sparse_transformer":
        stride, summary = given.pop("stride"), given.pop("summary")
        patterns = [
            sparse_attention.Fixed1Pattern(block_size=stride),
            sparse_attention.Fixed2Pattern(block_size=stride, c=summary),
        ]
        return {"attention_patterns": patterns} | given
    return given


def released(case):
    """Return the output of a case."""
    kind, given = MODULES[case.family], options(case)
    x, keep = (None if each is None else jnp.array(each) for each in case.input())
    given = given | {
        "num_heads": case.heads, "qkv_features": case.width, "attention_axis": (1,), "bias": False,
        "kernel_init": nn.initializers.xavier_uniform(), "dropout_rate": 0.0, "deterministic": True,
    }  # fmt: skip
    if case.family in {"linear", "reformer", "longformer", "sparse_transformer"}:
        del given["attention_axis"]
    if keep is None and case.family in {"local", "big_bird"}:
        keep = jnp.ones(x.shape[:2], bool)
    given["padding_mask"] = None if keep is None else keep[..., None]
    with nn.stochastic(jax.random.PRNGKey(0)):
        _, drawn = kind.init(jax.random.PRNGKey(0), x, **given)
        shapes = {path: leaf.shape for path, leaf in flat(drawn).items()}
        if shapes != case.shapes:
            raise SystemExit(f"{case.name}: the released module has {shapes}, not {case.shapes}")
        params = nested({k: jnp.array(v) for k, v in weights(shapes).items()})
        return np.array(kind.call(params, x, **given))


def flat(tree, prefix=""):
    """Return the leaves of nested dictionaries by path."""
    found = {}
    for name, part in tree.items():
        path = f"{prefix}{name}"
        found |= flat(part, f"{path}/") if isinstance(part, dict) else {path: part}
    return found


def nested(leaves):
    """Undo `flat`."""
    tree = {}
    for path, leaf in leaves.items():
        *folders, name = path.split("/")
        node = tree
        for folder in folders:
            node = node.setdefault(folder, {})
        node[name] = leaf
    return tree


def rotations():
    """Return what the released Reformer hashes by, in every layer and head."""
    with nn.stochastic(jax.random.PRNGKey(0)):
        return np.array(jax.random.normal(nn.make_rng(), (4, 1, 5)))


def projection():
    """Return the released Performer's features of its first draw."""
    (case,) = (case for case in CASES if case.name == "performer softmax")
    return np.array(options(case)["attention_fn"].__self__.projection_matrix)


if __name__ == "__main__":
    found = {case.name: case.stored(released(case)) for case in CASES}
    found |= {"rotations": rotations(), "projection": projection()}
    np.savez_compressed(Path(__file__).with_name("outputs.npz"), **found)
