"""Pathfinder (arXiv:1805.08315, arXiv:2011.04006): do two discs lie on the same dashed path?

    picture [side, side]  ->  side² gray levels, row by row, as symbols or scalars (`GrayTask`)
    target                    1: one snake joins the discs, 0: each marks another snake

Sides are 32 (`pathfinder`, 1,024 pixels), 64 (`pathfinder64`, 4,096), 128 (`pathx`, 16,384) and 256
(`path256`, 65,536). Pictures are generated here with the published parameters (`source=generated`),
each label checked on the drawn snakes, or read from the archive's files (`source=files`), 200,000
in a set: another number is refused, unless `partial` says that it is a part. The sets are the
archive's, by the dashes of a snake: 6 (curv_baseline), 9 and 14 (hard, the Long Range Arena's).
Parameters are published for 14; with another `contour` the number of short snakes stays, and their
length is a third.

They are drawn by the law of the authors' generator: dashes nearly touch, snakes may cross.

Length and difficulty are separate axes: `side` alone scales everything as published; `canvas` lays
a picture into a larger black one, which adds length and nothing else; `contour` and `distractors`
change the difficulty at the same length.

With `black_is_padding`, the quirk of the Long Range Arena code, families that mask padding see the
drawn pixels alone.
"""

from collections.abc import Iterator
from dataclasses import asdict, replace
from enum import StrEnum, auto
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import numpy as np
from jaxtyping import Bool, UInt8

from lra.tasks.classification.base import baseline
from lra.tasks.classification.gray import Encoding, GrayTask, rows_of
from lra.tasks.classification.objectives import InputObjective, MaskedReplacement
from lra.tasks.classification.pathfinder import (
    disc_distance,
    files as pathfinder_files,
    ink as pathfinder_ink,
    published_pictures as pathfinder_published,
    trace as pathfinder_trace,
)
from lra.tasks.classification.pathfinder.division import Division, divide_pictures
from lra.tasks.classification.pathfinder.styles import STYLES, Style
from lra.tasks.data import arena
from lra.tasks.data.bars import tqdm
from lra.tasks.data.published_data import MARK, check_partial, named_path
from lra.tasks.data.sources import data_root, folder_identity
from lra.tasks.data.storage import RaggedRows
from lra.tasks.data.stored_task import GENERATED, GRAY_LEVELS, identity_of
from lra.tasks.data.workers import in_order
from lra.tasks.task import SPLITS, Baseline, Kind, TaskSpec

VERSION = 2
NAMES = {32: "pathfinder", 64: "pathfinder64", 128: "pathx", 256: "path256"}
"""Tasks by side: protocols have settings by these names."""
BLOCK = 500
"""Pictures of one job."""
SAMPLE_SIZES = (200, 50, 100)
"""Most pictures that options can ask for with `source=sample`."""


class PathfinderSource(StrEnum):
    """Where the pictures come from."""

    generated = auto()
    files = auto()
    sample = auto()


class Drawing(StrEnum):
    """How pictures are generated: the one law, which stored trainings name."""

    published = auto()


class Pathfinder(GrayTask):
    """The task; see the module's text.

    Args:
        source: generated, files or sample (a few hundred generated pictures for trials).
        path: files: a set of the archive, e.g. pathfinder32/curv_contour_length_14, or the
            unpacked archive.
        partial: Whether `path` holds a part of a set, or another one; every row then says so.
        split: files: how pictures are divided: seeded, tfds (the released code) or s4.
        drawing: How pictures are generated: published.
        side: Pixels of a side: 32, 64, 128 or 256.
        contour: Dashes of a long snake; 6, 9 and 14 are published.
        distractor: Dashes of a short snake; null: a third of `contour`.
        distractors: Short snakes; null: as published for this side.
        canvas: Pixels of a side of the black picture around; null: none.
        train_examples: Generated training pictures.
        validation_examples: Generated validation pictures.
        test_examples: Generated test pictures.
        data_seed: Seed of the pictures, and of the split of the archive's.
        processes: Processes that generate; 0 = every core. Cannot change the data.
        encoding: symbols or scalars.
        mean: Of the levels over 255, for scalars.
        deviation: Of the levels over 255, for scalars.
        black_is_padding: Levels without a shift, 0 being padding; for symbols.
        objective: What a model answers: classify; or masked, causal, prefix, unilm or
            permutation (tokens).
        masked_share: Of the tokens, where some are asked for; null: 50 %.
        masked_replacement: What stands in their place: mask, or bert (80/10/10).
    """

    incidental: ClassVar[frozenset[str]] = frozenset({"path", "partial", "processes"})
    """Options that change no number: not part of a result's identity."""

    def __init__(
        self,
        *,
        source: PathfinderSource = PathfinderSource.generated,
        path: str | None = None,
        partial: bool = False,
        split: Division = Division.seeded,
        drawing: Drawing = Drawing.published,
        side: int = 32,
        contour: int = 14,
        distractor: int | None = None,
        distractors: int | None = None,
        canvas: int | None = None,
        train_examples: int = 160_000,
        validation_examples: int = 20_000,
        test_examples: int = 20_000,
        data_seed: int = 0,
        processes: int = 0,
        encoding: Encoding = Encoding.symbols,
        mean: float = 0.5,
        deviation: float = 0.5,
        black_is_padding: bool = False,
        objective: InputObjective = InputObjective.classify,
        masked_share: float | None = None,
        masked_replacement: MaskedReplacement = MaskedReplacement.mask,
    ) -> None:
        self.source, self.drawing = source, drawing
        if (self.source is PathfinderSource.files) != (path is not None):
            raise ValueError(
                "task.path names a set of pictures from the archive, for source=files: got "
                f"source={source}, path={path!r}; set both or neither"
            )
        check_partial(partial, path is not None)
        if split is not Division.seeded and (path is None or data_seed):
            raise ValueError(
                f"task.split={split} divides the archive's pictures, without a seed: got "
                f"source={source}, data_seed={data_seed}; set source=files and data_seed=0, or "
                "split=seeded"
            )
        if side not in STYLES:
            raise ValueError(f"task.side: got {side}; wanted one of {', '.join(map(str, STYLES))}")
        style = STYLES[side]
        self.canvas = side if canvas is None else canvas
        wrong = [
            f"{name}={value} (wanted at least {least})"
            for name, value, least in (
                ("contour", contour, 2),
                ("distractor", distractor, 1),
                ("distractors", distractors, 0),
                ("canvas", self.canvas, side),
                ("train_examples", train_examples, 1),
                ("validation_examples", validation_examples, 1),
                ("test_examples", test_examples, 1),
                ("data_seed", data_seed, 0),
                ("processes", processes, 0),
            )
            if value is not None and value < least
        ]
        if wrong:
            raise ValueError(f"Pathfinder: got {', '.join(wrong)}")
        self.style = replace(
            style,
            contour=contour,
            distractor=max(1, contour // 3) if distractor is None else distractor,
            distractors=style.distractors if distractors is None else distractors,
        )
        self.numbers: tuple[int, ...] = (train_examples, validation_examples, test_examples)
        if self.source is PathfinderSource.sample:
            self.numbers = tuple(map(min, self.numbers, SAMPLE_SIZES))
        self.path = self._set(named_path(path)) if path is not None else None
        self.division = split
        self.data_seed, self.processes, self.partial = data_seed, processes, partial
        self.encode(encoding, mean=mean, deviation=deviation, black_is_padding=black_is_padding)
        self.max_length = self.canvas**2
        self.answer(objective, masked_share, masked_replacement)

    @cached_property
    def spec(self) -> TaskSpec:
        """The facts. With `source=files` the files must be there: they are the identity."""
        spec = TaskSpec(
            name=NAMES[self.style.side],
            version=VERSION,
            kind=Kind.classification,
            vocabulary=self.vocabulary,
            classes=2,
            max_length=self.max_length,
            padded=self.black_is_padding,
            scalars=self.scalars,
            metric="accuracy",
            source=self._source_name(),
            data_hash=self.content_hash(self._identity),
            sizes={} if self.path else dict(zip(SPLITS, self.numbers, strict=True)),
        )
        return self.facts_of(spec)

    def _source_name(self) -> str:
        if self.path is not None:
            name = arena.copy_of(self.path) + "/".join(self.path.parts[-2:])
            return f"files: {name}{MARK if self.partial else ''}"
        return self.source.value

    def _set(self, path: Path) -> Path:
        """Return the set that a path names, or the one of this side in an unpacked archive."""
        name = pathfinder_files.SETS.get(self.style.contour)
        if name is None:
            return path
        folder = f"pathfinder{self.style.side}/{name}"
        return arena.find_task_folder(path, folder, pathfinder_files.holds_pictures)

    def _identity(self) -> str:
        facts: dict[str, object] = {
            "version": VERSION,
            "seed": self.data_seed,
            "canvas": self.canvas,
        }
        if self.path is not None:
            facts["content"] = folder_identity(self.path) if self.path.is_dir() else "missing"
            facts["side"] = self.style.side
            if self.partial:
                facts["partial"] = True
            if self.division is not Division.seeded:
                facts["split"] = self.division
        else:
            facts |= {"drawing": self.drawing, "numbers": self.numbers, **asdict(self.style)}
        return identity_of(facts)

    @property
    def folder(self) -> Path:
        """Where the prepared data lie; `black_is_padding` shares them."""
        return data_root() / f"pathfinder-{self.source}-{self.spec.data_hash}"

    def copies_allowed(self, first: str, second: str) -> float:
        """Return the allowed share of pictures in both splits: nearly empty ones can be equal."""
        del first, second
        return 0.001

    def make(self) -> None:
        """Draw or read the pictures and store their levels."""
        if self.path is None:
            splits = {split: self._generated(split) for split in SPLITS}
        else:
            splits = self._from_files(self.path)
        self.write(
            splits,
            vocabulary=GRAY_LEVELS,
            style=asdict(self.style),
            licence=pathfinder_files.LICENCE if self.path else GENERATED,
        )

    def _first(self, split: str) -> int:
        """Return the number of a generated split's first picture."""
        return sum(self.numbers[: SPLITS.index(split)])

    def _generated(self, split: str) -> Iterator[RaggedRows]:
        first, number = self._first(split), self.numbers[SPLITS.index(split)]
        jobs = (
            (
                self.style,
                self.data_seed,
                range(start, min(start + BLOCK, first + number)),
            )
            for start in range(first, first + number, BLOCK)
        )
        processes = self.processes if number > 4 * BLOCK else 1
        with tqdm(desc=f"{split} pictures", total=number, unit="picture", disable=None) as bar:
            for pixels, labels in in_order(_draw_some, jobs, processes):
                bar.update(len(labels))
                yield self._block(pixels, labels)

    def _from_files(self, path: Path) -> dict[str, Iterator[RaggedRows]]:
        listed = pathfinder_files.entries(path, partial=self.partial)
        parts = divide_pictures(listed, self.division, folder=path.name, seed=self.data_seed)
        return {split: self._read(part) for split, part in parts.items()}

    def _read(self, listed: list[pathfinder_files.ListedPicture]) -> Iterator[RaggedRows]:
        levels = pathfinder_files.pictures(listed, self.style.side)
        for start in range(0, len(listed), BLOCK):
            some = listed[start : start + BLOCK]
            pixels = np.stack([next(levels) for _ in some])
            yield self._block(pixels, np.array([entry.label for entry in some], np.uint8))

    def _block(self, pixels: np.ndarray, labels: np.ndarray) -> RaggedRows:
        """Lay pictures into the middle of the canvas."""
        side, canvas = self.style.side, self.canvas
        if canvas > side:
            before = (canvas - side) // 2
            after = canvas - side - before
            pixels = np.pad(pixels, ((0, 0), (before, after), (before, after)))
        return rows_of(pixels, labels)

    def picture(self, split: str, index: int) -> pathfinder_trace.TracedPicture:
        """Draw a generated picture again, with what proves its label."""
        if self.path is not None:
            raise ValueError(
                "pictures from files have no drawn paths that could prove their labels"
            )
        return pathfinder_published.draw(self.style, self.data_seed, self._first(split) + index)

    def baselines(self, split: str) -> list[Baseline]:
        """Compute the baselines; on generated pictures also the search along the snakes."""
        results = super().baselines(split)
        if self.per_token:
            return results
        train, data = (self.pictures(name) for name in ("train", split))
        results.append(
            baseline(
                "disc_distance",
                disc_distance.distance_answers(train, data, self._disc()),
                "reads only the distance between the two discs: a model with this score may use "
                "no path",
            )
        )
        if self.path is None:
            results += self._searches(split, data.targets.astype(bool))
        return results

    def _searches(self, split: str, targets: Bool[np.ndarray, " n"]) -> list[Baseline]:
        """Compute the baselines that know how each picture was drawn."""
        drawn = [self.picture(split, index) for index in range(len(targets))]
        return [
            baseline(
                "path_search",
                np.array([pathfinder_trace.is_one_snake(picture) for picture in drawn]) == targets,
                "follows the drawn snakes from one disc: a score of 100 % shows that every label "
                "is correct and the task has a solution",
            ),
            baseline(
                "straightest_dashes",
                np.array([pathfinder_trace.straightest(picture) for picture in drawn]) == targets,
                "knows the dashes but not which snake they belong to, and continues straight "
                "on: where snakes cross, a viewer cannot always decide",
            ),
        ]

    def _disc(self) -> UInt8[np.ndarray, "d d"]:
        """Return the levels of one disc."""
        radius, side = self.style.marker_radius, self.style.side
        return pathfinder_ink.disc((side // 2, side // 2), radius, side)[1]

    def levels(self, row: np.ndarray) -> np.ndarray:
        """Return the picture that a stored row shows."""
        return row.reshape(self.canvas, -1)

    def class_name(self, target: int) -> str:
        """Return what a class means."""
        return "on one path" if target else "on two paths"


def _draw_some(job: tuple[Style, int, range]) -> tuple[np.ndarray, np.ndarray]:
    """Draw some pictures of a data set."""
    style, seed, numbers = job
    drawn = [pathfinder_published.draw(style, seed, number) for number in numbers]
    labels = np.array([picture.label for picture in drawn], np.uint8)
    return np.stack([picture.pixels for picture in drawn]), labels
