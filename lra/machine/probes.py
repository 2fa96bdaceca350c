"""Probes of `lra doctor`: each function tries one thing that lra needs, and returns the outcome."""

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
"""The data hub, unless HF_ENDPOINT is set; the package `datasets` does the same."""
ACCOUNT_S = 8.0
"""The most seconds that W&B's server may take to check a key."""


class ProbeResult(NamedTuple):
    """The outcome of one probe."""

    works: bool
    detail: str
    way_out: str = ""
    """A remedy, if the thing does not work."""


def run_probe(probe: Callable[[], ProbeResult]) -> ProbeResult:
    """Run `probe` and return its outcome; an exception is the outcome that it does not work."""
    try:
        return probe()
    except Exception as error:  # noqa: BLE001  a probe looks for failures of any kind
        first_line = (str(error).strip().splitlines() or [""])[0][:200]
        detail = f"{type(error).__name__}: {first_line}"
        return ProbeResult(False, detail, f"the check needs: {probe.__doc__}")


# -- what runs do in separate processes --------------------------------------------------------


def answer(argument: Any, send: Send) -> None:
    """Send `argument` and the number of this process to the parent process."""
    send((argument, os.getpid()))


def devour(argument: int, send: Send) -> None:
    """Allocate and fill `argument` bytes of memory, in a child process."""
    import torch

    send(torch.ones(argument, dtype=torch.uint8).numel())


def log_in(_: None, send: Send) -> None:
    """Check the W&B key with W&B's server; send the reason of a refusal, or "" if it is valid.

    This runs in a child process, because W&B asks for a missing key if it finds a terminal.
    """
    os.environ["WANDB_SILENT"] = "true"
    import wandb

    try:
        send("" if wandb.login(verify=True) else "this machine has no W&B key")
    except wandb.errors.Error as error:
        send(" ".join(str(error).split()))


def compile_something(_: None, send: Send) -> None:
    """Compile a small function in a child process; send whether it computes the same as before."""
    import torch

    def function(x: torch.Tensor) -> torch.Tensor:
        return (x.sin() * 2 + x.cos()).sum(-1)

    x = torch.linspace(0, 1, 512).view(8, 64)
    compiled = torch.compile(function, fullgraph=True)
    send(bool(torch.allclose(compiled(x), function(x), atol=1e-5)))


def cell_process() -> ProbeResult:
    """A separate process, started by multiprocessing's fork server."""
    received: list[Any] = []
    ending = isolate.run(answer, "hello", seconds=120.0, threads=1, on_message=received.append)
    if ending.status is not Status.ok or len(received) != 1 or received[0][1] == os.getpid():
        return ProbeResult(
            False,
            f"{ending.status}: {ending.reason} (messages: {received})",
            "use Linux or macOS, and set TMPDIR to a writable folder, because lra starts processes "
            "through multiprocessing's forkserver",
        )
    ((_, process),) = received
    return ProbeResult(True, f"process {process} answered")


def memory_limit() -> ProbeResult:
    """A limit on the memory of a run, so that a run out of memory gets a row with this reason."""
    ending = isolate.run(
        devour, 8 * GIB, seconds=120.0, threads=1, memory_bytes=2 * GIB, on_message=lambda _: None
    )
    if ending.status is Status.out_of_memory:
        return ProbeResult(
            True, "a process with a limit of 2 GiB asked for 8 GiB and got the status out_of_memory"
        )
    return ProbeResult(
        False,
        "a process with a limit of 2 GiB asked for 8 GiB and got the status "
        f"{ending.status}: {ending.reason}",
        "set hardware.memory_limit_bytes=null, and limit the memory by ulimit -v or SLURM instead",
    )


def compiler() -> ProbeResult:
    """torch.compile, which needs a C++ compiler if the device is a CPU."""
    program = os.environ.get("CXX") or "g++"
    received: list[Any] = []
    ending = isolate.run(
        compile_something, None, seconds=300.0, threads=1, on_message=received.append
    )
    if ending.status is Status.ok and received == [True]:
        path = shutil.which(program) or program
        return ProbeResult(True, f"a compiled function gives correct results (compiler: {path})")
    missing = "" if shutil.which(program) else f"; there is no program {program} on PATH"
    return ProbeResult(
        False,
        f"{ending.status}: {ending.reason.splitlines()[0] if ending.reason else received}{missing}",
        "install a C++ compiler (on Debian and Ubuntu by: apt install g++), or set "
        "hardware.compile=false",
    )


# -- what torch can do on this machine ---------------------------------------------------------


def memory_trace() -> ProbeResult:
    """The trace of torch's memory allocator, from which lra counts the peak memory of tensors."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        torch.empty(2**20, dtype=torch.uint8, device="cuda").fill_(1)
        peak = torch.cuda.max_memory_allocated() - before
        return ProbeResult(
            peak == 2**20, f"for a tensor of 1 MiB, the CUDA allocator counted {peak:,} bytes"
        )
    from torch.profiler import ProfilerActivity, profile

    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # some builds trace their own start and stop
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as trace:
        torch.ones(2**20, dtype=torch.uint8)
    events = [e for e in trace.profiler.kineto_results.events() if e.name() == "[memory]"]
    counted = max((event.nbytes() for event in events), default=0)
    return ProbeResult(
        counted == 2**20,
        f"for a tensor of 1 MiB, the profiler of torch counted {counted:,} bytes",
        "this build of torch cannot count the peak memory of tensors; install the version of torch "
        "that constraints.txt names",
    )


def half_precision() -> ProbeResult:
    """bfloat16 under autocast."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    a = torch.linspace(-1, 1, 64 * 64, device=device).view(64, 64)
    with torch.autocast(device, dtype=torch.bfloat16):
        product = a @ a
    worst = float((product.float() - a @ a).abs().max())
    works = product.dtype is torch.bfloat16 and worst < 0.25  # far above bfloat16's rounding
    return ProbeResult(
        works,
        f"a matrix product on {device} has the type {product.dtype} and an error of {worst:.2g}",
        "set hardware.precision=float32",
    )


def gpu() -> ProbeResult:
    """A CUDA GPU that computes correctly."""
    import torch

    if not torch.cuda.is_available():
        build = torch.version.cuda
        reason = (
            f"torch is built for CUDA {build}, but finds no GPU"
            if build
            else "torch is built for CPUs only"
        )
        return ProbeResult(
            False,
            reason,
            "if this machine has a GPU, install its driver"
            + ("" if build else " and a CUDA build of torch (by pip, from PyPI)"),
        )
    x = torch.ones(256, 256, device="cuda")
    correct = float((x @ x).sum()) == 256.0**3
    card = torch.cuda.get_device_properties(0)
    bfloat16 = "with" if torch.cuda.is_bf16_supported() else "without"
    return ProbeResult(
        correct,
        f"{torch.cuda.device_count()} x {card.name}, {card.total_memory / GIB:.1f} GiB, "
        f"{bfloat16} bfloat16",
    )


def places() -> ProbeResult:
    """The devices that a sweep uses at the same time."""
    cpu = places_of(HardwareProfile(name="cpu"), timed=False)
    cores = words(cpu.all) or "any core"
    lines = [f"with hardware=cpu, a sweep executes {len(cpu.all)} trainings at once ({cores})"]
    all_gpus = gpus()
    if all_gpus:
        used = on_gpus(all_gpus)
        lines.append(f"with a GPU profile, it executes {len(used)} ({words(used)})")
        if len(all_gpus) > len(used):
            lines.append(f"it does not use {len(all_gpus) - len(used)} GPUs of another kind")
    return ProbeResult(True, "; ".join(lines))


def installed_files() -> ProbeResult:
    """The unchanged files of the wheel from which lra was installed."""
    from importlib.metadata import PackageNotFoundError, distribution, distributions

    try:
        ours = distribution("lra")
    except PackageNotFoundError:
        lines = []
    else:  # `ours.files` would omit missing files from Python 3.12 on
        lines = [*csv.reader((ours.read_text("RECORD") or "").splitlines())]
    files = {name: digest.partition("=")[2] for name, digest, _ in lines if name[:4] == "lra/"}
    if not files:
        return ProbeResult(True, "lra runs from a git clone")
    wrong = [
        name
        for name, digest in files.items()
        if digest and _compute_digest(ours.locate_file(name)) != digest
    ]
    if not wrong:
        return ProbeResult(True, f"all {len(files):,} files are the same as in the wheel of lra")
    packages = (package for package in distributions() if package.name != "lra")
    others = {package.name for package in packages if {*wrong} & {*map(str, package.files or ())}}
    names = ", ".join(sorted(others))
    return ProbeResult(
        False,
        f"{len(wrong):,} of {len(files):,} files are changed or missing, for example {wrong[0]}"
        + (f"; they have the same names as files of {names}" if others else ""),
        (f"first type `pip uninstall {' '.join(sorted(others))}`, then " if others else "")
        + "install lra again, from the same wheel or URL, by `pip install --force-reinstall "
        "--no-deps WHEEL`",
    )


def _compute_digest(file: object) -> str:
    """Return the SHA-256 of `file` in the encoding of RECORD; "" if the file is missing."""
    path = Path(str(file))
    content = hashlib.sha256(path.read_bytes()).digest() if path.is_file() else b""
    return base64.urlsafe_b64encode(content).decode().rstrip("=")


# -- where results, data and runs go -----------------------------------------------------------


def writable(folder: Path) -> ProbeResult:
    """A folder in which a file can be written, flushed and renamed."""
    existing = folder
    while not existing.exists():
        if existing.is_symlink():
            return ProbeResult(
                False, f"{existing.absolute()} is a link to a folder that does not exist",
                "make the folder that the link names, or remove the link",
            )  # fmt: skip
        existing = existing.parent
    try:
        with tempfile.NamedTemporaryFile(dir=existing, prefix=".lra-doctor-", delete=False) as file:
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
            "choose another folder, or remove files from this disk",
        )
    free = shutil.disk_usage(existing).free
    state = "" if folder.exists() else " (lra will make it)"
    return ProbeResult(True, f"{folder.absolute()}{state}, {free / GIB:.1f} GiB free")


def wandb_offline() -> ProbeResult:
    """A W&B run without an account and without a network."""
    import wandb

    with tempfile.TemporaryDirectory() as folder:
        run = wandb.init(
            mode="offline", dir=folder, project="lra-doctor", settings=wandb.Settings(silent=True)
        )
        run.log({"tried": 1})
        run.finish()
        wandb.teardown()  # waits until the file is complete; `finish` may return earlier
        files = list(Path(folder).rglob("*.wandb"))
        size = sum(file.stat().st_size for file in files)
    # An empty file of W&B has some bytes, too.
    return ProbeResult(size > 100, f"wrote {size:,} bytes", "choose logger=none")


def wandb_account() -> ProbeResult:
    """A W&B key that W&B's server accepts, for logger=wandb_online."""
    messages: list[object] = []
    ending = isolate.run(log_in, None, on_message=messages.append, seconds=ACCOUNT_S)
    refusal = str(messages[0]) if messages else f"W&B's server did not answer: {ending.reason}"
    return ProbeResult(
        not refusal,
        refusal or "W&B's server accepts the key",
        "if you want logger=wandb_online, type `wandb login`; without it, `wandb sync` can send "
        "offline runs later",
    )


def tensorboard() -> ProbeResult:
    """The packages that logger=tensorboard needs, and the program that shows its files."""
    missing = [name for name in ("tensorboardX", "tensorboard") if find_spec(name) is None]
    state = (
        f"{' and '.join(missing)} missing"
        if missing
        else "tensorboardX and tensorboard are installed"
    )
    return ProbeResult(
        not missing, state, "if you want logger=tensorboard, type: pip install 'lra[tensorboard]'"
    )


def hub() -> ProbeResult:
    """The data hub, from which lra downloads data sets such as that of task=text."""
    remedy = (
        "generated tasks and sample sources work offline; for other tasks, download the files on "
        "another machine, and type `lra data prepare TASK --from PATH`"
    )
    if os.environ.get("HF_HUB_OFFLINE", "") not in ("", "0"):
        return ProbeResult(False, "the variable HF_HUB_OFFLINE switches the data hub off", remedy)
    address = os.environ.get("HF_ENDPOINT", HUB)
    try:
        with urllib.request.urlopen(urllib.request.Request(address, method="HEAD"), timeout=4):
            return ProbeResult(True, f"{address} answers")
    except urllib.error.HTTPError as error:
        return ProbeResult(True, f"{address} answers ({error.code})")
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        return ProbeResult(False, f"{address} does not answer: {reason}", remedy)
