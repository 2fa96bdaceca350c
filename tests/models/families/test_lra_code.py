"""`variant=lra` beside the released code, whose outputs `lra_code/make.py` has stored."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from lra.models.families.big_bird import BigBird
from lra.models.families.linear import LinearAttention
from lra.models.families.linformer import Linformer
from lra.models.families.local import LocalAttention
from lra.models.families.longformer import Longformer
from lra.models.families.performer import Performer
from lra.models.families.reformer import Reformer
from lra.models.families.sinkhorn import Sinkhorn
from lra.models.families.softmax import SoftmaxAttention
from lra.models.families.sparse_transformer import SparseTransformer
from lra.models.families.synthesizer import Synthesizer
from lra.models.mixer import Layout, Site, Variant
from tests.models.families.lra_code.cases import CASES, Case, weights

OUTPUTS = np.load(Path(__file__).parent / "lra_code" / "outputs.npz")
FAMILIES = {
    "big_bird": BigBird,
    "linear": LinearAttention,
    "linformer": Linformer,
    "local": LocalAttention,
    "longformer": Longformer,
    "performer": Performer,
    "reformer": Reformer,
    "sinkhorn": Sinkhorn,
    "softmax": SoftmaxAttention,
    "sparse_transformer": SparseTransformer,
    "synthesizer": Synthesizer,
}
OURS = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "out": "out_proj"}
"""Our names of the released projections."""
OWN = {
    "linformer": {"lr_kernel": "core.length_map.keys"},
    "longformer": {
        **{f"{name}_sliding_window": OURS[name] for name in ("query", "key", "value")},
        **{f"{name}_global": f"{name}_global" for name in ("query", "key", "value")},
    },
    "reformer": {"query": "qk_proj"},
    "sinkhorn": {"DenseGeneral_0": None},
    "synthesizer": {
        "dense_syn": "dense_in",
        "dense_syn_len": "dense_out",
        "random": "table",
        "random1": "left",
        "random2": "right",
    },
}


def built(case: Case) -> nn.Module:
    """Return our module with the weights of the case, in evaluation."""
    site = Site(
        width=case.width, heads=case.heads, qkv_bias=False, output_bias=False,
        **{"max_length": case.length, **case.site},
    )  # fmt: skip
    mixer = FAMILIES[case.family](site, variant=Variant.lra, **case.ours).eval()
    names = OURS | OWN.get(case.family, {})
    with torch.no_grad():
        for path, released in weights(case.shapes).items():
            if (ours := names[path.removesuffix("/kernel")]) is None:
                continue
            weight = torch.from_numpy(released)
            layer = ours.endswith(("_proj", "_global", "dense_in"))
            target = mixer.get_parameter(f"{ours}.weight" if layer else ours)
            if ours == "out_proj":
                weight = weight.flatten(0, 1).T
            elif layer:
                weight = weight.flatten(1).T
            elif ours in ("right", "dense_out", "core.length_map.keys"):
                weight = weight.mT
            target.copy_(weight.reshape(target.shape))
    draws = {"rotations": "rotations", "core.projection": "projection"}  # of JAX's generator
    for ours, buffer in mixer.named_buffers():
        if ours in draws:
            buffer.copy_(torch.from_numpy(OUTPUTS[draws[ours]]).view_as(buffer))
    return mixer


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_equals_the_released_code(case):
    mixer = built(case)
    x, keep = (None if part is None else torch.from_numpy(part) for part in case.input())
    if not (mixer.traits.hides_others or "keep" in mixer.traits.supports):
        keep = None
    with torch.no_grad():
        y = mixer(x, Layout(keep=keep)).numpy()
    np.testing.assert_allclose(case.stored(y), OUTPUTS[case.name], atol=1e-5, rtol=1e-5)
