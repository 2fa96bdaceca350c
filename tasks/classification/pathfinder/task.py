"""Pathfinder (arXiv:1805.08315, arXiv:2011.04006): do two discs lie on the same dashed path?

    picture [side, side]  ->  side² gray levels, row by row, as symbols or scalars (`GrayTask`)
    target                    1: one snake joins the discs, 0: the discs are on different snakes

A snake is a path of dashes. Sides are 32 (`pathfinder`, 1,024 pixels), 64 (`pathfinder64`, 4,096),
128 (`pathx`, 16,384) and 256 (`path256`, 65,536). `source=generated` draws pictures with the
published parameters and checks each label on the drawn snakes. `source=files` reads a set of
200,000 pictures from the archive; another number needs `partial`. The archive has sets with 6
(curv_baseline), 9 and 14 dashes in a long snake; the Long Range Arena uses 14, the hardest.
Parameters are published for 14. With another `contour`, the number of short snakes stays the same,
and each has a third of the dashes. As in the authors' generator, dashes nearly touch, and snakes
may cross.

`side` changes length and size as published. `canvas` adds a black border, so it changes only the
length. `contour` and `distractors` change the difficulty at the same length. With
`black_is_padding`, as in the Long Range Arena code, families that mask padding attend only to drawn
pixels.
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
"""Name of the task for each side; protocols use these names."""
BLOCK = 500
"""Number of pictures that a process draws at a time."""
SAMPLE_SIZES = (200, 50, 100)
"""Most pictures that options can ask for with `source=sample`."""


class PathfinderSource(StrEnum):
    """Where the pictures come from."""

    generated = auto()
    files = auto()
    sample = auto()


class Drawing(StrEnum):
    """How pictures are generated; there is one way, which stored trainings name."""

    published = auto()


class Pathfinder(GrayTask):
    """Does one dashed path join two discs in a picture? The model reads it pixel by pixel.

    Args:
        source: generated, files or sample (a few hundred generated pictures for trials).
        path: With source=files, a set of the archive, for example
            pathfinder32/curv_contour_length_14, or the unpacked archive.
        partial: Whether `path` has only a part of a set, or another set; every row then says so.
        split: How the pictures of files are divided: seeded, tfds (as the Long Range Arena code) or
            s4 (as the S4 repository).
        drawing: How pictures are generated: published.
        side: Number of pixels of a side: 32, 64, 128 or 256.
        contour: Number of dashes of a long snake; 6, 9 and 14 are published.
        distractor: Number of dashes of a short snake; null: a third of `contour`.
        distractors: Number of short snakes; null: as published for this side.
        canvas: Number of pixels of a side after a black border is added; null: no border.
        train_examples: Number of generated training pictures.
        validation_examples: Number of generated validation pictures.
        test_examples: Number of generated test pictures.
        data_seed: Seed of the generated pictures, or of the division of files into splits.
        processes: Number of processes that draw, without effect on the pictures; 0: one for each
            core.
        encoding: symbols or scalars.
        mean: Number subtracted from gray level / 255, for scalars.
        deviation: Divisor of gray level / 255 - mean, for scalars.
        black_is_padding: Whether black pixels have the padding id 0, as in the Long Range Arena
            code; for symbols.
        objective: What a model predicts: classify (a class), or masked, causal, prefix, unilm,
            permutation or replaced (tokens).
        masked_share: Fraction of tokens to draw, not for classify, causal and prefix; null: 50 %.
        masked_replacement: What masked tokens become: mask, or bert (80 % mask, 10 % random id).
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
                "task.path, a set of pictures from the archive, needs task.source=files, and the "
                f"other way round: got source={source}, path={path!r}; set both or neither"
            )
        check_partial(partial, path is not None)
        if split is not Division.seeded and (path is None or data_seed):
            raise ValueError(
                f"task.split={split} needs task.source=files and task.data_seed=0: got "
                f"source={source}, data_seed={data_seed}; set these two options, or "
                "task.split=seeded"
            )
        if side not in STYLES:
            raise ValueError(f"task.side: got {side}; wanted one of {', '.join(map(str, STYLES))}")
        style = STYLES[side]
        self.canvas = side if canvas is None else canvas
        wrong = [
            f"{name} must be at least {least}: got {value}"
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
            raise ValueError(f"Pathfinder: {'; '.join(wrong)}")
        self.style = replace(
            style,
            contour=contour,
            distractor=max(1, contour // 3) if distractor is None else distractor,
            distractors=style.distractors if distractors is None else distractors,
        )
        self.numbers: tuple[int, ...] = (train_examples, validation_examples, test_examples)
        if self.source is PathfinderSource.sample:
            self.numbers = tuple(map(min, self.numbers, SAMPLE_SIZES))
        self.path = self._find_set(named_path(path)) if path is not None else None
        self.division = split
        self.data_seed, self.processes, self.partial = data_seed, processes, partial
        self.encode(encoding, mean=mean, deviation=deviation, black_is_padding=black_is_padding)
        self.max_length = self.canvas**2
        self.answer(objective, masked_share, masked_replacement)

    @cached_property
    def spec(self) -> TaskSpec:
        """The facts about this task; with source=files, the data hash is a hash of the files."""
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
        """Return the source as rows print it; for files, also their copy and last two folders."""
        if self.path is not None:
            name = arena.copy_of(self.path) + "/".join(self.path.parts[-2:])
            return f"files: {name}{MARK if self.partial else ''}"
        return self.source.value

    def _find_set(self, path: Path) -> Path:
        """Return the folder of the set of pictures: `path`, or a subfolder of the archive there."""
        name = pathfinder_files.SETS.get(self.style.contour)
        if name is None:
            return path
        folder = f"pathfinder{self.style.side}/{name}"
        return arena.find_task_folder(path, folder, pathfinder_files.holds_pictures)

    def _identity(self) -> str:
        """Return the hash of everything that decides the prepared data."""
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
        """Folder of the prepared data, with or without `black_is_padding`."""
        return data_root() / f"pathfinder-{self.source}-{self.spec.data_hash}"

    def copies_allowed(self, first: str, second: str) -> float:
        """Return the share of pictures that two splits may have in common: nearly empty ones."""
        del first, second
        return 0.001

    def make(self) -> None:
        """Draw or read the pictures and store their gray levels."""
        if self.path is None:
            splits = {split: self._draw(split) for split in SPLITS}
        else:
            splits = self._read_files(self.path)
        self.write(
            splits,
            vocabulary=GRAY_LEVELS,
            style=asdict(self.style),
            licence=pathfinder_files.LICENCE if self.path else GENERATED,
        )

    def _first(self, split: str) -> int:
        """Return the number of the first generated picture of `split`."""
        return sum(self.numbers[: SPLITS.index(split)])

    def _draw(self, split: str) -> Iterator[RaggedRows]:
        """Yield the generated pictures of `split`, `BLOCK` at a time."""
        first, number = self._first(split), self.numbers[SPLITS.index(split)]
        jobs = (
            (self.style, self.data_seed, range(start, min(start + BLOCK, first + number)))
            for start in range(first, first + number, BLOCK)
        )
        # Few pictures are drawn sooner than other processes start.
        processes = self.processes if number > 4 * BLOCK else 1
        with tqdm(desc=f"{split} pictures", total=number, unit="picture", disable=None) as bar:
            for pixels, labels in in_order(_draw_pictures, jobs, processes):
                bar.update(len(labels))
                yield self._add_border(pixels, labels)

    def _read_files(self, path: Path) -> dict[str, Iterator[RaggedRows]]:
        """Return the pictures of a set of the archive by split."""
        listed = pathfinder_files.entries(path, partial=self.partial)
        parts = divide_pictures(listed, self.division, folder=path.name, seed=self.data_seed)
        return {split: self._read_pictures(part) for split, part in parts.items()}

    def _read_pictures(self, listed: list[pathfinder_files.ListedPicture]) -> Iterator[RaggedRows]:
        """Yield the listed pictures, `BLOCK` at a time."""
        levels = pathfinder_files.pictures(listed, self.style.side)
        for start in range(0, len(listed), BLOCK):
            block = listed[start : start + BLOCK]
            pixels = np.stack([next(levels) for _ in block])
            labels = np.array([entry.label for entry in block], np.uint8)
            yield self._add_border(pixels, labels)

    def _add_border(self, pixels: np.ndarray, labels: np.ndarray) -> RaggedRows:
        """Return pictures [n, side, side] as sequences, in the middle of a black canvas."""
        side, canvas = self.style.side, self.canvas
        if canvas > side:
            before = (canvas - side) // 2
            after = canvas - side - before
            pixels = np.pad(pixels, ((0, 0), (before, after), (before, after)))
        return rows_of(pixels, labels)

    def picture(self, split: str, index: int) -> pathfinder_trace.TracedPicture:
        """Draw a generated picture again; return it with the snakes that prove its label."""
        if self.path is not None:
            raise ValueError(
                "lra knows the paths of generated pictures only: got task.source=files"
            )
        return pathfinder_published.draw(self.style, self.data_seed, self._first(split) + index)

    def baselines(self, split: str) -> list[Baseline]:
        """Compute the baselines; for generated pictures, also those that know the snakes."""
        results = super().baselines(split)
        if self.per_token:
            return results
        train, data = (self.pictures(name) for name in ("train", split))
        results.append(
            baseline(
                "disc_distance",
                disc_distance.distance_answers(train, data, self._disc()),
                "This baseline reads only the distance between the two discs. A model with this "
                "score may use no path.",
            )
        )
        if self.path is None:
            results += self._drawing_baselines(split, data.targets.astype(bool))
        return results

    def _drawing_baselines(self, split: str, targets: Bool[np.ndarray, " n"]) -> list[Baseline]:
        """Compute the baselines that know how each picture was drawn."""
        drawn = [self.picture(split, index) for index in range(len(targets))]
        return [
            baseline(
                "path_search",
                np.array([pathfinder_trace.is_one_snake(picture) for picture in drawn]) == targets,
                "This baseline knows the drawn snakes, and follows them from one disc. A score of "
                "100 % shows that all labels are correct.",
            ),
            baseline(
                "straightest_dashes",
                np.array([pathfinder_trace.straightest(picture) for picture in drawn]) == targets,
                "This baseline knows the dashes but not their snakes, and continues straight on. "
                "It fails at some crossings, where the other snake is straighter.",
            ),
        ]

    def _disc(self) -> UInt8[np.ndarray, "d d"]:
        """Return the gray levels of one disc, drawn in the middle of a picture to be whole."""
        radius, side = self.style.marker_radius, self.style.side
        return pathfinder_ink.disc((side // 2, side // 2), radius, side)[1]

    def levels(self, row: np.ndarray) -> np.ndarray:
        """Return the square picture of a stored row of pixels."""
        return row.reshape(self.canvas, -1)

    def class_name(self, target: int) -> str:
        """Return the name of the class `target`."""
        return "on one path" if target else "on two paths"


def _draw_pictures(job: tuple[Style, int, range]) -> tuple[np.ndarray, np.ndarray]:
    """Return the pictures [n, s, s] and labels [n] of a job: style, seed, numbers of pictures."""
    style, seed, numbers = job
    drawn = [pathfinder_published.draw(style, seed, number) for number in numbers]
    labels = np.array([picture.label for picture in drawn], np.uint8)
    return np.stack([picture.pixels for picture in drawn]), labels
