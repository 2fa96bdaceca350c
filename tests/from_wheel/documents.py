"""Runs what README and docs show, from an installed wheel, in an empty folder: `make documented`.

    python -m tests.from_wheel.documents BIN [--limit 600] [--only python tutorial] [--log FILE]

BIN is the folder of programs of an environment that holds the wheel and nothing of this clone. Each
command runs as written; what stands for something of the reader's is put in as
test_documented_commands.py does, and the folder has the reader's own files. Where the answer names
what is missing here, the command runs again with that changed: `task.source=sample` in the place of
data that only their publishers have, a dry run in the place of a GPU. What has not ended at the
limit is stopped by Ctrl-C, and runs again with `scale=tiny`. Exit code 1 where one does not do what
its page says.
"""

import argparse
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from textwrap import dedent
from typing import NamedTuple

from tests import test_documented_commands as documented
from tests.test_documented_commands import BROUGHT, INLINE, STANDS_FOR, commands, own_files

PAGES = [page for page in documented.PAGES if page.stem not in ("CHANGELOG", "CONTRIBUTING")]
"""But for the two that speak to those who have a clone."""
CLONE = re.compile(r"reports/published|tests/|^ *make ")
"""What only a clone has."""
SAYS_SO = re.compile(r"clone|copy of\s+the repository")
"""Stands before such a command, or behind it, on its page."""
BLOCK = re.compile(r"^```(?:bash|(\w+))?\n[\s\S]*?^```|(?:^    .+\n)+", re.MULTILINE)
"""Its group is another language than that of a shell."""
FENCED = re.compile(r"^```python\n([\s\S]*?)^```", re.MULTILINE)
WRONG = "WRONG"
CHANGES = {BROUGHT: "task.source=sample", "PyTorch finds no GPU": "runner.dry_run=true"}
"""What an answer says is missing, and the word to put behind the command instead."""
ANSWERS = {
    "run": f"{BROUGHT}|is longer than the text: the"  # in a sample
    "|task.path must name|reads no files",  # of an archive
    "generate": "has no causal language model|the prompt from stdin is empty",
    "compare": "unknown (model|value|sweep|setting)|no results of",
    "verify": "no CUDA|(sees|finds) no GPU|No module named 'fla'|checks passed, [1-9]",
    "data": "is missing[:;,] |are not prepared|cannot be reached|contains no (WikiText|FASTA file)",
}
"""Right answers to commands whose cells, GPU or archives are not here; checks that fail are one."""
STORED = {
    "listops": ["model=linear", "task=listops", "task.source=sample"],
    "text": ["model=linear", "task=text", "task.source=sample"],
    "text8": ["model=linear", "task=text8", "task.source=sample"],
}
"""Short trainings, whose keys stand for those of the reader."""
SHORT = ("optim.steps=2", "optim.warmup_steps=0", "logger=none", "report=false")
WEIGHTS = """
import lra
from safetensors.torch import save_file
for name in ("linear", "softmax"):
    save_file(lra.model(name, task="listops").state_dict(), f"{name}.safetensors")
"""
"""Makes the weights that the reader has trained elsewhere."""
PREAMBLE = {
    "decoding": """
import lra, torch
model = lra.model("softmax", task="text8")
prompts = [torch.tensor([1, 2, 3])]
prompt, token = torch.ones(1, 4, dtype=torch.long), torch.ones(1, dtype=torch.long)
batch_size, memory = 1, 16
""",
    "tasks": """
open("stories.jsonl", "w").write('{"text": "Once"}\\n{"text": "upon"}\\n')
""",
}
"""What the sentences around the Python of a page have made before it."""
VERIFIED = {"own-module": {'"""Every token': "mixer", "import lra\n": "layers"}}
"""Pages whose Python are files of a package, which their commands verify: how each file begins."""


class Done(NamedTuple):
    """How a command ended."""

    code: int | None
    """None: it was stopped at the limit."""
    said: str
    seconds: float


class Reader:
    """Somebody with the wheel in an environment, and a folder of their own."""

    def __init__(self, programs: Path, folder: Path, limit: float, *, tiny: bool) -> None:
        self.programs, self.folder, self.limit, self.tiny = programs, folder, limit, tiny
        path = f"{programs}{os.pathsep}{os.environ['PATH']}"
        self.environment = {
            **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
            "PATH": path, "LRA_DATA": str(folder / "data"), "WANDB_MODE": "offline",
        }  # fmt: skip
        self.keys: dict[str, str] = {}

    def runs(self, words: Sequence[str], limit: float | None = None) -> Done:
        """Run a program to its end, or stop it at the limit."""
        begun = time.monotonic()
        with tempfile.TemporaryFile("w+") as said:
            program = subprocess.Popen(
                words, cwd=self.folder, env=self.environment, stdin=subprocess.DEVNULL,
                stdout=said, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
            code: int | None
            try:
                code = program.wait(limit or self.limit)
            except subprocess.TimeoutExpired:
                code = None
                os.killpg(program.pid, signal.SIGINT)
                try:
                    program.wait(60)
                except subprocess.TimeoutExpired:
                    os.killpg(program.pid, signal.SIGKILL)
                    program.wait()
            said.seek(0)
            return Done(code, said.read(), time.monotonic() - begun)

    def trains(self) -> None:
        """Fill the store."""
        for name, words in STORED.items():
            done = self.runs(["lra", "run", *words, *SHORT, f"sweep={name}"], 600)
            if done.code:
                raise SystemExit(f"the store could not be made: {done.said}")
            (cell,) = (self.folder / "results/sweeps" / name).iterdir()
            self.keys[name] = cell.name
        quickstart = [*STORED["listops"], *SHORT, "sweep=quickstart"]
        for words in (
            ["lra", "run", *quickstart],
            ["lra", "submit", *quickstart],  # complete: a plan and no workers
            ["lra", "report", "--sweep", "quickstart", "--publish", "rows.jsonl"],
            [str(self.programs / "python"), "-c", WEIGHTS],
        ):
            if (done := self.runs(words, 600)).code:
                raise SystemExit(f"the store could not be made: {done.said}")

    def words(self, command: str) -> list[str]:
        """Return the words with what the reader puts in."""
        task = next((t for t in ("text8", "text") if f"task={t}" in command), "listops")
        task = "text8" if "lra generate" in command else task
        text = {word: value for word, value in STANDS_FOR.items() if "h100" not in word}
        del text["cuda"]
        family = "softmax" if "model=softmax" in command else "linear"
        text["runner.weights=mine.safetensors"] = f"runner.weights={family}.safetensors"
        return [
            text.get(word, word).format(key=self.keys[task]) if word in text else word
            for word in shlex.split(command)
        ]

    def python(self, *words: str) -> tuple[str, str]:
        """Run Python, and return a verdict and why."""
        done = self.runs([str(self.programs / "python"), *words])
        return (WRONG, done.said) if done.code else ("ran", f"in {done.seconds:.0f} s")

    def judges(self, command: str) -> tuple[str, str]:
        """Run a command as written, and changed where it must be; return a verdict and why."""
        words, added = self.words(command), []
        for _ in range(len(CHANGES) + 2):
            done = self.runs([*words, *added])
            behind = f" with {' '.join(added)}" if added else ""
            if "Traceback" in done.said or "this is a bug" in done.said:
                return WRONG, f"{behind}: {done.said}"
            if done.code == 0:
                return "ran", f"in {done.seconds:.0f} s{behind}"
            tiny = "scale=tiny"
            if done.code is None:
                if words[1] != "run" or not self.tiny or tiny in (*words, *added):
                    return "stopped", f"at {self.limit:.0f} s, without a fault until then{behind}"
                added.append(tiny)
                continue
            change = next(
                (w for text, w in CHANGES.items() if re.search(text, done.said) and w not in added),
                None,
            )
            if change is None or words[1] not in ("run", "plan"):
                if re.search(ANSWERS.get(words[1], BROUGHT), done.said):
                    return "answered", done.said.strip().splitlines()[-1][:160]
                return WRONG, f"exit code {done.code}{behind}: {done.said}"
            added.append(change)
        return WRONG, f"no end of changes: {added}"


def clone_commands() -> Iterator[tuple[str, str, bool]]:
    """Yield page, line and whether the page says so, of what only a clone can run."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        begins = bool(SAYS_SO.search(text[:700]))
        for match in (*BLOCK.finditer(text), *INLINE.finditer(text)):
            found = next((line for line in match[0].splitlines() if CLONE.search(line)), None)
            if found is not None and not (match.re is BLOCK and match[1]):
                around = text[max(0, match.start() - 700) : match.end() + 200]
                yield page.stem, found.strip(), begins or bool(SAYS_SO.search(around))


def with_code_of_pages(folder: Path) -> None:
    """Put the mixer and the layers that pages show into the files that they name."""
    for page in (page for page in PAGES if page.stem in VERIFIED):
        shown = FENCED.findall(page.read_text(encoding="utf-8"))
        for begin, file in VERIFIED[page.stem].items():
            (code,) = (each for each in shown if each.startswith(begin))
            target = folder / "my_package" / f"{file}.py"
            target.write_text(f"{target.read_text()}\n\n{code}")


def python_of(page: Path) -> str:
    """Return the Python of a page, whose parts go on from each other; "" where there is none."""
    text = page.read_text(encoding="utf-8")
    fenced = FENCED.findall(text)
    indented = re.findall(r"(?:^    .+\n|^\n)+", text, re.MULTILINE)
    found = [*fenced, *(dedent(block) for block in indented if "    import lra\n" in block)]
    if not found or page.stem in VERIFIED:
        return ""
    return PREAMBLE.get(page.stem, "") + "\n".join(found)


def main() -> int:
    """Run all and say how each ended."""
    args = argparse.ArgumentParser()
    args.add_argument("programs", type=lambda text: Path(text).absolute())
    args.add_argument("--limit", type=float, default=600.0, help="seconds of a command")
    args.add_argument("--once", action="store_true", help="not again with scale=tiny")
    args.add_argument("--only", nargs="*", default=[], metavar="PAGE")
    args.add_argument("--log", type=lambda text: Path(text).absolute(), default="documented.log")
    chosen = args.parse_args()
    # Jobs in the background of a shell, and what they start, ignore Ctrl-C; here it ends commands.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    pages = [page for page in PAGES if not chosen.only or page.stem in chosen.only]
    found = [(page.removesuffix(".md"), command) for command, page in commands(PAGES).items()]
    # Trainings last, and behind them what takes away the cells that others read.
    found.sort(key=lambda pair: ("lra clean" in pair[1], pair[1].startswith("lra run")))
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder, chosen.log.open("w") as log:
        reader = Reader(chosen.programs, Path(folder), chosen.limit, tiny=not chosen.once)
        own_files(reader.folder)
        with_code_of_pages(reader.folder)
        reader.trains()

        def note(page: str, what: str, verdict: str, why: str) -> None:
            counts[verdict] += 1
            print(f"{verdict:9}{page}: {what}: {why}", file=log, flush=True)
            if verdict == WRONG:
                print(f"{page}: {what}: {why[-2000:]}", flush=True)

        for page, line, said in clone_commands():
            if page in {each.stem for each in pages}:
                why = "as its page says" if said else "needs a clone, and its page does not say so"
                note(page, line, "clone" if said else WRONG, why)
        for page, command in found:
            if page in {each.stem for each in pages} and not CLONE.search(command):
                note(page, command, *reader.judges(command))
        for each in pages:
            if code := python_of(each):
                note(each.stem, "its Python", *reader.python("-c", code))
            if each.stem == "python":
                note(each.stem, "its examples", *reader.python("-m", "doctest", str(each)))
    print(", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items())))
    print(f"all: {chosen.log}")
    return int(WRONG in counts)


if __name__ == "__main__":
    sys.exit(main())
