"""From the arguments of a command to the record of a search; refuses what cannot be searched."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from itertools import chain
from pathlib import Path
from typing import Any

from lra.composition.binding import make
from lra.composition.combinations import MOST
from lra.composition.compose import typed
from lra.composition.configuration import quote
from lra.composition.hydra_entry import composed
from lra.composition.run import Composed, Run, Searched
from lra.errors import ConfigError, unknown
from lra.runners.measures.train import Train
from lra.runners.metrics import METRICS
from lra.sweep.agent import agents_sweep
from lra.tasks.task import Derives, Task
from lra.tuning.adaptive import check_installed
from lra.tuning.advance import size_of
from lra.tuning.record import ADAPTIVE, Arm, Record, SearchOptions, read_record
from lra.tuning.space import Dimension

STEERING = ("results=", "sweep=", "logger", "report", "runner.dry_run", "runner.retry",
            "runner.timeout_s", "runner.sweep_timeout_s", "runner.baselines")  # fmt: skip
"""Beginnings of arguments that change no number."""
ONCE = ("runner.dry_run", "runner.retry")
"""Those of `STEERING` that hold only for the command that has them, and are not stored."""
_OWN = {
    f"runner.{name}"
    for name in ("until_step", "continues", "tuned", "transferred", "evaluate_splits")
}
"""Options that a search sets itself, so that no argument may set them."""
IDLE = "this option does not change the score; give it a single value"
OF_PARAMS, OF_MODEL = "search.params.", "search.for_model."
OF_SEEDS = "search.seeds and search.final_seeds"


def declared_search(entries: Sequence[Composed]) -> Record:
    """Return the search that the arms of a command declare, joined with a stored one of this name.

    Raises:
        ConfigError: it cannot be searched, or the stored one is a different search.
    """
    searched, first = entries[0].searched, entries[0]
    assert searched is not None
    options = options_of(first)
    params, family_ranges = _read_ranges(searched)
    runs = [typed(entry.config) for entry in entries]
    arms = tuple(
        _make_arm(entry, run, searched, params, family_ranges)
        for entry, run in zip(entries, runs, strict=True)
    )
    record = Record(
        name=str(first.config["sweep"]),
        sampler=searched.sampler,
        options=options,
        fixed=tuple(w for w in arms[0].words if not _sets_apart(w, searched)),
        arms=arms,
        params=params,
        for_model=family_ranges,
        steering=tuple(
            w for w in first.overrides if w.startswith(STEERING) and not w.startswith(ONCE)
        ),
        place=dict(first.place),
    )
    for run in runs:
        _check_run(run, options)
    _check_space(record)
    _check_ends(record, runs)
    before = read_record(Path(first.config["results"]), record.name)
    return (record if before is None else record.extending(before)).complete()


def options_of(entry: Composed) -> SearchOptions:
    """Return the options of an arm's search, typed. Raises ConfigError."""
    assert entry.searched is not None
    names = {option.name for option in fields(SearchOptions)}  # the ranges are read elsewhere
    given = {k: v for k, v in entry.searched.options.items() if k in names}
    options: SearchOptions = make(SearchOptions, given, "search")
    return options


def _read_ranges(searched: Searched) -> tuple[dict[str, str], dict[str, dict[str, str]]]:
    """Return the ranges by option: those for all families, and those of single families."""
    params = _read_texts(searched.options["params"], "search.params")
    family_ranges = {
        str(model): _read_texts(node, f"{OF_MODEL}{model}")
        for model, node in _check_mapping(searched.options["for_model"], "search.for_model").items()
    }
    for key, text in searched.ranges.items():
        if key.startswith(OF_MODEL):
            model, _, option = key.removeprefix(OF_MODEL).partition(".")
            family_ranges.setdefault(model, {})[option] = text
        else:
            params[key.removeprefix(OF_PARAMS)] = text
    for option, text in chain(params.items(), *(texts.items() for texts in family_ranges.values())):
        check_word(word := f"{option}={text}")
        if word.startswith((*STEERING, "search.")):
            raise ConfigError(f"{word}: {IDLE}")
    if not params and not family_ranges:
        raise ConfigError(
            f"search={searched.sampler} needs an option with a range, for example "
            "'optim.peak_learning_rate=tag(log, interval(1e-4, 1e-2))'"
        )
    return params, family_ranges


def _check_mapping(node: Any, where: str) -> Mapping[str, Any]:
    """Return a mapping from options, or from models, to ranges. Raises ConfigError for others."""
    if not isinstance(node, Mapping):
        is_by_model = where == OF_MODEL[:-1]  # without the dot
        keys = "models to options" if is_by_model else "options to ranges"
        raise ConfigError(f"{where}: got {quote(node)}; wanted a mapping from {keys}, or {{}}")
    return node


def _read_texts(node: Any, where: str) -> dict[str, str]:
    """Return a mapping from options to ranges. Raises ConfigError for a range that is no text."""
    for option, text in _check_mapping(node, where).items():
        if not isinstance(text, str):
            raise ConfigError(
                f"{where}.{option}: got {quote(text)}; wanted a text like 'choice(1,2)'"
            )
    return dict(node)


def _make_arm(
    entry: Composed,
    run: Run,
    searched: Searched,
    params: Mapping[str, str],
    family_ranges: Mapping[str, Mapping[str, str]],
) -> Arm:
    """Return the arm of one combination. Raises ConfigError for an option that a search sets."""
    words = tuple(word for word in entry.overrides if not word.startswith(STEERING))
    for word in words:
        check_word(word)
    if run.config["runner"].get("shard"):
        raise ConfigError(
            "runner.shard: the next trial of a search depends on all earlier ones, so remove this "
            "argument; lra submit divides trials among workers"
        )
    distinguishing = [word for word in words if _sets_apart(word, searched)]
    options = {**params, **family_ranges.get(run.model, {})}
    return Arm(
        words=words,
        title=" ".join(distinguishing) or f"model={run.model}",
        model=run.model,
        steps=run.optim.steps,
        untuned={option: _composed_value(entry, option, run.model) for option in options},
    )


def check_word(word: str) -> None:
    """Raise ConfigError for an argument, or a range, of an option that a search sets itself."""
    key = word.partition("=")[0].lstrip("+")
    if key == "seed":
        raise ConfigError(f"{word}: {OF_SEEDS} set the seeds of a search; remove this argument")
    if key in _OWN:
        raise ConfigError(f"{word}: the search itself sets this option; remove this argument")


def _sets_apart(word: str, searched: Searched) -> bool:
    """Return whether arms differ in the option of an argument, so that it is in their titles."""
    return word.partition("=")[0].lstrip("+") in {*searched.lists, "model", "task"}


def _composed_value(entry: Composed, option: str, model: str) -> Any:
    """Return the value of a searched option without a search. Raises ConfigError if it has none."""
    node: Any = entry.config
    for part in option.split("."):
        if not isinstance(node, Mapping) or part not in node:
            known = unknown("option", part, node if isinstance(node, Mapping) else ())
            raise ConfigError(
                f"{option}: model={model}: {known} If only one family has an option, set its range "
                f"in {OF_MODEL}MODEL, for example 'search.for_model.performer.model.mixer.features="
                "choice(64,128)'"
            )
        node = node[part]
    return node.get("name") if isinstance(node, Mapping) else node  # a group: its choice


def _check_run(run: Run, options: SearchOptions) -> None:
    """Refuse an arm that has no score on validation to choose by."""
    if agents_sweep():
        raise ConfigError(
            "WANDB_SWEEP_ID is set: an agent of W&B starts single trainings; remove search=, or "
            "start the search without an agent"
        )
    name = str(run.config["runner"]["name"])
    if not isinstance(run.runner, Train):
        raise ConfigError(
            f"runner={name}: a search trains models; wanted runner=train, and afterwards "
            f"runner={name} with the arguments that the search chose"
        )
    spec, sizes = run.task.spec, run.task.spec.sizes
    if sizes and not sizes.get("validation"):
        raise ConfigError(
            f"task={run.task_name} has no validation split, on which a search has to choose"
        )
    known = set(spec.measured)
    if isinstance(run.task, Derives):
        known |= {"perplexity", "word_perplexity"} | {
            n for n in METRICS if n.startswith("bits_per")
        }
    if (metric := options.metric) is not None and metric not in known:
        if "test" in metric:
            raise ConfigError(
                f"search.metric={metric}: a search chooses on validation data; test data are for "
                "the final trainings"
            )
        raise ConfigError(
            "search.metric: " + unknown(f"metric of task={run.task_name}", metric, known)
        )
    for share in options.rungs:
        until = round(share * run.optim.steps)
        if until < 1 or until <= run.optim.warmup_steps:
            raise ConfigError(
                f"search.rungs: {share:g} of {run.optim.steps:,} steps is {until:,}; wanted more "
                f"than the warm-up, optim.warmup_steps={run.optim.warmup_steps:,}"
            )


def _check_space(record: Record) -> None:
    """Refuse ranges that fit neither the families nor the sampler."""
    options, models = record.options, {arm.model for arm in record.arms}
    if foreign := [model for model in record.for_model if model not in models]:
        raise ConfigError(
            f"{OF_MODEL}{foreign[0]}: " + unknown("model of this search", foreign[0], models)
        )
    if record.sampler in ADAPTIVE:
        check_installed(record.sampler)
        if options.rungs:
            raise ConfigError(
                f"search.rungs: search={record.sampler} proposes points after complete trainings "
                "only; wanted [], or search=halton"
            )
    for arm in record.arms:
        space = record.spaces[arm.model]
        if not space:
            raise ConfigError(f"{arm.title}: none of its options is searched; give one a range")
        if record.sampler != "grid":
            continue
        for dimension in space:
            if not dimension.values:
                raise ConfigError(
                    f"{dimension.option}={dimension.text}: a grid needs single values, but this is "
                    "an interval; list values, for example "
                    f"choice({', '.join(dimension.at((n + 0.5) / 4)[0] for n in range(4))}), or "
                    "set search=halton"
                )
        if (points := record.number(arm)) > options.trials:
            raise ConfigError(
                f"search=grid: {arm.title} has {points:,} points, and search.trials is "
                f"{options.trials:,}; wanted search.trials={points} or more"
            )
    if (cells := sum(size_of(record, arm) for arm in record.arms) * options.studies) > MOST:
        raise ConfigError(f"this search has {cells:,} runs; wanted at most {MOST:,}")


def _check_ends(record: Record, runs: Sequence[Run]) -> None:
    """Refuse a bad range before anything is trained, by composing the first and last value of each.

    All values of an option that chooses a file, such as `optim`, are composed. Constructors refuse
    bad values. This function also refuses values that change the model or the data of an arm,
    because scores are compared on the same examples.

    Args:
        record: The search.
        runs: Its arms, typed.
    """
    cases = [
        (arm, run, dimension, value)
        for arm, run in zip(record.arms, runs, strict=True)
        for dimension in record.spaces[arm.model]
        for value in (dimension.words if "." not in dimension.option else _find_ends(dimension))
    ]
    words = [(*arm.words, f"{dimension.option}={value}") for arm, _, dimension, value in cases]
    tasks: dict[str, Task] = {}
    for (_, run, dimension, _), entry in zip(cases, composed(words, record.place), strict=True):
        other, where = typed(entry.config, tasks), f"{dimension.option}={dimension.text}"
        way_out = (
            "to compare values, list them, and each is tuned separately: "
            f"{dimension.option}={','.join(_find_ends(dimension))}"
        )
        if other.model != run.model:
            raise ConfigError(f"{where}: a search tunes each model by itself; {way_out}")
        _check_run(other, record.options)
        if _data_key(other) != _data_key(run):
            raise ConfigError(
                f"{where}: this changes the data of task={run.task_name}, and a search compares "
                f"scores on the same validation examples; {way_out}"
            )
        group, _, name = dimension.option.partition(".")
        idle_names = {"task": run.task.incidental, "runner": run.runner.incidental}.get(
            group, frozenset()
        )
        if name in idle_names and name not in run.runner.files:
            raise ConfigError(f"{where}: {IDLE}")


def _find_ends(dimension: Dimension) -> tuple[str, str]:
    """Return the texts of the first and the last value of a range, whose coordinates are [0, 1)."""
    (first, _), (last, _) = dimension.at(0.0), dimension.at(1 - 1e-9)
    return first, last


def _data_key(run: Run) -> tuple[Any, ...]:
    """Return what identifies the data of a run; files are identified by their content."""
    return run.task_name, run.task_options, run.task.spec.data_hash
