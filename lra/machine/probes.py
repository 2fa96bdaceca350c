"""What works on this machine: each function here tries one thing for real and says how it went."""

import base64
import csv
import hashlib
import os
import shutil
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from lra.runners.isolation import isolate
from lra.runners.isolation.places import words
from lra.runners.measurement.gpus import gpus
from lra.runners.measurement.hardware import HardwareProfile
from lra.runners.measurement.training_places import on_gpus, places_of
from lra.runners.records import Status

Send = Callable[[object], None]
GIB = 2**30
HUB = "https://huggingface.co"
"""Used unless HF_ENDPOINT says otherwise, as the `datasets` package does."""
ACCOUNT_S = 8.0
"""How long W&B's server may take to say whose key it is asked about."""


class ProbeResult(NamedTuple):
    """The outcome of one probe."""

    works: bool
    detail: str
    way_out: str = ""
    """What to do where it does not work and is wanted."""


def run_probe(probe: Callable[[], ProbeResult]) -> ProbeResult:
    """Run a probe; whatever it raises is the finding."""
    try:
        return probe()
    except Exception as error:  # noqa: BLE001  any failure at all is what a probe looks for
        first = (str(error).strip().splitlines() or [""])[0][:200]
        return ProbeResult(False, f"{type(error).__name__}: {first}", f"see {probe.__doc__!r}")


# -- what cells do in processes of their own ---------------------------------------------------


def answer(argument: Any, send: Send) -> None:
    """Child: send the argument back, with the number of this process."""
    send((argument, os.getpid()))


def devour(argument: int, send: Send) -> None:
    """Child: touch `argument` bytes of memory."""
    import torch

    send(torch.ones(argument, dtype=torch.uint8).numel())


def log_in(_: None, send: Send) -> None:
    """Child: ask W&B's server whose key there is; send why it refuses it, or "".

    A child has no terminal on which W&B could ask for a key.
    """
    os.environ["WANDB_SILENT"] = "true"
    import wandb

    try:
        send("" if wandb.login(verify=True) else "there is no key")
    except wandb.errors.Error as error:
        send(" ".join(str(error).split()))


def compile_something(_: None, send: Send) -> None:
    """Child: compile a small function and compare it with itself uncompiled."""
    import torch

    def function(x: torch.Tensor) -> torch.Tensor:
        return (x.sin() * 2 + x.cos()).sum(-1)

    x = torch.linspace(0, 1, 512).view(8, 64)
    compiled = torch.compile(function, fullgraph=True)
    send(bool(torch.allclose(compiled(x), function(x), atol=1e-5)))


def cell_process() -> ProbeResult:
    """A separate process, through the fork server."""
    received: list[Any] = []
    ending = isolate.run(answer, "hello", seconds=120.0, threads=1, on_message=received.append)
    if ending.status is not Status.ok or len(received) != 1 or received[0][1] == os.getpid():
        return ProbeResult(
            False,
            f"{ending.status}: {ending.reason} (messages: {received})",
            "lra needs multiprocessing's forkserver: Linux or macOS, and a writable TMPDIR",
        )
    return ProbeResult(True, f"process {received[0][1]} answered")


def memory_limit() -> ProbeResult:
    """A limit on a cell's memory, which turns exhaustion into a row."""
    ending = isolate.run(
        devour, 8 * GIB, seconds=120.0, threads=1, memory_bytes=2 * GIB, on_message=lambda _: None
    )
    if ending.status is Status.out_of_memory:
        return ProbeResult(
            True, "a process with a limit of 2 GiB that asked for 8 GiB ended as out_of_memory"
        )
    return ProbeResult(
        False,
        f"a process with a limit of 2 GiB that asked for 8 GiB ended as {ending.status}: "
        f"{ending.reason}",
        "use hardware.memory_limit_bytes=null, and set a limit from outside (ulimit -v, SLURM)",
    )


def compiler() -> ProbeResult:
    """torch.compile, which needs a C++ compiler on a CPU."""
    named = os.environ.get("CXX") or "g++"
    received: list[Any] = []
    ending = isolate.run(
        compile_something, None, seconds=300.0, threads=1, on_message=received.append
    )
    if ending.status is Status.ok and received == [True]:
        return ProbeResult(True, f"compiled and agrees; compiler {shutil.which(named) or named}")
    missing = "" if shutil.which(named) else f"; no {named} on PATH"
    return ProbeResult(
        False,
        f"{ending.status}: {ending.reason.splitlines()[0] if ending.reason else received}{missing}",
        "install a C++ compiler (Debian, Ubuntu: apt install g++), or use hardware.compile=false",
    )


# -- what torch does here ------------------------------------------------------------------------


def memory_trace() -> ProbeResult:
    """The allocator's trace, from which peak tensor bytes are counted."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        torch.empty(2**20, dtype=torch.uint8, device="cuda").fill_(1)
        peak = torch.cuda.max_memory_allocated() - before
        return ProbeResult(peak == 2**20, f"the CUDA allocator counts 1 MiB as {peak:,} bytes")
    from torch.profiler import ProfilerActivity, profile

    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # some builds trace their own start and stop
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as trace:
        torch.ones(2**20, dtype=torch.uint8)
    events = [e for e in trace.profiler.kineto_results.events() if e.name() == "[memory]"]
    taken = max((event.nbytes() for event in events), default=0)
    return ProbeResult(
        taken == 2**20,
        f"the profiler counts 1 MiB as {taken:,} bytes",
        "this build of torch cannot count peak tensor bytes: install the version in "
        "constraints.txt",
    )


def half_precision() -> ProbeResult:
    """bfloat16 under autocast."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    a = torch.linspace(-1, 1, 64 * 64, device=device).view(64, 64)
    with torch.autocast(device, dtype=torch.bfloat16):
        product = a @ a
    worst = float((product.float() - a @ a).abs().max())
    works = product.dtype is torch.bfloat16 and worst < 0.25
    return ProbeResult(
        works,
        f"on {device}: product in {product.dtype}, off by {worst:.2g}",
        "choose hardware.precision=float32",
    )


def gpu() -> ProbeResult:
    """A CUDA device that computes."""
    import torch

    if not torch.cuda.is_available():
        build = torch.version.cuda
        why = (
            f"torch is built for CUDA {build} and finds no GPU" if build else "a CPU build of torch"
        )
        return ProbeResult(
            False,
            why,
            "if this machine has a GPU, install its driver"
            + ("" if build else " and a CUDA build of torch (plain PyPI has it)"),
        )
    x = torch.ones(256, 256, device="cuda")
    right = float((x @ x).sum()) == 256.0**3
    card = torch.cuda.get_device_properties(0)
    bfloat16 = "with" if torch.cuda.is_bf16_supported() else "without"
    return ProbeResult(
        right,
        f"{torch.cuda.device_count()} x {card.name}, {card.total_memory / GIB:.1f} GiB, "
        f"{bfloat16} bfloat16",
    )


def places() -> ProbeResult:
    """The devices that a sweep uses at once."""
    cpu = places_of(HardwareProfile(name="cpu"), timed=False)
    lines = [f"hardware=cpu: {len(cpu.all)} trainings at once ({words(cpu.all) or 'any core'})"]
    seen = gpus()
    if seen:
        cards = on_gpus(seen)
        left_out = f", {len(seen) - len(cards)} of another kind unused" * (len(seen) > len(cards))
        lines.append(f"on a GPU: {len(cards)} ({words(cards)}{left_out})")
    return ProbeResult(True, "; ".join(lines))


def installed_files() -> ProbeResult:
    """The files of lra, as its wheel brought them."""
    from importlib.metadata import PackageNotFoundError, distribution, distributions

    try:
        ours = distribution("lra")
    except PackageNotFoundError:
        lines = []
    else:  # not its `files`: from Python 3.12 on, these leave out what is missing
        lines = [*csv.reader((ours.read_text("RECORD") or "").splitlines())]
    files = {name: digest.partition("=")[2] for name, digest, _ in lines if name[:4] == "lra/"}
    if not files:
        return ProbeResult(True, "a git checkout of the sources")
    wrong = [name for name, d in files.items() if d and _digest(ours.locate_file(name)) != d]
    if not wrong:
        return ProbeResult(True, f"{len(files):,} files are those of the wheel")
    packages = (each for each in distributions() if each.name != "lra")
    others = {each.name for each in packages if {*wrong} & {*map(str, each.files or ())}}
    return ProbeResult(
        False,
        f"{len(wrong):,} of {len(files):,} are changed or missing, as {wrong[0]}"
        + (f"; {', '.join(sorted(others))} installed files with the same names" if others else ""),
        "pip install --force-reinstall --no-deps with the wheel or address that lra came from"
        + (f", after pip uninstall {' '.join(sorted(others))}" if others else ""),
    )


def _digest(file: object) -> str:
    """Return a file's SHA-256 as RECORD has it; "" where there is none."""
    path = Path(str(file))
    content = hashlib.sha256(path.read_bytes()).digest() if path.is_file() else b""
    return base64.urlsafe_b64encode(content).decode().rstrip("=")


# -- where results, data and runs go -----------------------------------------------------------


def writable(folder: Path) -> ProbeResult:
    """The folder takes files whole: written, flushed, renamed."""
    there = folder
    while not there.exists():
        if there.is_symlink():
            return ProbeResult(
                False, f"{there.absolute()}: a broken link",
                "make the folder that it names, or remove the link",
            )  # fmt: skip
        there = there.parent
    try:
        with tempfile.NamedTemporaryFile(dir=there, prefix=".lra-doctor-", delete=False) as file:
            file.write(b"x" * 4096)
            file.flush()
            os.fsync(file.fileno())
        renamed = Path(file.name).with_suffix(".renamed")
        Path(file.name).replace(renamed)
        renamed.unlink()
    except OSError as error:
        return ProbeResult(
            False,
            f"{folder.absolute()}: {error.strerror}",
            "name another folder, or free some space",
        )
    free = shutil.disk_usage(there).free
    state = "" if folder.exists() else " (will be made)"
    return ProbeResult(True, f"{folder.absolute()}{state}, {free / GIB:.1f} GiB free")


def wandb_offline() -> ProbeResult:
    """A W&B run without account and network."""
    import wandb

    with tempfile.TemporaryDirectory() as folder:
        run = wandb.init(
            mode="offline", dir=folder, project="lra-doctor", settings=wandb.Settings(silent=True)
        )
        run.log({"tried": 1})
        run.finish()
        wandb.teardown()  # waits until the file is whole; finish alone may come back earlier
        files = list(Path(folder).rglob("*.wandb"))
        size = sum(file.stat().st_size for file in files)
    return ProbeResult(size > 100, f"wrote {size:,} bytes", "choose logger=none")


def wandb_account() -> ProbeResult:
    """A W&B key that its server takes, so that logger=wandb_online can work."""
    said: list[object] = []
    ending = isolate.run(log_in, None, on_message=said.append, seconds=ACCOUNT_S)
    refused = str(said[0]) if said else f"the server gave no answer: {ending.reason}"
    return ProbeResult(
        not refused,
        refused or "the server knows the key",
        "only for logger=wandb_online: `wandb login`; offline runs are sent later by `wandb sync`",
    )


def tensorboard() -> ProbeResult:
    """What logger=tensorboard writes with, and the program that shows it."""
    missing = [name for name in ("tensorboardX", "tensorboard") if find_spec(name) is None]
    state = f"{', '.join(missing)} missing" if missing else "tensorboardX and tensorboard are there"
    return ProbeResult(
        not missing, state, "only for logger=tensorboard: pip install 'lra[tensorboard]'"
    )


def hub() -> ProbeResult:
    """The data hub, from which text=imdb and the like are fetched."""
    by_hand = (
        "generated tasks and sample sources work offline; for others, download the files elsewhere "
        "and use `lra data prepare TASK --from PATH`"
    )
    if os.environ.get("HF_HUB_OFFLINE", "") not in ("", "0"):
        return ProbeResult(False, "switched off by HF_HUB_OFFLINE", by_hand)
    address = os.environ.get("HF_ENDPOINT", HUB)
    try:
        with urllib.request.urlopen(urllib.request.Request(address, method="HEAD"), timeout=4):
            return ProbeResult(True, f"{address} answers")
    except urllib.error.HTTPError as error:
        return ProbeResult(True, f"{address} answers ({error.code})")
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        return ProbeResult(False, f"{address} does not answer: {reason}", by_hand)
