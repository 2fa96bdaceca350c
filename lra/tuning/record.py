"""The record of a search: its declaration and its points, which are drawn once and stored.

results/searches/<sweep>/search.json
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from importlib import metadata
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, Self

from lra.composition.binding import make
from lra.composition.combinations import MOST
from lra.conf.bounds import check_least, check_share
from lra.conf.plain_files import Types, typed_object
from lra.conf.short_values import short
from lra.errors import ConfigError, unknown
from lra.runners.storage.atomic import make_folder, write_whole
from lra.runners.storage.seals import seal, unseal
from lra.tuning.space import Dimension, dimension, draw_points, grid_points, values_at

SCHEMA = 1
ADAPTIVE = ("tpe", "gp", "cmaes")
STUDY_SEEDS = 1000
"""By how much the seeds of a study are higher than those of the study before."""
GROWING = ("trials", "studies", "final_seeds")
"""Options that a later command may raise."""
SAMPLERS = ("random", "halton", "grid", *ADAPTIVE)
_TYPES: Types = {
    "name": str, "sampler": str, "options": dict, "fixed": list[str], "arms": list,
    "params": dict[str, str], "for_model": dict[str, dict[str, str]], "steering": list[str],
    "place": dict[str, str], "points": dict[str, list[list[float]]],
}  # fmt: skip
_ARM: Types = {"words": list[str], "title": str, "model": str, "steps": int, "untuned": dict}
Values = Mapping[str, tuple[str, Any]]
"""The values of a trial: for each option, its text on the command line and its plain value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOptions:
    """The options of the group `search`; conf/config.yaml says what each means."""

    trials: int = 16
    studies: int = 1
    seeds: list[int] = field(default_factory=lambda: [0])
    final_seeds: list[int] = field(default_factory=lambda: [1, 2, 3])
    metric: str | None = None
    rungs: list[float] = field(default_factory=list)
    keep: float = 0.25
    draw: int = 0
    parallel: int = 4
    untuned: bool = True

    def __post_init__(self) -> None:
        """Refuse values that make no sense, each with the way out."""
        check_least(1, trials=self.trials, studies=self.studies, parallel=self.parallel)
        check_least(0, draw=self.draw)
        for name, seeds in (("seeds", self.seeds), ("final_seeds", self.final_seeds)):
            if len({*seeds}) < len(seeds) or any(not 0 <= seed < STUDY_SEEDS for seed in seeds):
                raise ValueError(
                    f"{name}: got {seeds}; wanted different whole numbers from 0 to "
                    f"{STUDY_SEEDS - 1}, because each further study adds {STUDY_SEEDS} to its seeds"
                )
        if not self.seeds:
            raise ValueError("seeds: got []; wanted at least one seed for the trials")
        if not 0 < self.keep < 1:
            raise ValueError(
                f"keep: got {self.keep}; wanted a fraction between 0 and 1, for example 0.25"
            )
        rising = all(a < b for a, b in zip(self.rungs, self.rungs[1:], strict=False))
        if not rising or any(not 0 < share < 1 for share in self.rungs):
            raise ValueError(
                f"rungs: got {self.rungs}; wanted increasing fractions of optim.steps between 0 "
                "and 1, for example [0.25]; the full length is added as the last one"
            )


class Arm(NamedTuple):
    """One side of the comparison that a search makes, for example a model on a task."""

    words: tuple[str, ...]
    title: str
    model: str
    steps: int
    untuned: Mapping[str, Any]
    """The searched options with the values that they have without a search."""


@dataclass(frozen=True, kw_only=True)
class Record:
    """A search as it was declared, with its points."""

    name: str
    sampler: str
    options: SearchOptions
    fixed: tuple[str, ...]
    """Arguments that all arms share."""
    arms: tuple[Arm, ...]
    params: Mapping[str, str]
    for_model: Mapping[str, Mapping[str, str]]
    steering: tuple[str, ...] = ()
    """Arguments that change no number."""
    place: Mapping[str, str] = field(default_factory=dict)
    points: Mapping[str, list[list[float]]] = field(default_factory=dict)
    """Points in the unit cube, one coordinate per option, by the name that `column` returns."""

    @cached_property
    def spaces(self) -> Mapping[str, tuple[Dimension, ...]]:
        """The searched options of each family: those that all share, then those of it alone."""
        return {
            arm.model: tuple(
                dimension(option, text)
                for option, text in {**self.params, **self.for_model.get(arm.model, {})}.items()
            )
            for arm in self.arms
        }

    def column(self, arm: Arm, study: int) -> str:
        """Return the name of an arm's points; samplers that are not adaptive have one for all."""
        return f"{study} {arm.title}" if self.sampler in ADAPTIVE else str(study)

    def number(self, arm: Arm) -> int:
        """Return how many trials an arm will have, without the untuned one."""
        if self.sampler != "grid":
            return self.options.trials
        return math.prod(len(option.values) for option in self.spaces[arm.model])

    def trials(self, arm: Arm, study: int) -> dict[int, Values]:
        """Return the values of each trial whose point is known, by number; 0 is the untuned one.

        Two points can give the same values, as a choice rounds them: only the first is a trial.
        """
        space = self.spaces[arm.model]
        trials: dict[int, Values] = {0: {}} if self.options.untuned else {}
        known = set[tuple[str, ...]]()
        for number, point in enumerate(self.points_of(arm, study), 1):
            values = values_at(space, point)
            if (texts := tuple(text for text, _ in values.values())) not in known:
                trials[number] = values
                known.add(texts)
        return trials

    def points_of(self, arm: Arm, study: int) -> list[list[float]]:
        """Return the known points of an arm; several of them may give the same trial."""
        if self.sampler == "grid":
            return grid_points(self.spaces[arm.model], len(self.params))
        return self.points.get(self.column(arm, study), [])[: self.options.trials]

    def seeds(self, study: int) -> list[int]:
        """Return the seeds of a study's trials."""
        return [seed + STUDY_SEEDS * study for seed in self.options.seeds]

    def final_seeds(self, study: int) -> list[int]:
        """Return the seeds of a study's last trainings."""
        return [seed + STUDY_SEEDS * study for seed in self.options.final_seeds]

    def complete(self) -> Self:
        """Return the record with all points, of which only the missing ones are drawn now."""
        if self.sampler == "grid":
            return self
        columns = max(map(len, self.spaces.values()))
        points, number = dict(self.points), self.options.trials
        adaptive = self.sampler in ADAPTIVE
        first = min(number, self.options.parallel) if adaptive else number
        # More points add rows, and more options add coordinates: what is known stays unchanged.
        for study in range(self.options.studies):
            known = {(name := self.column(arm, study)): points.get(name, []) for arm in self.arms}
            # Enough known points have a coordinate for every option.
            if all(sum(len(point) >= columns for point in old) >= first for old in known.values()):
                continue  # scipy.stats takes most of a second to import
            new = draw_points("halton" if adaptive else self.sampler, columns, first,
                        (self.options.draw, study))  # fmt: skip
            for name, old_points in known.items():
                paired = [
                    [*old, *point[len(old) :]] for old, point in zip(old_points, new, strict=False)
                ]
                # The rest of the longer list: points that were known, or points that are new.
                points[name] = [*paired, *old_points[len(new) :], *new[len(old_points) :]]
        return replace(self, points=points)

    def extending(self, before: "Record") -> Self:
        """Return this declaration joined with a stored one of the same name, whose points stay.

        Raises:
            ConfigError: they differ in more than the `GROWING` options, or have fewer of these.
        """
        old, new = asdict(before.options), asdict(self.options)
        for_model = {**before.for_model, **self.for_model}
        stored, declared = (
            {"sampler": side.sampler, "arguments": " ".join(side.fixed), "params": side.params}
            | {name: value for name, value in asdict(side.options).items() if name not in GROWING}
            for side in (before, self)
        )
        # A later command may add a family, but must not change the ranges of a stored one.
        stored["for_model"], declared["for_model"] = {**for_model, **before.for_model}, for_model
        if not {*old["final_seeds"]} <= {*new["final_seeds"]}:
            stored["final_seeds"], declared["final_seeds"] = old["final_seeds"], new["final_seeds"]
        if differing := next((name for name in stored if stored[name] != declared[name]), None):
            before_text, text = (short(str(node[differing])) for node in (stored, declared))
            raise ConfigError(
                f"sweep={self.name}: got {differing}={text}; wanted {before_text}, as in the "
                "stored search of this name, or another name: sweep=NAME"
            )
        for name in ("trials", "studies"):
            if new[name] < old[name]:
                raise ConfigError(
                    f"search.{name}: got {new[name]}; wanted at least {old[name]}, as in the "
                    f"stored search {self.name}, or another name: sweep=NAME"
                )
        arms = {arm.words: arm for arm in (*before.arms, *self.arms)}
        return replace(self, arms=(*arms.values(),), for_model=for_model, points=before.points)

    def write(self, root: Path) -> None:
        """Store the record; its file is replaced as a whole."""
        path = record_file(root, self.name)
        content = {
            "schema": SCHEMA, **asdict(self), "arms": [arm._asdict() for arm in self.arms],
            "versions": {name: metadata.version(name) for name in ("numpy", "scipy")},
        }  # fmt: skip
        make_folder(path.parent)
        write_whole(path, seal(content, indent=1))


def record_file(root: Path, name: str) -> Path:
    """Return where the record of a search is, present or not."""
    return root / "searches" / name / "search.json"


def read_record(root: Path, name: str) -> Record | None:
    """Return the stored record of the search `name`; None if there is none.

    Raises:
        ConfigError: its file is damaged, or another version of lra wrote it.
    """
    path = record_file(root, name)
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        content = unseal(raw, {"schema": int})
        if content["schema"] == SCHEMA:
            return _parse_record(content, name)
    except ValueError as error:
        raise ConfigError(
            f"{path} is damaged ({error}): move it away and rerun the same command, which draws "
            "the same points; stored rows stay"
        ) from error
    raise ConfigError(
        f"{path} has schema {content['schema']}, and this lra reads {SCHEMA}: continue with the "
        "lra that wrote it, or give another name: sweep=NAME"
    )


def _parse_record(content: Mapping[str, Any], name: str) -> Record:
    """Return the record in the content of a file. Raises ValueError if it is damaged."""
    typed_object(content, _TYPES)
    fields = {key: content[key] for key in Record.__dataclass_fields__}
    fields["options"] = make(SearchOptions, content["options"], "options")
    arms = [typed_object(arm, _ARM) for arm in content["arms"]]
    fields["arms"] = tuple(
        Arm(**{**{key: arm[key] for key in _ARM}, "words": (*arm["words"],)}) for arm in arms
    )
    fields |= {key: tuple(content[key]) for key in ("fixed", "steering")}
    record = Record(**fields)
    if record.name != name:
        raise ValueError(f"name: got {short(record.name)}; wanted {name}")
    if record.sampler not in SAMPLERS:
        raise ValueError(unknown("sampler", short(record.sampler), SAMPLERS))
    if (many := record.options.trials * record.options.studies) > MOST:
        raise ValueError(f"options: got {many:,} trials in all studies; wanted at most {MOST:,}")
    check_least(1, arms=len(record.arms), steps=min((arm.steps for arm in record.arms), default=1))
    for point in chain.from_iterable(record.points.values()):
        for coordinate in point:
            check_share(point=coordinate)
    record.spaces  # noqa: B018  parses every range, and so raises for a malformed one
    return record
