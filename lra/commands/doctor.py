"""`lra doctor`: check this machine or a results folder; measure the machine's noise or speed."""

import argparse
import importlib.metadata
import json
import os
import platform
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from lra.composition.arguments import Parser, add_results
from lra.conf.short_values import number_of
from lra.machine import probes
from lra.machine.probes import GIB, ProbeResult
from lra.runners.storage.audit import audit
from lra.terminal.screen import table

if TYPE_CHECKING:
    from lra.models.kernels.kernel import PublicKernel

PACKAGES = ("torch", "hydra-core", "omegaconf", "numpy", "pandas", "pyarrow", "matplotlib", "wandb",
            "datasets", "jaxtyping")  # fmt: skip
SPEED_VARIABLES = (
    "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "NVPL_", "BLIS_", "DNNL_", "ONEDNN_", "ATEN_",
    "TORCH_", "TORCHINDUCTOR_", "PYTORCH_", "CUDA_", "NVIDIA_", "CUBLAS_", "NCCL_", "MALLOC_",
    "LD_PRELOAD", "PYTHONHASHSEED", "PYTHONMALLOC",
)  # fmt: skip
"""Beginnings of the environment variables that change the speed of a program or its devices."""


class Check(NamedTuple):
    """One check of this machine."""

    name: str
    probe: Callable[[], ProbeResult]
    essential: bool = False
    """Whether every run needs it; if such a check fails, the exit code is 1."""


class Verdict(NamedTuple):
    """The result of one check."""

    name: str
    essential: bool
    report: ProbeResult

    @property
    def mark(self) -> str:
        """`ok`; `FAIL` if an essential check failed; `no` if another check failed."""
        if self.report.works:
            return "ok"
        return "FAIL" if self.essential else "no"


def checks(results: Path) -> list[Check]:
    """Return the checks of this machine in the order of printing; `results` must be writable."""
    from lra.choices.kernels import packages, try_package
    from lra.tasks.data.sources import data_root

    def probe_of(kernels: "list[PublicKernel]") -> Callable[[], ProbeResult]:
        def probe() -> ProbeResult:
            """The public kernels of a package."""
            return ProbeResult(*try_package(kernels))

        return probe

    return [
        Check("installed files", probes.installed_files, essential=True),
        Check("separate process", probes.cell_process, essential=True),
        Check("results folder", lambda: probes.writable(results), essential=True),
        Check("data folder", lambda: probes.writable(data_root()), essential=True),
        Check("peak memory count", probes.memory_trace),
        Check("memory limit", probes.memory_limit),
        Check("bfloat16 autocast", probes.half_precision),
        Check("torch.compile", probes.compiler),
        Check("GPU", probes.gpu),
        *(Check(f"kernels of {name}", probe_of(each)) for name, each in packages().items()),
        Check("places of a sweep", probes.places),
        Check("W&B offline", probes.wandb_offline),
        Check("W&B account", probes.wandb_account),
        Check("TensorBoard", probes.tensorboard),
        Check("data hub", probes.hub),
    ]


def machine_facts() -> dict[str, str]:
    """Return versions, processor, threads, memory and the variables that change speed."""
    import torch

    from lra.conf.processors import processor_words, processors
    from lra.runners.measurement.hardware import cpu_name
    from lra.version import lra_version

    entries = {
        "lra": lra_version(),
        "python": f"{platform.python_version()} on {platform.platform()}",
        **{name: package_version(name) for name in PACKAGES},
        "processor": f"{cpu_name()}, vectors {torch.backends.cpu.get_cpu_capability()}",
        "threads": f"{processor_words()} for this process; torch uses {torch.get_num_threads()} "
        f"threads here, and {processors()} in a timed run",
        "memory": memory(),
    }
    speed = sorted(name for name in os.environ if name.startswith(SPEED_VARIABLES))
    entries["environment"] = " ".join(f"{n}={os.environ[n]}" for n in speed) or "no speed variables"
    return entries


def package_version(package: str) -> str:
    """Return the version of a package, or `missing`."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "missing; install it by: pip install -e . -c constraints.txt"


def memory() -> str:
    """Return the machine's total and available memory, and the container's limit if it has one."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    words = [f"{total / GIB:.1f} GiB"]
    meminfo = Path("/proc/meminfo")
    if meminfo.is_file():
        lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
        words.append(f"{int(lines['MemAvailable'].split()[0]) * 1024 / GIB:.1f} GiB available")
    limit = Path("/sys/fs/cgroup/memory.max")
    if limit.is_file() and limit.read_text().strip().isdigit():
        words.append(f"the container may use {int(limit.read_text()) / GIB:.1f} GiB")
    return ", ".join(words)


def parser() -> argparse.ArgumentParser:
    """Return the arguments of `lra doctor`."""
    args = Parser(
        prog="lra doctor",
        description="Check what works on this machine, in half a minute, and print a remedy for "
        "each failure. The exit code is 1 if something fails that every run needs.",
        epilog="""\
examples:
  lra doctor          check the whole machine
  lra doctor --store  read every file of the results folder
  lra doctor --noise  which differences in time can this machine detect?
  lra doctor --rates  measure the speed of this machine for `lra plan`""",
    )
    add_results(args)
    args.add_argument(
        "--store", action="store_true",
        help="check the results folder instead of the machine: read every file and name the "
        "damaged files; the exit code is 1 if a file is damaged",
    )  # fmt: skip
    args.add_argument(
        "--noise", action="store_true",
        help="measure the machine's noise instead: time equal calls for half a minute, and print "
        "the smallest difference in time that this machine can detect and what disturbs its "
        "timings; the exit code is 1 if most calls are disturbed",
    )  # fmt: skip
    args.add_argument(
        "--rates", nargs="?", const="cpu", metavar="HARDWARE",
        help="measure the machine's speed instead: time matrix products, memory copies and "
        "operator calls for five seconds, and store the result for lra plan; HARDWARE is a "
        "hardware profile (default: cpu)",
    )  # fmt: skip
    args.add_argument("--json", action="store_true", help="print JSON")
    return args


def store(results: Path, *, as_json: bool) -> int:
    """Print the damaged and the leftover files of a results folder; return 1 if one is damaged."""
    findings = audit(results)
    if as_json:
        kinds = {"cells": findings.cells, "damaged": findings.damaged, "left": findings.leftovers}
        print(json.dumps(kinds, indent=2))
        return 1 if findings.damaged else 0
    for mark, sentences in (("FAIL", findings.damaged), ("left", findings.leftovers)):
        for sentence in sentences:
            print(f"{mark} {sentence}")
    print(
        f"{number_of(findings.cells, 'run')} in {results}; {len(findings.damaged) or 'no'} damaged"
    )
    return 1 if findings.damaged else 0


def main(argv: list[str]) -> int:
    """Print facts about this machine and its checks; return 1 if an essential check fails."""
    flags = parser()
    arguments = flags.parse_args(argv)
    if sum((arguments.store, arguments.noise, arguments.rates is not None)) > 1:
        flags.error("--store, --noise and --rates exclude each other: give one at a time")
    if arguments.rates is not None:
        from lra.machine.rates import rates

        return rates(arguments.rates, as_json=arguments.json)
    if arguments.store:
        return store(arguments.results, as_json=arguments.json)
    if arguments.noise:
        from lra.machine.noise import noise

        return noise(as_json=arguments.json)
    about = machine_facts()
    if not arguments.json:
        print(table(list(about.items()), indent=""))
        print()
    verdicts = []
    for check in checks(arguments.results):
        verdict = Verdict(check.name, check.essential, probes.run_probe(check.probe))
        verdicts.append(verdict)
        if not arguments.json:
            print(f"{verdict.mark:5}{verdict.name:25}{verdict.report.detail}", flush=True)
            if not verdict.report.works and verdict.report.way_out:
                print(f"{'':30}remedy: {verdict.report.way_out}", flush=True)
    failed = [verdict.name for verdict in verdicts if verdict.mark == "FAIL"]
    if arguments.json:
        tried = [
            {"name": v.name, "mark": v.mark, "essential": v.essential, **v.report._asdict()}
            for v in verdicts
        ]
        print(json.dumps({"facts": about, "checks": tried, "failed": failed}, indent=2))
    else:
        print(f"\n{'not ready: ' + ', '.join(failed) if failed else 'ready'}")
    return 1 if failed else 0
