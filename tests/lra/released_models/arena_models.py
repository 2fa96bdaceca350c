"""Run the models of the Long Range Arena's own code; store their answers.

    python -P tests/lra/released_models/arena_models.py CHECKOUT LIBRARIES

CHECKOUT is a clone of github.com/google-research/long-range-arena (commit cd31e5c), LIBRARIES what
it imports, as `pip install --no-deps --target LIBRARIES jax==0.4.13 jaxlib==0.4.13 flax==0.3.6
'numpy<1.25' 'scipy<1.11' 'ml_dtypes<0.3' opt_einsum msgpack gin-config attrs` leaves it. The main
function of each task's script chooses a model and its options. That is built, and its evaluation
step is run as it stands, but on a CPU, in float64, with shorter sequences and weights by the rule
of `cases.py`. All of its models run. What differs from the released scripts:

- the reading of data, which is TensorFlow's alone, and flags are left out: batches are dictionaries
  of ids padded with 0 to one length (and pictures), as its pipelines say; what jax has removed
  since is put back;
- of pairs the encoders of two inputs are built, where the script names those of one;
- Sinkhorn on text and images pools by the mean, and Big Bird on images has no `num_head`: with what
  their files say they raise;
- rotations of Reformer and features of Performer are drawn by the rule, once;
- chunks of the Temporal Latent Bottleneck are gone through by Python, as compiling them takes long.
"""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from unittest.mock import MagicMock

CHECKOUT = Path(sys.argv[1])
HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), *sys.argv[1:]]
import cases  # noqa: E402
import jax  # noqa: E402
import numpy as np  # noqa: E402
import settings  # noqa: E402
from jax import numpy as jnp  # noqa: E402

SCRIPTS = {"listops": "listops", "text": "text_classification", "retrieval": "matching"}
"""Where a task's script lies; elsewhere `image`."""
DATA = {"listops": "basic", "text": "imdb_reviews", "retrieval": "aan"}
VOCABULARY = {"listops": 17, "text": 257, "retrieval": 257}
"""Of an encoder: all tokens, padding, and on ListOps an unknown one; of pictures 256."""
INSTEAD = {
    ("sinkhorn", "text"): {"classifier_pool": "MEAN"},
    ("sinkhorn", "image"): {"classifier_pool": "MEAN"},
    ("big_bird", "image"): {"num_head": None},
}
"""Options in place of those that raise; None leaves one out."""


class Options(settings.Settings):
    """Stand for `ml_collections.ConfigDict`."""

    def to_dict(self) -> dict:
        """Return all as a dictionary."""
        return dict(self)


class Chosen(Exception):
    """Ends a script where it has chosen a model and its options."""


def drawn(_: object, shape: tuple[int, ...]) -> jax.Array:
    """Stand for draws of features and rotations."""
    return jnp.array(cases.weight("projection_matrix", shape).numpy())


def put(module: ModuleType, name: str, **content: object) -> None:
    """Let a module see another one with some of its content replaced."""
    setattr(module, name, SimpleNamespace(**{**vars(getattr(module, name)), **content}))


def scan(step: Callable, state: jax.Array, chunks: jax.Array, **_: int) -> tuple[jax.Array, None]:
    """Stand for `jax.lax.scan`, without what a step answers."""
    for chunk in chunks:
        state, _ = step(state, chunk)
    return state, None


def prepare() -> None:
    """Make the released code importable, and its numbers float64."""
    jax.config.update("jax_enable_x64", True)
    jnp.float32 = jnp.float64
    full = jnp.full
    # In float32, -1e10 leaves nothing of a score that it is added to.
    jnp.full = lambda shape, fill, *rest: full(shape, -1e30 if fill == -1e10 else fill, *rest)
    jax._src.numpy.lax_numpy.isin = jnp.isin
    jax.lax.scan = scan
    jax.lax.tie_in = lambda x, y: y
    jax.custom_transforms = lambda function: function
    jax.defvjp_all = lambda function, rule: None
    for name in ("absl", "tensorflow", "tensorflow.compat", "tensorflow.compat.v2",
                 "flax.metrics.tensorboard", "flax.training.checkpoints"):  # fmt: skip
        sys.modules[name] = MagicMock()
    create = SimpleNamespace(create=Options)
    sys.modules["ml_collections"] = SimpleNamespace(
        ConfigDict=Options, config_dict=create, config_flags=MagicMock()
    )
    for folder in (*SCRIPTS.values(), "image"):
        sys.modules[f"lra_benchmarks.{folder}.input_pipeline"] = MagicMock()
    part = "lra_benchmarks.models."
    put(importlib.import_module(f"{part}layers.common_layers"), "np", float32=np.float64)
    random = SimpleNamespace(**{**vars(jax.random), "normal": drawn})
    put(importlib.import_module(f"{part}reformer.reformer_attention"), "jax", random=random)
    performer = importlib.import_module(f"{part}performer.performer_attention")
    performer.GaussianOrthogonalRandomMatrix.get_2d_array = lambda matrix: drawn(
        None, (matrix.nb_rows, matrix.nb_columns)
    )


def chosen(task: str, model: str, file: str, length: int) -> tuple[type, dict]:
    """Return the model that a task's script chooses by a file of settings, and its options."""
    folder = settings.LRA_FOLDERS[task]
    config = importlib.import_module(f"lra_benchmarks.{folder}.{file}").get_config()
    config["max_length"] = length
    script = importlib.import_module(f"lra_benchmarks.{SCRIPTS.get(task, 'image')}.train")
    script.FLAGS = MagicMock(config=config, task_name=DATA.get(task, task))
    if task in SCRIPTS:
        data = (*[MagicMock()] * 3, SimpleNamespace(vocab_size=VOCABULARY[task]))
        for name in ("get_datasets", "get_tc_datasets", "get_matching_datasets"):
            setattr(script.input_pipeline, name, lambda **_: data)
    else:
        shape = (config["batch_size"], length, 1, 1)
        data = (*[MagicMock()] * 3, 10 if task == "image" else 2, 256, shape)
        script.task_registry.TASK_DATA_DICT = {task: lambda **_: data}
    utils, get_model = script.train_utils, script.train_utils.get_model

    def stopped(kind: str, create: object, options: dict, *_: object) -> None:
        raise Chosen(*get_model(kind, lambda *made: made, options))

    utils.get_model = stopped
    try:
        script.main([])
    except Chosen as found:
        encoder, options = found.args
    finally:
        utils.get_model = get_model
    if task == "retrieval":
        (encoder,) = (
            value for name, value in vars(sys.modules[encoder.__module__]).items()
            if name.endswith("DualEncoder")
        )  # fmt: skip
    options = {**options, **INSTEAD.get((model, task), {})}
    return encoder, {name: value for name, value in options.items() if value is not None}


def filled(tree: dict, above: str = "") -> dict:
    """Return parameters as weights by the rule: a kernel as the matrix [outputs, inputs]."""
    found = {}
    for key, part in tree.items():
        path = f"{above}{key}"
        if isinstance(part, dict):
            found[key] = filled(part, f"{path}/")
            continue
        shape, name = part.shape, cases.arena_name(path)
        if path.endswith("kernel"):
            inputs = int(np.prod(shape[:-1] if path.endswith("out/kernel") else shape[:1]))
            weight = cases.weight(name, (part.size // inputs, inputs)).T.reshape(shape)
        else:
            weight = cases.weight(name, shape)
        found[key] = jnp.array(weight.numpy())
    return found


def answer(task: str, model: str, file: str) -> np.ndarray:
    """Return a released model's logits for the inputs of a task."""
    given = cases.inputs("lra_code", model, task).unbind(1)
    inputs = [jnp.array(ids.numpy()) for ids in given]
    encoder, options = chosen(task, model, file, inputs[0].shape[1])
    module = encoder.partial(**options)
    names = ["inputs1", "inputs2"] if len(inputs) > 1 else ["inputs"]
    nn, seen = importlib.import_module("flax.deprecated.nn"), {}
    with nn.stochastic(jax.random.PRNGKey(0)):
        _, drawn_weights = module.init(jax.random.PRNGKey(0), *[ids[:1] for ids in inputs])
        script = sys.modules[f"lra_benchmarks.{SCRIPTS.get(task, 'image')}.train"]
        script.compute_metrics = lambda logits, *_, **__: seen.update(logits=logits)
        batch = dict(zip(names, inputs, strict=True), targets=jnp.zeros(cases.ROWS, int))
        first = [nn.Model(module, filled(drawn_weights))]
        if task not in SCRIPTS:  # pictures, which it flattens, and a state that there is not
            batch["inputs"] = batch["inputs"].reshape(cases.ROWS, -1, 1, 1)
            first.append(nn.Collection())
        script.eval_step(*first, batch, *([10] if task not in SCRIPTS else []))
    return np.array(seen["logits"])


def main() -> None:
    """Store the answers of every model that a task has a file of settings for."""
    prepare()
    found = {
        f"{task}.{model}": answer(task, model, file)
        for task, folder in settings.LRA_FOLDERS.items()
        for model, files in settings.LRA_FILES.items()
        for file in files.split()
        if (CHECKOUT / "lra_benchmarks" / folder.replace(".", "/") / f"{file}.py").exists()
    }
    np.savez_compressed(HERE / "lra_code.npz", **found)


if __name__ == "__main__":
    main()
