"""Sweeps from a notebook or a script: each run has a separate process, as from the shell."""

import shlex
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lra.api.plain_errors import plainly
from lra.api.results import rows_of
from lra.composition.python_words import flags, words_of
from lra.errors import ConfigError

if TYPE_CHECKING:
    import pandas as pd


CHOICES = ("model", "task", "runner", "hardware", "optim", "seed", "+scale", "+protocol")
"""What is one name or number each: several are a sweep."""
PRINTING = ("--help", "-h", "--hydra-help", "--cfg", "-c", "--info", "-i")
"""Words that end with something printed, and start no cell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletedSweep:
    """What one call of `lra.run` did.

    Attributes:
        sweep: Name of the sweep, under which a report finds its rows.
        results: The results folder.
        exit_code: As for `lra run`: 0 if every run has its rows; 1 if one crashed or was stopped
            from outside, or a single run failed; 2 if the disk refused to write.
        cells: Keys of its runs, including those that were finished before.
        endings: The ending of each run that this call executed, by key: `ok`, `crashed`,
            `out_of_memory` …; `failed` includes runs of earlier calls.
    """

    sweep: str
    results: Path
    exit_code: int
    cells: tuple[str, ...]
    endings: Mapping[str, str]

    @property
    def rows(self) -> "pd.DataFrame":
        """The rows of its runs, read again each time, as `lra.rows` returns them."""
        return rows_of(self.results, self.sweep, self.cells)

    @property
    def failed(self) -> dict[str, str]:
        """Runs without their numbers, by key, with their status; those of earlier calls, too."""
        rows = self.rows
        lost = rows[rows["status"] != "ok"].drop_duplicates("cell")
        return dict(zip(lost["cell"], lost["status"], strict=True))

    def __str__(self) -> str:
        ran = f"executed {len(self.endings)} of {len(self.cells)} runs"
        bad = sum(status != "ok" for status in self.endings.values())
        ended = f", {bad} not ok" if bad else ""
        return f"sweep {self.sweep}: {ran}{ended}; exit code {self.exit_code}; {self.results}"

    def _repr_html_(self) -> str:
        return f"<p>{escape(str(self))}</p>"


@plainly
def run(
    overrides: "str | Sequence[str] | Mapping[str, Any]" = (),
    /,
    *,
    config_dir: "str | Path | None" = None,
    plugins: Sequence[str] = (),
    **options: Any,
) -> CompletedSweep:
    """Train and measure, as `lra run` does from the shell.

    For example, `lra.run(model=("linear", "sdpa"), task="listops")` trains two models. Each run has
    a separate process: if it crashes or runs out of memory, the reason becomes a row and the sweep
    continues. Finished runs are skipped, and progress is printed line by line. On an interrupt
    (Ctrl-C, or the stop button of a notebook) trainings save a checkpoint and KeyboardInterrupt is
    raised; make the same call again to resume. `if __name__ == "__main__"` is unnecessary.

    Args:
        overrides: The arguments of `lra run`, as one text or a list: `"-m model=linear,sdpa
            seed=0,1"`. Or a mapping, nested or with dots: `{"model": "linear", "optim.steps": 50}`;
            there a tuple or a range is a sweep over its values, and a list is one value.
        config_dir: A folder with your configuration files.
        plugins: Packages that these files may name; in the current folder, installed, or on
            PYTHONPATH.
        options: More of the mapping, as `model=("linear", "sdpa"), optim={"steps": 50}`;
            `report=False` writes and prints no report.

    Returns:
        The sweep: `rows`, `failed`, `sweep`, `exit_code`.

    Raises:
        ValueError: A name, option or value is unknown.
        KeyboardInterrupt: The sweep was interrupted.

    Examples:
        >>> import lra
        >>> done = lra.run(
        ...     "task.source=sample optim.steps=2 optim.warmup_steps=0 logger=none",
        ...     model="identity",
        ...     task="listops",
        ... )  # doctest: +ELLIPSIS
        20...
        >>> done.exit_code
        0
    """
    from lra.composition.hydra_entry import entries, hydra_left_alone
    from lra.execution.preload import ready
    from lra.terminal.volume import volume_of

    given, keywords = given_words(overrides), given_words(options)
    _given_twice(given, keywords)
    volume, words = volume_of([*flags(config_dir, plugins), *given, *keywords])
    flagged = [word.partition("=")[0] for word in words if word.startswith("-")]
    printing = [word for word in flagged if word in PRINTING]
    if printing:
        raise ConfigError(f"{printing[0]} only prints: call `lra run` in a shell")
    if given and not keywords and all(word[:1] == "-" for word in given):
        raise ConfigError(
            f"got {' '.join(given)} alone: add what to run, as in "
            '"-q model=linear task=listops"; lra.run() runs the defaults'
        )
    ready(volume)
    with hydra_left_alone():
        configurations = entries(words)
    if not configurations:
        raise ConfigError("these arguments only print: call `lra run` in a shell")
    from lra.execution.foreground import execute  # with PyTorch, for which all is settled now

    code, sweep, outcome = execute(configurations, volume=volume)
    _pass_on(outcome.stopped_by, sweep.name)
    return CompletedSweep(
        sweep=sweep.name,
        results=sweep.root,
        exit_code=code,
        cells=tuple(cell.key for cell in sweep.cells),
        endings={key: str(status) for key, status in outcome.endings.items()},
    )


def given_words(overrides: Any) -> list[str]:
    """Return what the caller gave as words of the command line."""
    if isinstance(overrides, str):
        try:
            words = shlex.split(overrides)
        except ValueError as error:
            raise ConfigError(f"{overrides!r}: {error}") from error
    elif isinstance(overrides, Mapping):
        options = _with_tuples(overrides)
        swept = [key for key, value in _leaves(options) if isinstance(value, tuple)]
        words = [*(["-m"] if swept else []), *words_of(options)]
    elif isinstance(overrides, Sequence) and all(isinstance(word, str) for word in overrides):
        words = [*overrides]
    else:
        raise ConfigError(
            f"got {overrides!r:.80} ({type(overrides).__name__}); wanted the arguments of "
            "`lra run`, as one text, a list of texts or a mapping"
        )
    return words[2:] if words[:2] == ["lra", "run"] else words


def _with_tuples(node: Mapping[str, Any], inside: str = "") -> dict[str, Any]:
    """Return options with tuples for ranges.

    Raises:
        ConfigError: a list stands where only a sweep can be meant, or a class in a model's place.
    """
    found: dict[str, Any] = {}
    for key, value in node.items():
        if not inside and key in CHOICES and isinstance(value, list):
            raise ConfigError(
                f"{key}={value!r:.80}: a list is one value; wanted a tuple for a sweep, as in "
                f"{key}={tuple(value)!r:.80}"
            )
        if key == "model" and (isinstance(value, type) or callable(value)):
            name = getattr(value, "__name__", type(value).__name__)
            raise ConfigError(
                f"model: got {name}, a class or module; wanted a name. Each run has a separate "
                "process, which imports the model from a package that a YAML file of config_dir "
                'names: see the page "Test my own module"'
            )
        inner = _with_tuples(value, f"{key}.") if isinstance(value, Mapping) else value
        found[key] = (*inner,) if isinstance(inner, range) else inner
    return found


def _given_twice(words: Sequence[str], options: Sequence[str]) -> None:
    """Raise ConfigError where a keyword repeats what a word says otherwise."""
    said = dict(word.split("=", 1) for word in words if "=" in word and word[:1] != "-")
    for word in options:
        key, _, value = word.partition("=")
        if key in said and said[key] != value:
            raise ConfigError(
                f"{key}: got {said[key]} in the text and {value} as a keyword: give one of them"
            )


def _leaves(node: Mapping[str, Any]) -> "list[tuple[str, Any]]":
    pairs = []
    for key, value in node.items():
        pairs += _leaves(value) if isinstance(value, Mapping) else [(key, value)]
    return pairs


def _pass_on(stopped_by: signal.Signals | None, sweep: str) -> None:
    """Have the signal that ended a sweep do to this program what it would have done."""
    if stopped_by is None:
        return
    if stopped_by == signal.SIGINT:
        raise KeyboardInterrupt(f"sweep {sweep}: make the same call again to resume")
    signal.raise_signal(stopped_by)
