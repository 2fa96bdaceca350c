"""Checkpoints in the safetensors format, in one file or in several with an index of them."""

from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import Tensor

from lra.conf.plain_files import NoJson, parse_json, read_bytes, typed_object
from lra.conf.short_values import reason, short_list

INDEX = ".index.json"
"""Ending of an index file, which lists the files with a model's tensors."""


def is_checkpoint(named: str | None) -> bool:
    """Return whether `named` is a file of weights, and not a run in a results folder."""
    return named is not None and named.endswith((".safetensors", INDEX))


def checkpoint_name(named: str | None) -> str | None:
    """Return a short name of a checkpoint's file; None if `named` is not such a file."""
    return Path(str(named)).name.split(".")[0] if is_checkpoint(named) else None


def files_of(path: Path) -> list[Path]:
    """Return the files of a checkpoint: `path` itself or, if it is an index, the files in it.

    Raises:
        ValueError: `path` or a file is missing, `path` is one of several files, or the index is
            invalid.
    """
    if not path.is_file():
        raise ValueError(f"weights: there is no file {path}; name a .safetensors file")
    if not path.name.endswith(INDEX):
        # One of several files has a name such as model-00001-of-00003.safetensors.
        if "-of-" in path.name and (index := next(path.parent.glob(f"*{INDEX}"), None)):
            raise ValueError(f"{path} is one of several files: pass their index instead, {index}")
        return [path]
    try:
        stored = typed_object(parse_json(read_bytes(path)), {}).get("weight_map")
    except NoJson as error:
        raise ValueError(f"{path}: {error}; download it again") from error
    names = [*stored.values()] if isinstance(stored, dict) else []
    if not names or any(not isinstance(name, str) or Path(name).name != name for name in names):
        raise ValueError(
            f"{path}: its weight_map names no files in the same folder; download it again"
        )
    files = [path.with_name(name) for name in sorted({*names})]
    if missing := [file.name for file in files if not file.is_file()]:
        raise ValueError(
            f"{path} names {len(files)} files, but {len(missing)} of them are missing: "
            f"{short_list(missing[:3])}; copy them into {path.parent}"
        )
    return files


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Return all tensors by name, without the prefixes of `torch.compile` and data parallelism.

    Raises:
        ValueError: For the same reasons as in `files_of`, or because a file cannot be read.
    """
    tensors: dict[str, Tensor] = {}
    for part in files_of(path):
        try:
            with safe_open(part, framework="pt") as file:
                tensors |= {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except SafetensorError as error:
            raise ValueError(
                f"{part} cannot be read as safetensors ({reason(error)}): it is truncated or in "
                "another format; download it again, or save it with safe_serialization=True"
            ) from error
    tensors = {name.replace("_orig_mod.", ""): tensor for name, tensor in tensors.items()}
    # A model that was wrapped for data parallelism several times has the prefix several times.
    while tensors and all(name.startswith("module.") for name in tensors):
        tensors = {name.removeprefix("module."): tensor for name, tensor in tensors.items()}
    return tensors
