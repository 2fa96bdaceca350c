"""Build layers of released code as their models' initialisers leave them; store their laws.

    python -P tests/models/initial_values/released.py CHECKOUTS LIBRARIES [NAME ...]

CHECKOUTS holds the clones of SOURCES under those names; LIBRARIES, a folder of packages, what they
import: triton 3.5.1 for flash-linear-attention (no kernel is run), jax and flax for S5, jax and
equinox for LinOSS. `xlstm` is imported from its clone. Without names all laws are stored anew.
Classes that stand among kernels are read alone, with what their constructors call. Parameters are
stored under our names, in our layout; maps of tokens that our convention draws otherwise are left
out.
"""

import json
import sys
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
import laws  # noqa: E402
import released_gated as gated  # noqa: E402
import released_others as others  # noqa: E402
from laws import Draw, Place  # noqa: E402
from reading import ROOT  # noqa: E402

STORED = HERE / "released.json"
SOURCES = {
    "rwkv": "BlinkDL/RWKV-LM, 524481d",
    "xlstm": "NX-AI/xlstm, 032a6fb",
    "fla": "fla-org/flash-linear-attention, bc3b101",
    "raven": "goombalab/raven, afc329f",
    "mamba": "state-spaces/mamba, e9594ce",
    "hydra": "goombalab/hydra, 55bef74",
    "s4": "state-spaces/s4, e757cef",
    "s5": "lindermanlab/S5, 3c18fdb",
    "linoss": "tk-rusch/linoss, 83e6318",
    "discretax": "camail-official/discretax, d742812",
    "sgconv": "ctlllll/SGConv, 97862df",
    "mega": "facebookresearch/mega, aeaa4b4",
    "safari": "HazyResearch/safari, 02220c6",
    "multires": "thjashin/multires-conv, 828089f",
    "ttt": "test-time-training/ttt-lm-pytorch, cd831db",
    "nystrom": "mlpen/Nystromformer, 5689313",
    "collaborative": "epfml/collaborative-attention, 5b05408",
    "qrnn": "salesforce/pytorch-qrnn, 1634991",
    "apollo": "XuezheMax/fairseq-apollo, 3644d20",
    "span": "facebookresearch/adaptive-span, 27b815f",
}

GATED = (
    "rwkv7", "rwkv6", "mlstm", "slstm", "gla", "hgrn2", "delta_net", "gated_delta_net",
    "gated_delta_net2", "kimi_delta", "mesa_net", "forgetting", "mamba", "mamba2", "mamba3",
)  # fmt: skip
OTHERS = (
    "s5", "sgconv", "mega", "hyena", "multires_conv", "ttt", "nystromformer", "collaborative",
    "qrnn", "linoss", "luna", "light_conv", "dynamic_conv", "adaptive_span", "differential",
)  # fmt: skip
LAYERS: dict[str, Callable[[Place], Draw]] = {
    **{name: getattr(gated, name) for name in GATED},
    **{name: getattr(others, name) for name in OTHERS},
    "collaborative normal": partial(others.collaborative, mixing="UNIFORM"),
    "gated_delta_net comba": gated.comba,
    "gated_delta_net preconditioned": partial(gated.preconditioned, name="PrecondGatedDeltaNet"),
    "kimi_delta preconditioned": partial(gated.preconditioned, name="PrecondKDA"),
    "kimi_delta bound": partial(gated.kimi_delta, safe_gate=True, lower_bound=-5.0),
    "linoss damped": partial(others.linoss, damping=True),
    "mamba2 hydra": partial(gated.mamba2, file="hydra/hydra/modules/hydra.py"),
    "mamba2 log-linear": gated.log_linear,
    "mamba3 ranks": partial(gated.mamba3, is_mimo=True, mimo_rank=3, is_outproj_norm=True),
    "multires_conv wide": partial(others.multires_conv, indep_res_init=True),
    "s4 diagonal": partial(others.s4, mode="diag"),
    "s4 dplr": partial(others.s4, mode="dplr"),
    "s5 complex": partial(others.s5, output="complex_normal"),
    "s5 truncated": partial(others.s5, output="trunc_standard_normal"),
    "slots routed": gated.raven,
    "slstm other starts": partial(
        gated.slstm, bias_init="small_init", recurrent_weight_init="standard"
    ),
}
"""By family and, behind a space, by other options."""


def main(names: list[str]) -> None:
    """Store the laws of these layers, or of all."""
    warnings.simplefilter("ignore")
    sys.path[:0] = [str(ROOT / each) for each in ("xlstm", "fla", "s5", "safari")]
    sys.path.append(sys.argv[2])
    stored = json.loads(STORED.read_text()) if STORED.is_file() else {}
    for name in names or LAYERS:
        found = [laws.draws(partial(LAYERS[name], place)) for place in laws.PLACES]
        stored[name] = [{each: laws.law_of(draw[each]) for each in sorted(draw)} for draw in found]
        lines = (
            f" {json.dumps(each)}: {json.dumps(stored[each], separators=(',', ':'))}"
            for each in sorted(stored)
        )
        STORED.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main(sys.argv[3:])
