"""The verbs of `lra`, and how errors reach the person at the keyboard.

Exit codes: 0 done; 1 a check failed, a cell crashed or was stopped from outside, a lone cell
failed, or a bug was met; 2 something to correct in the command, its configuration, its files or
their disk; 130 interrupted by Ctrl-C, 143 by SIGTERM, 138 by SIGUSR1.
"""

import importlib
import os
import re
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from lra.conf import rooms
from lra.conf.cached_texts import ANOTHER, holds_cache
from lra.conf.short_values import LONGEST, LONGEST_REASON, short
from lra.conf.system_errors import is_fault, leads_nowhere, out_of_memory, reason, way_out
from lra.errors import CommandError, near
from lra.terminal import streams as standard_streams
from lra.terminal.screen import plainly_written

MOST_CHARACTERS = 2_000
"""Of a message."""
alone = False
"""Whether this process is the program `lra` and nothing more, so that others may be its forks."""
OURS = [Path(__file__).parent, *(Path(rooms.__file__).parents[1] / room for room in rooms.ROOMS)]
"""Folders of our own sources."""


class Verb(NamedTuple):
    """One word of the command line; `module` has a function `main(argv) -> exit code`."""

    module: str
    summary: str


VERBS = {
    "run": Verb(
        "lra.commands.run", "train and measure; -m for a sweep, +experiment=NAME for a preset"
    ),
    "plan": Verb(
        "lra.commands.plan", "what a command of `lra run` would take: hours and memory by cell"
    ),
    "choose": Verb(
        "lra.commands.choose", "which family for a length and a machine: what fits, time, quality"
    ),
    "submit": Verb(
        "lra.commands.submit", "a sweep for workers in the background, here or on a cluster"
    ),
    "watch": Verb("lra.commands.watch", "how far a submitted sweep is, and who works on it"),
    "work": Verb("lra.commands.work", "a worker that runs cells of a submitted sweep"),
    "report": Verb("lra.commands.report", "tables and figures from stored results"),
    "compare": Verb(
        "lra.commands.compare", "is one model better than another? differences, intervals, p-values"
    ),
    "dashboard": Verb("lra.commands.dashboard", "a script that saves a W&B workspace over runs"),
    "list": Verb("lra.commands.list", "models, tasks, hardware, experiments: what can be chosen"),
    "data": Verb("lra.commands.data", "prepare, verify or show the data of a task"),
    "doctor": Verb(
        "lra.commands.doctor", "what works on this machine, each thing tried, and the way out"
    ),
    "verify": Verb("lra.commands.verify", "the contract checks on a mixer, ours or yours"),
    "generate": Verb(
        "lra.commands.generate", "text that a trained language model writes behind a prompt"
    ),
    "show": Verb(
        "lra.commands.show", "one stored result: configuration, rows, the command to repeat it"
    ),
    "clean": Verb("lra.commands.clean", "what fills the disk, and its removal"),
    "completion": Verb(
        "lra.commands.completion", "what lets bash, zsh or fish complete words with TAB"
    ),
}

HELP = """\
lra: a benchmark harness for models of long sequences.

usage: lra VERB [arguments]      lra VERB --help      lra --version

{verbs}

examples:
  lra run +experiment=quickstart              seven mixers, trained and measured, with figures
  lra run model=performer task=listops        one run
  lra list models                             the names to choose from
  lra doctor                                  is this machine ready?

LRA_DEBUG=1 shows a full traceback for every error.
"""

RUN_HELP = """\
lra run: train models on tasks and measure their cost; every cell in a process of its own.

usage: lra run [-m] [-q | -v] [GROUP=NAME ...] [+experiment=NAME] [KEY=VALUE ...] [Hydra's flags]

  -m, --multirun   a sweep: every combination of the values given
  -q, --quiet      say only which cells failed, and how all of it ended
  -v, --verbose    say every phase of every cell, its key, its files and its checkpoints

choices:
{choices}

examples:
  lra run model=performer task=listops                     one training run
  lra run -m model=linear,softmax seed=0,1,2               a sweep: every combination
  lra run -m model=all; model=causal; model=exact_attention  every model, or those of a kind
  lra run +experiment=quickstart                           a preset; those that sweep need no -m
  lra run +experiment=lra_table1 scale=tiny seed=0         a published table in small forms
  lra run model=linear optim.steps=500 model.mixer.chunk=64  single values
  lra run -m +experiment=quickstart runner.dry_run=true    the cells, done and to do
  lra run -m +experiment=quickstart runner.shard=2/8       the second eighth of them
  lra run model=mine --config-dir ./conf plugins=my_pkg    your own model
  lra run model=linear --cfg job                           print what would run, of a sweep each run

What wins: files of groups < protocol < experiment < scale < size=, optim= < other words given here;
within a protocol, an experiment or a scale: all else < for_task < for_model < for_runner < nested.

What happens goes to stdout: a line for each cell begun and ended and, where stdout is no terminal,
for each one under way now and then. Errors and refusals go to stderr.
A sweep that is run again skips what is complete. `lra list` says what each name stands for,
`lra show CELL` how to repeat one result. Flags are explained by `lra run --hydra-help`.
"""


def main(argv: list[str]) -> int:
    """Run one command line and return its exit code.

    Args:
        argv: The words after `lra`.
    """
    # PyArrow's own allocator reserves a GiB of addresses, which a limited shell does not have.
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    with plainly_written():
        return _ended(argv)


def _ended(argv: list[str]) -> int:
    try:
        try:
            code = dispatch(argv)
        except SystemExit:
            sys.stdout.flush()
            raise
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        standard_streams.give_up_output()  # the reader left, as in `lra list | head`
        return 141
    except Exception as error:  # noqa: BLE001  the last stop: nothing is swallowed, all is printed
        if any(isinstance(cause, KeyboardInterrupt) for cause in _causes(error)):
            print("interrupted", file=sys.stderr)
            return 130
        if isinstance(error, standard_streams.OutputError):
            standard_streams.give_up_output()
        return explain(error, argv)


def _causes(error: BaseException) -> list[BaseException]:
    """Return an error and all that led to it."""
    causes = [error]
    for cause in causes:
        reasons = (cause.__cause__, cause.__context__)
        causes += [reason for reason in reasons if reason is not None and reason not in causes]
    return causes


def _memory_error(error: BaseException) -> str:
    """Return what was said where memory was exhausted; "" where it was not."""
    found = next((cause for cause in _causes(error) if out_of_memory(cause)), None)
    return "" if found is None else short(str(found) or type(found).__name__, LONGEST_REASON)


def dispatch(argv: list[str]) -> int:
    """Find the verb and hand it the remaining words untouched."""
    if ended := [word for word in argv if word.endswith("\r")]:
        raise CommandError(
            f"{short(ascii(ended[0]))} ends with a carriage return, as each line of a script with "
            "Windows line ends does: save the script with Unix line ends (sed -i 's/\\r$//' FILE)"
        )
    if "_ARGCOMPLETE" in os.environ:  # the script of a shell asks, by a call without words
        argv = ["completion"]
    if not argv or argv[0] in ("-h", "--help", "help"):
        verbs = "\n".join(f"  {name:10} {verb.summary}" for name, verb in VERBS.items())
        print(HELP.format(verbs=verbs), end="")
        return 0 if argv else 2
    word, rest = argv[0], argv[1:]
    if word == "--version":
        from lra.version import lra_version

        print(f"lra {lra_version()}")
        return 0
    if word not in VERBS:
        matches = near(word, VERBS)
        hint = f" Did you mean `lra {matches[0]}`?" if matches else ""
        raise CommandError(
            f"unknown verb {word!r}.{hint} Verbs: {', '.join(VERBS)}; `lra --help` explains them."
        )
    if word == "run" and ("-h" in rest or "--help" in rest):
        print(RUN_HELP.format(choices=run_choices()), end="")
        return 0
    from lra.tasks.data.signals import stoppable  # what a list does not need

    with stoppable():
        return int(importlib.import_module(VERBS[word].module).main(rest))


def run_choices() -> str:
    """Return one line per group of the configuration, with the names that it offers."""
    from lra.composition.catalogue import names, words

    return "\n".join(
        f"  {word + '=':13} {' '.join(names(group))}" for group, word in words().items()
    )


def explain(error: Exception, argv: Sequence[str] = ()) -> int:
    """Print `error` as one message where a person can act on it, else as a traceback.

    Args:
        error: What was raised.
        argv: The words that led to it: a message has the beginning of very long ones.
    """
    if said := _memory_error(error):
        error = CommandError(
            f"not enough memory ({said}): what was written stays. Give this command more (see "
            "ulimit -v, the limit of the job, or what else runs here), or less to do"
        ).with_traceback(error.__traceback__)
    if isinstance(error, ModuleNotFoundError) and error.name == "torch":
        error = CommandError(
            "torch is not installed, and this command needs it: pip install torch"
        ).with_traceback(error.__traceback__)
    if shows_tracebacks() or not is_actionable(error):
        traceback.print_exception(error)
    if is_actionable(error):
        from lra.terminal.console import complain

        complain(short_message(message(error), argv))
        return 2
    where = _in_code_of_ones_own(error)
    blame = f"a bug at {where}" if where else "a bug in lra or in a package it uses"
    print(f"lra: this is {blame}, not in your input.", file=sys.stderr)
    return 1


def _in_code_of_ones_own(error: Exception) -> str:
    """Return where the user's own code, which lra called, raised an error; "" where it did not."""
    import sysconfig

    packages = [Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib")]
    frames = traceback.extract_tb(error.__traceback__)
    called = next((n for n, at in enumerate(frames) if Path(at.filename) == Path(__file__)), 0)
    for frame in reversed(frames[called:]):
        file = Path(frame.filename)
        if any(file.is_relative_to(folder) for folder in OURS):
            return ""
        if file.is_file() and not any(file.is_relative_to(folder) for folder in packages):
            return f"{file}:{frame.lineno} in {frame.name}"
    return ""


def shows_tracebacks() -> bool:
    """Tell whether LRA_DEBUG asks for the traceback of every error."""
    return os.environ.get("LRA_DEBUG", "") not in ("", "0")


def message(error: Exception) -> str:
    """Return the text of `error`; those of the system name file and reason, faults the way out."""
    if isinstance(error, OSError) and error.strerror:
        said = error.filename and (is_fault(error) or leads_nowhere(error.filename))
        remedy = way_out(error, reading=True) if said else ""
        if holds_cache(error.filename):
            remedy = ANOTHER
        return reason(error) + (f"; {remedy}" if remedy else "")
    return str(error).strip() or type(error).__name__


def short_message(text: str, argv: Sequence[str]) -> str:
    """Return a message with no more than the beginning of long words and values of `argv`."""
    values = [value for word in argv for value in (word, *re.split(r"[=,]", word))]
    for value in sorted({v for v in values if len(v) > 2 * LONGEST}, key=len, reverse=True):
        text = text.replace(value, short(value))
    return text if len(text) <= MOST_CHARACTERS else f"{text[: MOST_CHARACTERS // 2]} …"


def is_actionable(error: Exception) -> bool:
    """Tell an error that the user can mend from a bug.

    Mendable are: the error types that our packages define; operating-system errors (missing file,
    no permission, full disk); refusals by Hydra and OmegaConf; and a ValueError that our own code
    raises. A ValueError from inside numpy or torch is a bug and keeps its traceback.
    """
    origin = type(error).__module__.partition(".")[0]
    if origin in ("lra", "hydra", "omegaconf") or isinstance(error, OSError):
        return True
    if not isinstance(error, ValueError) or error.__traceback__ is None:
        return False
    *_, (last, _) = traceback.walk_tb(error.__traceback__)
    file = Path(last.f_code.co_filename)
    return any(file.is_relative_to(folder) for folder in OURS)
