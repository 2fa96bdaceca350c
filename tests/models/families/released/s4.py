"""Run the S4 block of the S4 repository and the kernel of DSS, and store what they give.

    pip install --no-deps --target LIBRARIES einops
    PYTHONPATH=LIBRARIES python -P tests/models/families/released/s4.py CHECKOUT DSS

CHECKOUT is a clone of github.com/state-spaces/s4 (commit e757cef), whose file models/s4/s4.py is
run as it stands, in float64, with a decorator in place of PyTorch Lightning's. In place of C the
code learns that times 1 - A^L, so that gradients by what A and dt are made of are not compared.
DSS is a clone of github.com/ag1988/dss (commit 777084e), of whose src/models/sequence/ss/standalone
the kernel in dss.py is run with one dt a channel; it gives float32.
"""

import importlib.util
import logging
import sys
import types
from pathlib import Path

import numpy as np
import torch

OUTPUTS = Path(__file__).with_suffix(".npz")
WIDTH, STATES, NUMBER, ROWS = 6, 8, 2, 2
CASES = {
    "dplr": {"mode": "dplr"},
    "dplr two-sided": {"mode": "dplr", "bidirectional": True},
    "zoh": {"mode": "diag", "disc": "zoh"},
    "bilinear two-sided": {"mode": "diag", "disc": "bilinear", "bidirectional": True},
}
LENGTHS = (1, 19, 20)
INITIAL = (4, 64)
"""Numbers of states whose first values are stored."""


def drawn(*shape: int, seed: int) -> torch.Tensor:
    """Return N(0, 1) in float64."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def tokens(length: int) -> torch.Tensor:
    """Return tokens, batch first."""
    return drawn(ROWS, length, WIDTH, seed=1)


def direction(length: int) -> torch.Tensor:
    """Return what gradients are taken along."""
    return drawn(ROWS, length, WIDTH, seed=2)


def weights(directions: int) -> dict[str, torch.Tensor]:
    """Return parameters by their released names: complex numbers as pairs, steps as logarithms."""
    pairs = (NUMBER, STATES // 2)
    return {
        "A_real": drawn(*pairs, seed=3) / 2,
        "A_imag": 3 * drawn(*pairs, seed=4).abs(),
        "B": drawn(1, *pairs, 2, seed=5),
        "P": drawn(1, *pairs, 2, seed=6),
        "C": drawn(directions, WIDTH, STATES // 2, 2, seed=7),
        "inv_dt": drawn(WIDTH, 1, seed=8) - 2,
        "D": drawn(1, WIDTH, seed=9),
        "weight": drawn(2 * WIDTH, WIDTH, seed=10) / 2,
        "bias": drawn(2 * WIDTH, seed=11),
    }


def state() -> torch.Tensor:
    """Return states in front of the first token."""
    return torch.view_as_complex(drawn(ROWS, WIDTH, STATES // 2, 2, seed=12))


def built(code: types.ModuleType, case: str) -> torch.nn.Module:
    """Return a block with these weights."""
    block = code.S4Block(
        WIDTH, transposed=False, d_state=STATES, n_ssm=NUMBER, verbose=False, **CASES[case]
    ).double()
    kernel, linear = block.layer.kernel, block.output_linear[0]
    places = {"D": block.layer.D, "weight": linear.weight, "bias": linear.bias}
    with torch.no_grad():
        for name, value in weights(kernel.channels).items():
            place = places.get(name, getattr(kernel, name, None))
            if place is not None:
                place.copy_(value)
    return block


def loaded(file: Path) -> types.ModuleType:
    """Return a file of released code."""
    spec = importlib.util.spec_from_file_location(f"released_{file.stem}", file)
    code = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(code)
    return code


def dss_kernel(code: types.ModuleType) -> torch.Tensor:
    """Return the kernels of DSS with these weights: one Lambda for all channels."""
    length, given = LENGTHS[-1], weights(1)
    kernel = code.DSSKernel(
        WIDTH, N=STATES // 2, l_max=length, sep_dt_re_im=False, version="exp"
    ).double()
    with torch.no_grad():
        kernel.Lambda_log_neg_re.copy_(given["A_real"][0])
        kernel.Lambda_im.copy_(-given["A_imag"][0])
        kernel.W.copy_(given["C"])
        kernel.log_dt.copy_(given["inv_dt"][:, 0])
        return kernel(L=length)[0][0]


def main(checkout: Path, dss: Path) -> None:
    """Store outputs, gradients, states, kernels and first values."""
    lightning, utilities, einsum = (
        types.ModuleType(name)
        for name in ("pytorch_lightning", "pytorch_lightning.utilities", "opt_einsum")
    )
    utilities.rank_zero_only = lambda function: function  # type: ignore[attr-defined]
    vars(einsum).update(contract=torch.einsum, contract_expression=None)
    sys.modules |= {each.__name__: each for each in (lightning, utilities, einsum)}
    logging.disable()
    code = loaded(checkout / "models/s4/s4.py")
    of_dss = loaded(dss / "src/models/sequence/ss/standalone/dss.py")
    found = {"dss": dss_kernel(of_dss).numpy()}
    for case in CASES:
        for length in LENGTHS:
            block, x = built(code, case), tokens(length).requires_grad_()
            y, _ = block(x)
            by_x, by_b = torch.autograd.grad(y, (x, block.layer.kernel.B), direction(length))
            found |= {
                f"{case} {length}: y": y.detach().numpy(),
                f"{case} {length}: x": by_x.numpy(),
            }
            found[f"{case} {length}: B"] = by_b[0].numpy()
            if "two-sided" not in case:
                with torch.no_grad():
                    y, after = built(code, case)(x, state=state())
                found[f"{case} {length}: continued"] = y.numpy()
                found[f"{case} {length}: state"] = torch.view_as_real(after.resolve_conj()).numpy()
    for states in INITIAL:
        rates, low_rank, entry, _ = code.nplr("legs", states, dtype=torch.double)
        found[f"initial {states}"] = torch.stack(
            (rates.real, rates.imag, low_rank[0].abs(), entry.abs())
        ).numpy()
    np.savez_compressed(OUTPUTS, **found)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
