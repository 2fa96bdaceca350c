"""Run the LinOSS layer as released, and the damped one of discretax, and store what they give.

    pip install --target LIBRARIES jax equinox
    JAX_ENABLE_X64=1 PYTHONPATH=LIBRARIES \
        python -P tests/models/families/released/linoss.py CHECKOUT DISCRETAX

CHECKOUT is a clone of github.com/tk-rusch/linoss (commit 83e6318), whose models/LinOSS.py is run as
it stands. DISCRETAX is one of github.com/camail-official/discretax (commit d742812), whose mixer is
imported without what the package imports at its start. Both are run in float64.
"""

import importlib
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np

OUTPUTS = Path(__file__).with_suffix(".npz")
WIDTH, STATES, LENGTH, ROWS = 3, 5, 40, 2
CASES = {
    "im": {"discretization": "IM"},
    "imex": {"discretization": "IMEX"},
    "damped": {"discretization": "IMEX", "damping": True},
}


def drawn(*shape: int, seed: int) -> np.ndarray:
    """Return N(0, 1) in float64."""
    return np.random.RandomState(seed).standard_normal(shape)


def weights(case: str) -> dict[str, np.ndarray]:
    """Return parameters by their released names; some A and G are below 0, or above their bound."""
    found = {
        "A_diag": drawn(STATES, seed=3),
        "steps": drawn(STATES, seed=4),
        "B": drawn(STATES, WIDTH, 2, seed=5),
        "C": drawn(WIDTH, STATES, 2, seed=6),
        "D": drawn(WIDTH, seed=7),
    }
    if case == "damped":
        found["A_diag"] = found["A_diag"] * 20 + 10
        found["G_diag"] = drawn(STATES, seed=8)
    return found


def tokens() -> np.ndarray:
    """Return inputs, batch first."""
    return drawn(ROWS, LENGTH, WIDTH, seed=1)


def direction() -> np.ndarray:
    """Return what gradients are taken along."""
    return drawn(ROWS, LENGTH, WIDTH, seed=2)


def main(checkout: Path, discretax: Path) -> None:
    """Store outputs, and gradients by inputs and parameters."""
    sys.path.append(str(checkout / "models"))
    for name in ("discretax", "discretax.sequence_mixers"):
        package: Any = types.ModuleType(name)
        package.__path__ = [str(discretax / "src" / name.replace(".", "/"))]
        sys.modules[name] = package
    jax = importlib.import_module("jax")
    equinox = importlib.import_module("equinox")
    released = importlib.import_module("LinOSS").LinOSSLayer
    damped = importlib.import_module("discretax.sequence_mixers.linoss").LinOSSSequenceMixer
    key, found = jax.random.PRNGKey(0), {}
    for case, options in CASES.items():
        if case == "damped":
            layer = damped(WIDTH, key, state_dim=STATES, **options)
        else:
            layer = released(STATES, WIDTH, *options.values(), key=key)
        given = weights(case)
        layer = equinox.tree_at(
            lambda layer, names=tuple(given): [getattr(layer, name) for name in names],
            layer,
            [jax.numpy.asarray(value) for value in given.values()],
        )
        more = (None,) * (case == "damped")  # a key, which the layer does not use

        def outputs(layer: Any, x: Any, more: tuple[None, ...] = more) -> Any:
            return jax.vmap(lambda row: layer(row, *more))(x)

        def total(parts: Any, outputs: Any = outputs) -> Any:
            return (outputs(*parts) * direction()).sum()

        x = jax.numpy.asarray(tokens())
        by_layer, by_x = equinox.filter_grad(total)((layer, x))
        found |= {f"{case}: y": np.asarray(outputs(layer, x)), f"{case}: x": np.asarray(by_x)}
        found |= {f"{case}: {name}": np.asarray(getattr(by_layer, name)) for name in given}
    assert all(value.dtype == np.float64 for value in found.values()), "set JAX_ENABLE_X64=1"
    np.savez_compressed(OUTPUTS, **found)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
