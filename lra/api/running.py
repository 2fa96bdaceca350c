"""Start sweeps from a notebook or a script; each run has a separate process, as from the shell."""

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
"""Options that take one name or one number, so that several values make a sweep."""
PRINTING = ("--help", "-h", "--hydra-help", "--cfg", "-c", "--info", "-i")
"""Arguments that make `lra run` print something and start no run."""


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
        """The rows of the sweep's runs, as `lra.rows` returns them, read at every access."""
        return rows_of(self.results, self.sweep, self.cells)

    @property
    def failed(self) -> dict[str, str]:
        """The status of each run that failed, in this call or an earlier one, by the run's key."""
        rows = self.rows
        is_whole = rows["labels"].map(lambda labels: "threshold" not in labels)  # no missed target
        failures = rows[(rows["status"] != "ok") & is_whole].drop_duplicates("cell")
        return dict(zip(failures["cell"], failures["status"], strict=True))

    def __str__(self) -> str:
        executed = f"executed {len(self.endings)} of {len(self.cells)} runs"
        failures = sum(status != "ok" for status in self.endings.values())
        failed = f", {failures} failed" if failures else ""
        return (
            f"sweep {self.sweep}: {executed}{failed}; exit code {self.exit_code}; results in "
            f"{self.results}"
        )

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
    """Train or measure models, as `lra run` does from the shell.

    For example, `lra.run(model=("linear", "sdpa"), task="listops")` trains two models. Each run has
    a separate process. If a run crashes or exhausts the memory, its row holds the reason, and the
    sweep continues. Finished runs are skipped, and progress is printed line by line. If you
    interrupt the call (by Ctrl-C, or the stop button of a notebook), trainings save a checkpoint
    and KeyboardInterrupt is raised; make the same call again to resume. A script needs no
    `if __name__ == "__main__"`.

    Args:
        overrides: The arguments of `lra run`, as one text or a list: `"-m model=linear,sdpa
            seed=0,1"`. Or a mapping, nested or with dots: `{"model": "linear", "optim.steps": 50}`;
            in a mapping, a tuple or range is a sweep over its values, and a list is one value.
        config_dir: A folder with your configuration files.
        plugins: Names of packages that these files may use. A package is installed, in the current
            folder, or on PYTHONPATH.
        options: More options, as in the mapping: `model=("linear", "sdpa"), optim={"steps": 50}`;
            `report=False` writes and prints no report.

    Returns:
        The sweep, with `rows`, `failed`, `sweep` and `exit_code`.

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
    _check_conflicts(given, keywords)
    volume, words = volume_of([*flags(config_dir, plugins), *given, *keywords])
    flagged = [word.partition("=")[0] for word in words if word.startswith("-")]
    printing = [word for word in flagged if word in PRINTING]
    if printing:
        raise ConfigError(
            f"{printing[0]} prints text and starts no run; type it after `lra run` in a shell"
        )
    if given and not keywords and all(word[:1] == "-" for word in given):
        raise ConfigError(
            f"got only the flags {' '.join(given)}; add a model and a task, as in "
            '"-q model=linear task=listops" (lra.run() without arguments runs the defaults)'
        )
    ready(volume)
    with hydra_left_alone():
        configurations = entries(words)
    if not configurations:
        raise ConfigError(
            "these arguments print text and start no run; type them after `lra run` in a shell"
        )
    # This import loads PyTorch, so it must follow `ready`.
    from lra.execution.foreground import execute

    code, sweep, outcome = execute(configurations, volume=volume)
    _raise_signal(outcome.stopped_by, sweep.name)
    return CompletedSweep(
        sweep=sweep.name,
        results=sweep.root,
        exit_code=code,
        cells=tuple(cell.key for cell in sweep.cells),
        endings={key: str(status) for key, status in outcome.endings.items()},
    )


def given_words(overrides: Any) -> list[str]:
    """Return the arguments of `lra run` that `overrides`, a text, list or mapping, stands for."""
    if isinstance(overrides, str):
        try:
            words = shlex.split(overrides)
        except ValueError as error:
            raise ConfigError(f"{overrides!r}: {error}") from error
    elif isinstance(overrides, Mapping):
        options = _replace_ranges(overrides)
        swept_keys = [key for key, value in _flatten(options) if isinstance(value, tuple)]
        words = [*(["-m"] if swept_keys else []), *words_of(options)]
    elif isinstance(overrides, Sequence) and all(isinstance(word, str) for word in overrides):
        words = [*overrides]
    else:
        raise ConfigError(
            f"overrides: got {overrides!r:.80} ({type(overrides).__name__}); wanted the arguments "
            "of `lra run`, as one text, a list of texts or a mapping"
        )
    return words[2:] if words[:2] == ["lra", "run"] else words  # a pasted command


def _replace_ranges(node: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the options `node`, a nested mapping, with each `range` replaced by a tuple.

    `prefix` is the dotted key of `node`, "" at the top.

    Raises:
        ConfigError: A value that can only be a sweep is a list, or a model is a class or module.
    """
    options: dict[str, Any] = {}
    for key, value in node.items():
        if not prefix and key in CHOICES and isinstance(value, list):
            raise ConfigError(
                f"{key}: got {value!r:.80}, but a list is one value; wanted a tuple, which makes a "
                f"sweep, as in {key}={tuple(value)!r:.80}"
            )
        if key == "model" and (isinstance(value, type) or callable(value)):
            name = getattr(value, "__name__", type(value).__name__)
            raise ConfigError(
                f"model: got {name}, a class or module; wanted a name. Each run has a separate "
                "process, which must import your model, so a YAML file in config_dir has to name "
                'its package; see the page "Test my own module"'
            )
        inner = _replace_ranges(value, f"{key}.") if isinstance(value, Mapping) else value
        options[key] = (*inner,) if isinstance(inner, range) else inner
    return options


def _check_conflicts(words: Sequence[str], options: Sequence[str]) -> None:
    """Raise ConfigError if `words` and `options`, both KEY=VALUE, set a key to different values."""
    values = dict(word.split("=", 1) for word in words if "=" in word and word[:1] != "-")
    for word in options:
        key, _, value = word.partition("=")
        if key in values and values[key] != value:
            raise ConfigError(
                f"{key}: got {values[key]} in the text and {value} as a keyword; give only one of "
                "the two values"
            )


def _flatten(node: Mapping[str, Any]) -> "list[tuple[str, Any]]":
    """Return the pairs of key and value of a nested mapping; a key is without its parents."""
    pairs = []
    for key, value in node.items():
        pairs += _flatten(value) if isinstance(value, Mapping) else [(key, value)]
    return pairs


def _raise_signal(stopped_by: signal.Signals | None, sweep: str) -> None:
    """Send this program the signal that stopped a sweep; an interrupt is a KeyboardInterrupt.

    While the sweep ran, lra handled signals itself, so that trainings could save a checkpoint.
    """
    if stopped_by is None:
        return
    if stopped_by == signal.SIGINT:
        raise KeyboardInterrupt(
            f"sweep {sweep} was interrupted; make the same call again to resume it"
        )
    signal.raise_signal(stopped_by)
