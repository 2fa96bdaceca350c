"""What public kernels give on one GPU: their tests, and both forms of a training step beside SDPA.

    python tests/benchmarks/gpu_kernels.py --out ROWS                         # about 10 minutes
    python tests/benchmarks/gpu_kernels.py --out ROWS --device cpu --lengths 256 --patience 20

First `pytest -m gpu` runs the tests of kernels. Then, shortest length first, `lra run` measures
training steps of the families whose operations have kernels (two layers of width 512, 8 heads, on a
GPU in bfloat16), once with `hardware.kernels=own` and once with `public`; SDPA is timed in turns
with each. Each part has a limit of seconds. A part that is cut short keeps the rows of its finished
runs: after each part, ROWS/rows.jsonl has all rows so far, and ROWS/parts.jsonl how parts ended.
Started again, it skips finished runs.

On a CPU `public` would be refused, so that `auto` takes its place, which falls back to our forms.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.benchmarks.frame import append, say_machine

ROOT = Path(__file__).resolve().parents[2]
CHUNKED = "retnet,gla,mamba2,delta_net,gated_delta_net,kimi_delta,linear,performer,mamba"
MASKED = "sliding_window,local,longformer,big_bird,sparse_transformer"
NEIGHBOURS = ("model.mixer.block=128", "model.mixer.look_back=1", "model.mixer.look_forward=1")
SWEEPS = {
    "masked": (f"model={MASKED}",),
    "local_128": ("model=local", *NEIGHBOURS),
    "chunked": (f"model={CHUNKED}",),
}
"""Families by what computes them: FlexAttention, the same with a look at neighbours, fla-core."""
SEQUENCES = {4096: 8, 16384: 2, 65536: 1}
"""Sequences of a batch by length, as in the measured tables."""
TEST_SECONDS, LENGTH_SECONDS = 150.0, {4096: 120.0, 16384: 180.0, 65536: 150.0}
"""Limits of parts: the tests, and all runs of one length together."""


def limited(words: Sequence[str], seconds: float, log: Path) -> tuple[str, float]:
    """Run a command with a limit of seconds; return how it ended, and the seconds it took."""
    begun = time.monotonic()
    with log.open("a", encoding="utf-8") as opened:
        print(*words, file=opened, flush=True)
        process = subprocess.Popen(
            words, cwd=ROOT, stdout=opened, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            code = process.wait(max(1.0, seconds))
            ended = "complete" if code == 0 else f"failed with exit code {code}"
        except subprocess.TimeoutExpired:
            ended = f"cut short after {seconds:.0f} s"
            for number in (signal.SIGINT, signal.SIGKILL):  # first it may end by itself
                os.killpg(process.pid, number)
                try:
                    process.wait(10)
                    break
                except subprocess.TimeoutExpired:
                    continue
    return ended, time.monotonic() - begun


def run_words(
    length: int, form: str, words: Sequence[str], name: str, arguments: argparse.Namespace
) -> list[str]:
    """Return the command of one sweep at one length."""
    hardware = "cpu" if arguments.device == "cpu" else arguments.hardware
    budget = length * SEQUENCES.get(length, 2)
    command = [
        sys.executable, "-m", "lra", "run", "-m", "+experiment=families",
        f"sweep=kernels_{name}_{form}_{length}", "size=large", "model.backbone.depth=2",
        f"hardware={hardware}", f"hardware.token_budget={budget}", "runner.modes=[step]",
        f"runner.lengths=[{length}]", f"runner.reference_max_length={{sdpa: {length}}}",
        "runner.repeat_limit_s=2", "runner.retry=[]", f"results={arguments.out / 'results'}",
        *words,
    ]  # fmt: skip
    return command if arguments.without_option else [*command, f"hardware.kernels={form}"]


def keep_rows(out: Path) -> int:
    """Write the rows of all finished runs into one file; return how many there are."""
    files = sorted((out / "results").glob("cells/*/*/rows-*.jsonl"))
    lines = [line for file in files for line in file.read_text("utf-8").splitlines()]
    (out / "rows.jsonl").write_text("".join(f"{line}\n" for line in lines), "utf-8")
    return len(lines)


def main() -> None:
    """Run the tests, then the sweeps, and keep rows after each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="an empty folder for rows")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--hardware", default="h100", help="hardware profile of the GPU")
    parser.add_argument("--lengths", type=int, nargs="+", default=[*LENGTH_SECONDS])
    parser.add_argument("--sweeps", nargs="+", choices=SWEEPS, default=[*SWEEPS])
    parser.add_argument("--patience", type=float, default=1.0, help="multiplies all limits")
    parser.add_argument("--without-option", action="store_true", help="leave hardware.kernels out")
    arguments = parser.parse_args()
    arguments.out = arguments.out.resolve()
    arguments.out.mkdir(parents=True, exist_ok=True)
    say_machine()
    parts, log = arguments.out / "parts.jsonl", arguments.out / "log.txt"
    tests = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "tests/models/kernels"]
    ended, seconds = limited(tests, TEST_SECONDS * arguments.patience, log)
    append(parts, [{"part": "tests", "ended": ended, "seconds": seconds}])
    print(f"tests: {ended}, {seconds:.0f} s", flush=True)
    forms = ("own", "auto" if arguments.device == "cpu" else "public")
    for length in sorted(arguments.lengths):
        left = LENGTH_SECONDS.get(length, 60.0) * arguments.patience
        pairs = [(name, form) for name in arguments.sweeps for form in forms]
        for place, (name, form) in enumerate(pairs):
            share = left / (len(pairs) - place)  # what earlier ones have left over is shared
            words = run_words(length, form, SWEEPS[name], name, arguments)
            ended, seconds = limited(words, share, log)
            left -= seconds
            rows = keep_rows(arguments.out)
            row = {"part": name, "form": form, "length": length, "ended": ended}
            append(parts, [{**row, "seconds": seconds, "rows": rows}])
            print(f"{length} {name} {form}: {ended}, {seconds:.0f} s, {rows} rows", flush=True)


if __name__ == "__main__":
    main()
