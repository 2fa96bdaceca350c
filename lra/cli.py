"""The verbs of `lra`, and the messages that a user gets for an error.

Exit codes: 0: success. 1: a check failed, a run crashed or was stopped from outside, a single run
failed, or lra has a bug. 2: the user must correct the command, the configuration, a file or the
disk. 130: interrupted by Ctrl-C; 143: by SIGTERM; 138: by SIGUSR1.
"""

import importlib
import os
import re
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from lra.conf import rooms
from lra.conf.cached_texts import ANOTHER, holds_cache
from lra.conf.short_values import LONGEST, LONGEST_REASON, short
from lra.conf.system_errors import is_fault, leads_nowhere, out_of_memory, reason, way_out
from lra.errors import CommandError, near
from lra.terminal import streams as standard_streams
from lra.terminal.screen import plainly_written

MOST_CHARACTERS, WIDTH = 2_000, 100
"""The longest message, and the longest line of help, in characters."""
alone = False
"""Whether this process is the program `lra` itself, so that runs may be forks of it."""
OURS = [Path(__file__).parent, *(Path(rooms.__file__).parents[1] / room for room in rooms.ROOMS)]
"""Folders with the source files of lra."""


VERBS = {
    "run": "train a model on a task, or measure its speed and memory",
    "plan": "forecast the hours and the memory of a command of `lra run`",
    "choose": "find the models that suit a sequence length and a machine",
    "submit": "run a sweep in the background, here or on a cluster",
    "watch": "show how far a sweep is, and which workers run it",
    "work": "start a worker for a submitted sweep",
    "report": "write tables, figures and a page from stored results",
    "compare": "test whether one model is better than another, with p-values",
    "dashboard": "print a script that makes a W&B workspace",
    "list": "list models, tasks, hardware and experiments to choose from",
    "data": "prepare, check or look at the data of a task",
    "doctor": "check this machine, with a remedy for each problem",
    "verify": "check a mixer of lra or your own mixer: masks, padding, states and cost",
    "generate": "write text with a trained language model",
    "show": "show one stored run: its score, settings, and how to rerun it",
    "clean": "show what fills the disk, and remove it",
    "completion": "make your shell complete arguments with TAB",
}
"""A summary of each verb; `lra.commands.VERB` has a function `main(argv) -> exit code`."""

HELP = """\
lra: a benchmark harness for models of long sequences.

usage: lra VERB [arguments]      lra VERB --help      lra --version

examples:
  lra run +experiment=quickstart              train and measure seven models, with figures
  lra run model=performer task=listops        train one model
  lra list models                             print the names to choose from
  lra doctor                                  check that this machine is ready

verbs:
{verbs}

Set LRA_DEBUG=1 to see the full traceback of every error.
"""

RUN_HELP = """\
lra run: train models on tasks, or measure their speed and memory.

usage: lra run [-m] [-q | -v] [GROUP=NAME ...] [+experiment=NAME] [KEY=VALUE ...] [Hydra's flags]

examples:
  lra run model=performer task=listops                       train one model
  lra run -m model=linear,softmax seed=0,1,2                 a sweep of every combination
  lra run -m model=all                                       every model (or model=causal)
  lra run +experiment=quickstart                             a prepared experiment
  lra run +experiment=lra_table1 scale=tiny seed=0           a published table, much smaller
  lra run model=linear optim.steps=500 model.mixer.chunk=64  change single options
  lra run -m +experiment=quickstart runner.dry_run=true      print the runs, and start none
  lra run -m +experiment=quickstart runner.shard=2/8         the second eighth of the runs
  lra run model=mine --config-dir ./conf plugins=my_pkg      your own model
  lra run model=linear --cfg job                             print the whole configuration

options:
  -m, --multirun   run a sweep: every combination of the values that you give
  -q, --quiet      print failures and the final lines only
  -v, --verbose    print every phase of every run, its key, its files and its checkpoints

names to choose from (`lra list` explains each):
{choices}

Each run has a separate process, so a crash stops one run and the sweep continues. Give the same
command again to resume a sweep: finished runs are skipped. `lra show RUN` prints how to rerun one.

If an option is set in several places, the last of these wins: the file of the model or task; the
protocol; the experiment; the scale; size= and optim=; other arguments of the command. Within one
file of a protocol, an experiment or a scale, the order is: top level; for_task; for_model;
for_runner; nested tables.

Progress goes to stdout and errors go to stderr. `lra run --hydra-help` explains Hydra's flags.
"""


def main(argv: list[str]) -> int:
    """Run one command line, whose arguments after `lra` are `argv`; return its exit code."""
    # PyArrow's own allocator reserves a GiB of addresses, which fails under a small `ulimit -v`.
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    with plainly_written():
        return _dispatch_and_catch(argv)


def _dispatch_and_catch(argv: list[str]) -> int:
    """Run one command line; print any error and return the exit code that belongs to it."""
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
        standard_streams.give_up_output()  # the reader of a pipe ended, as in `lra list | head`
        return 141
    except Exception as error:  # noqa: BLE001  `explain` prints every error that reaches this line
        if any(isinstance(cause, KeyboardInterrupt) for cause in _collect_causes(error)):
            print("interrupted", file=sys.stderr)
            return 130
        if isinstance(error, standard_streams.OutputError):
            standard_streams.give_up_output()
        return explain(error, argv)


def _collect_causes(error: BaseException) -> list[BaseException]:
    """Return `error` and all errors that Python recorded as its causes, directly or indirectly."""
    causes = [error]
    for cause in causes:  # the list grows while it is read
        reasons = (cause.__cause__, cause.__context__)
        causes += [reason for reason in reasons if reason is not None and reason not in causes]
    return causes


def _describe_memory_error(error: BaseException) -> str:
    """Return the text of the out-of-memory error among the causes of `error`; "" without one."""
    exhausted = next((cause for cause in _collect_causes(error) if out_of_memory(cause)), None)
    if exhausted is None:
        return ""
    return short(str(exhausted) or type(exhausted).__name__, LONGEST_REASON)


def dispatch(argv: list[str]) -> int:
    """Call the verb `argv[0]` with the remaining arguments, and return its exit code."""
    if windows_words := [word for word in argv if word.endswith("\r")]:
        raise CommandError(
            f"{short(ascii(windows_words[0]))} ends with a carriage return, so the script has "
            "Windows line ends. Save the script with Unix line ends (sed -i 's/\\r$//' FILE)"
        )
    if "_ARGCOMPLETE" in os.environ:  # for a completion, the shell calls `lra` without arguments
        argv = ["completion"]
    if not argv or argv[0] in ("-h", "--help", "help"):
        verbs = "\n".join(f"  {name:11} {summary}" for name, summary in VERBS.items())
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
    from lra.tasks.data.signals import stoppable  # imported late: the help above does not need it

    with stoppable():
        return int(importlib.import_module(f"lra.commands.{word}").main(rest))


def run_choices() -> str:
    """Return the names of each configuration group, printed in columns like those of `ls`."""
    from lra.composition.catalogue import names, words

    lines = []
    for group, word in words().items():
        listed = names(group)
        column_width = max(map(len, listed)) + 2
        # The group takes 15 characters; this division is rounded up.
        line_count = -(-len(listed) // ((WIDTH - 15) // column_width))
        for number in range(line_count):
            row = "".join(name.ljust(column_width) for name in listed[number::line_count])
            lines.append(f"  {'' if number else word + '=':13}{row}".rstrip())
    return "\n".join(lines)


def explain(error: Exception, argv: Sequence[str] = ()) -> int:
    """Print `error` as one message if the user can act on it, otherwise as a traceback.

    Args:
        error: The exception that a verb raised.
        argv: The arguments of the command; a message shortens very long ones.

    Returns:
        The exit code: 2 if the user can act on the error, 1 for a bug.
    """
    if reason_given := _describe_memory_error(error):
        error = CommandError(
            f"not enough memory ({reason_given}). What was written is safe. Raise the memory limit "
            "(of ulimit -v or of the job), end other programs, or choose a smaller model or batch"
        ).with_traceback(error.__traceback__)
    if isinstance(error, ModuleNotFoundError) and error.name == "torch":
        error = CommandError(
            "this command needs torch, which is not installed. Install it by: pip install torch"
        ).with_traceback(error.__traceback__)
    if shows_tracebacks() or not is_actionable(error):
        traceback.print_exception(error)
    if is_actionable(error):
        from lra.terminal.console import complain

        complain(short_message(message(error), argv))
        return 2
    line = _locate_user_code(error)
    blame = f"a bug at {line}" if line else "a bug in lra or in a package that it uses"
    print(f"lra: this is {blame}; your input is not the cause.", file=sys.stderr)
    return 1


def _locate_user_code(error: Exception) -> str:
    """Return the line of the user's own code that raised `error`; "" if it was not their code."""
    import sysconfig

    packages = [Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib")]
    frames = traceback.extract_tb(error.__traceback__)
    # Frames before this file belong to whatever started lra, for example a test.
    first = next((n for n, at in enumerate(frames) if Path(at.filename) == Path(__file__)), 0)
    for frame in reversed(frames[first:]):
        file = Path(frame.filename)
        if any(file.is_relative_to(folder) for folder in OURS):
            return ""
        if file.is_file() and not any(file.is_relative_to(folder) for folder in packages):
            return f"{file}:{frame.lineno} in {frame.name}"
    return ""


def shows_tracebacks() -> bool:
    """Return whether LRA_DEBUG asks for the traceback of every error."""
    return os.environ.get("LRA_DEBUG", "") not in ("", "0")


def message(error: Exception) -> str:
    """Return the text of `error`.

    For an error of the operating system, the text names the file, the reason and, if lra knows one,
    a remedy.
    """
    if isinstance(error, OSError) and error.strerror:
        needs_remedy = error.filename and (is_fault(error) or leads_nowhere(error.filename))
        remedy = way_out(error, reading=True) if needs_remedy else ""
        if holds_cache(error.filename):
            remedy = ANOTHER
        return reason(error) + (f"; {remedy}" if remedy else "")
    return str(error).strip() or type(error).__name__


def short_message(text: str, argv: Sequence[str]) -> str:
    """Return `text` with long arguments and values of `argv` cut to their beginning."""
    values = [value for word in argv for value in (word, *re.split(r"[=,]", word))]
    # The longest first: an argument contains its value.
    for value in sorted({v for v in values if len(v) > 2 * LONGEST}, key=len, reverse=True):
        text = text.replace(value, short(value))
    return text if len(text) <= MOST_CHARACTERS else f"{text[: MOST_CHARACTERS // 2]} …"


def is_actionable(error: Exception) -> bool:
    """Return whether the user can mend the cause of `error`; otherwise it is a bug.

    The user can mend these errors: the error types that lra defines; errors of the operating system
    (missing file, no permission, full disk); errors of Hydra and OmegaConf; and a ValueError that
    code of lra raises. A ValueError from inside numpy or torch is a bug, so its traceback is shown.
    """
    origin = type(error).__module__.partition(".")[0]
    if origin in ("lra", "hydra", "omegaconf") or isinstance(error, OSError):
        return True
    if not isinstance(error, ValueError) or error.__traceback__ is None:
        return False
    *_, (last, _) = traceback.walk_tb(error.__traceback__)
    file = Path(last.f_code.co_filename)
    return any(file.is_relative_to(folder) for folder in OURS)
