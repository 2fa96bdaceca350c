"""What is known of families: measured times and scores in rows, and scores in papers.

The published rows stay in the repository. `published_rows.json` has the part that is needed here,
so that an installed package gives the same answers as a clone. It is made by
`python tests/lra/results/published_digest.py`.
"""

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from lra.composition import layer_list
from lra.composition.binding import plain
from lra.composition.catalogue import names
from lra.composition.class_path import locate
from lra.composition.compose import facts, group_file
from lra.composition.run import Run
from lra.models.backbone.choices import CAUSAL_HEADS, TOKEN_HEADS, Head
from lra.reports.arena.literature import printed_scores
from lra.reports.rows import by_setting, cost_points, cost_rows, prepare
from lra.reports.tables.scores import ACCURACY, LANGUAGE, Score, accuracy_table
from lra.results.rows import stored_rows
from lra.runners.records import Status
from lra.sweep.identity import decisive
from lra.tasks.task import Task

if TYPE_CHECKING:
    import pandas as pd

DIGEST = Path(__file__).with_name("published_rows.json")
SHELF = "reports/published/"
REFERENCE, MODE = "sdpa", "step"


class Provenance(NamedTuple):
    """Where numbers come from."""

    task: str
    """The task of scores; "": they are times of training steps relative to exact attention."""
    about: str
    """The metric and the setting of scores, or the machine of times."""
    place: str
    """The file or the results folder."""
    device: str = ""
    """Of times, the kind of device: cpu or cuda; "" if the hardware profile is not known."""
    causal: bool = False
    """Of times, whether the models are causal."""
    setting: str = ""
    """The setting of absolute times (seconds of a step on a GPU); "": scores, or relative times."""


class Evidence(NamedTuple):
    """One measured number of a family."""

    origin: Provenance
    family: str
    length: int
    """Tokens of the timed sequences; 0 for scores."""
    value: float
    """A score, a relative time, or seconds; 0 seconds: the memory did not suffice."""

    @property
    def source(self) -> str:
        """Return in words what the number is, and where it comes from."""
        task, about, place, _, causal, _ = self.origin
        direction = "causal" if causal else "bidirectional"
        return f"{'' if task else f'{self.length:,} tokens, {direction}, '}{about}: {place}"

    def distance(self, length: int, device: str, *, causal: bool) -> tuple[float, ...]:
        """Return a key that sorts evidence by its relevance to this length, device and direction.

        Times are sorted by the same kind of device, then by stored before published, the same
        direction, and the nearest length; scores by stored before published, then the best.
        """
        task, about, place, timed_device, is_causal, _ = self.origin
        is_published = place.startswith(SHELF)
        if task:
            return (is_published, -self.value if about.startswith("accuracy") else self.value)
        octaves = abs(math.log2(self.length / length))
        return (timed_device != device, is_published, is_causal != causal, octaves)


@cache
def published_evidence(file: Path) -> Sequence[Evidence]:
    """Return the evidence in a digest of published rows, such as `DIGEST`."""
    return [
        Evidence(Provenance(*origin), family, int(length), value)
        for origin, families in json.loads(file.read_text(encoding="utf-8"))
        for family, values in families.items()
        for length, value in values.items()
    ]


def on_record(
    runs: Sequence[Run], results: Path, left_out: list[str], *, scores: bool
) -> dict[str, dict[str, float | str | bool | None]]:
    """Return the most relevant `time_ratio`, `score` and `paper_score` of each run's family.

    The source of each is in `..._source`, "" if nothing is known. `time_ratio_alike` says whether
    the time is from the same kind of device and direction as the runs. If a training step was
    measured on the same GPU in the same setting, `step_s`, `fits` and `step_source` are set, too.

    Args:
        runs: Runs in one setting, as `lra.sweep.family_costs.runs_of` returns them.
        results: A results folder, whose rows are added to the published ones if it exists.
        left_out: Gains a message for each cell of the folder that cannot be read.
        scores: Whether scores of the task are wanted.
    """
    first = runs[0]
    (_, length), *_ = first.runner.cells(first.model, 0)  # all cells have the length that was set
    causal, device = facts(first, length).head in CAUSAL_HEADS, str(first.hardware.device)
    known, tasks = [*published_evidence(DIGEST)], {first.task_name: first.task}
    if (results / "cells").is_dir():
        with suppress(FileNotFoundError):  # the folder has no rows yet
            rows, cells, damaged = stored_rows(results, None)
            left_out += damaged
            known += evidence_of(str(results), prepare(rows), tasks, cells)
    known.sort(key=lambda evidence: evidence.distance(length, device, causal=causal))
    by_family: dict[str, dict[str, float | str | bool | None]] = {}
    for run in runs:
        of_family = [evidence for evidence in known if evidence.family == run.model]
        numbers = [(e.origin.task, e.value, e.source) for e in of_family if not e.origin.setting]
        timed = (e for e in of_family if not (e.origin.task or e.origin.setting))
        nearest = next(timed, None)
        papers = printed_scores(run.model, first.task_name)
        papers.sort(key=lambda score: -(score.percent or 0.0))
        columns: dict[str, list[tuple[float | None, str]]] = {
            "time_ratio": [(value, source) for task, value, source in numbers if not task],
            "score": [(v, s) for task, v, s in numbers if scores and task == first.task_name],
            "paper_score": [(p.percent, f"accuracy, {p.source}") for p in papers if scores],
        }
        if run.model == REFERENCE:
            columns["time_ratio"] = [(1.0, "exact attention itself")]
        alike = nearest is not None and (
            (nearest.origin.device, nearest.origin.causal) == (device, causal)
        )
        by_family[run.model] = {"time_ratio_alike": alike or run.model == REFERENCE}
        by_family[run.model] |= _find_measured(run, length, causal, of_family)
        for column, candidates in columns.items():
            value, source = next(iter(candidates), (None, ""))  # the first is the most relevant
            by_family[run.model] |= {column: value, f"{column}_source": source}
    return by_family


def _find_measured(
    run: Run, length: int, causal: bool, known: Sequence[Evidence]
) -> dict[str, float | str | bool | None]:
    """Return the time of a training step in exactly the setting of a run; source "": not known."""
    hardware, batch = run.hardware, run.config["runner"]["batch_size"]
    options = {name: value for name, value in run.mixer_options.items() if name != "class_path"}
    mixer = decisive(locate(str(run.mixer_options["class_path"]), run.config["plugins"]), options)
    mixer |= {name: options[name] for name in layer_list.PARTS if name in options}
    machine = f"{run.task_name} on {hardware.name}, {hardware.precision}, batch {batch}"
    setting = _describe_setting(machine, plain(run.backbone), mixer)
    for evidence in known:
        origin = evidence.origin
        if (origin.setting, evidence.length, origin.causal) != (setting, length, causal):
            continue
        if evidence.value:
            return {"step_s": evidence.value, "fits": True, "step_source": evidence.source}
        if hardware.memory_limit_bytes is None:  # with a limit, another memory was too small
            return {"fits": False, "step_source": f"out of memory: {evidence.source}"}
    return {"step_source": ""}


def evidence_of(
    place: str,
    frame: "pd.DataFrame",
    tasks: Mapping[str, Task],
    cells: Mapping[str, Mapping[str, Any]],
) -> Iterator[Evidence]:
    """Yield the times in the rows of `frame`, and their scores on `tasks` (by name).

    `place` says where the rows come from; `cells` are theirs, as `stored_rows` returns them.
    """
    yield from _read_times(place, frame)
    yield from _read_seconds(place, frame, cells)
    for name, task in tasks.items():
        judged = LANGUAGE if Head[task.spec.kind.name] in TOKEN_HEADS else ()
        yield from _read_scores(place, frame, name, (*judged, ACCURACY))


def _read_times(place: str, frame: "pd.DataFrame") -> Iterator[Evidence]:
    """Yield the times of training steps, divided by those of exact attention.

    Names of models with public kernels differ from those of their families, and are excluded.
    """
    timed = cost_rows(frame)
    for part in by_setting(timed) if len(timed) else ():
        first = part.rows.iloc[0]
        about = f"{first['device']}, {first['precision']}"
        device, causal = _find_device(str(first["hardware"])), bool(first["causal"])
        origin = Provenance(task="", about=about, place=place, device=device, causal=causal)
        families = dict(zip(part.rows["name"], part.rows["family"], strict=True))
        for point in cost_points(part.rows):
            ratio = point.time_ratio.get(REFERENCE)
            if point.mode != MODE or ratio is None or ratio.value is None:
                continue
            if point.model == families[point.model]:  # with the options of its file
                yield Evidence(origin, point.model, point.length, ratio.value)


def _read_seconds(
    place: str, frame: "pd.DataFrame", cells: Mapping[str, Mapping[str, Any]]
) -> Iterator[Evidence]:
    """Yield the seconds of training steps on GPUs; 0 seconds for a step that ran out of memory."""
    timed = frame[(frame["metric"] == "time") & (frame["mode"] == MODE) & (frame["kernels"] == "")]
    for row in timed[timed["status"].isin((Status.ok, Status.out_of_memory))].to_dict("records"):
        cell = cells.get(row["cell"], {})
        mixer, described = cell.get("identity", {}).get("mixer", {}), cell.get("described", {})
        if described.get("device") != "cuda":
            continue
        length = int(row["length"])
        budget = int(described["machine"]["token_budget"])
        batch = described["runner"]["batch_size"] or max(1, budget // length)
        precision = str(row["precision"])
        machine = f"{row['task']} on {row['hardware']}, {precision}, batch {batch}"
        setting = _describe_setting(machine, described["backbone"], mixer)
        about = f"{row['device']}, {precision}"
        origin = Provenance("", about, place, "cuda", bool(row["causal"]), setting)
        out_of_memory = row["status"] != Status.ok
        yield Evidence(
            origin, str(row["family"]), length, 0.0 if out_of_memory else float(row["value"])
        )


SIZES = (
    "width", "heads", "head_width", "depth", "feed_forward", "feed_forward_width", "norm",
    "positions", "activation_checkpointing",
)  # fmt: skip
"""Options of the backbone that decide how long a step takes."""


def _describe_setting(machine: str, backbone: Mapping[str, Any], mixer: Mapping[str, Any]) -> str:
    """Return everything that decides the time of a training step, except length and direction.

    The version of a family is excluded: it counts changes of numbers, which need not change times.
    """
    sizes = ", ".join(f"{name}={backbone.get(name)}" for name in SIZES)
    options = "".join(f", {k}={v}" for k, v in sorted(mixer.items()) if k != "version")
    return f"{machine}, {sizes}{options}"


def _find_device(hardware: str) -> str:
    """Return the kind of device of a hardware profile; "" if there is no such profile."""
    return str(group_file("hardware", hardware)["device"]) if hardware in names("hardware") else ""


def _read_scores(
    place: str, frame: "pd.DataFrame", task: str, judged: Sequence[Score]
) -> Iterator[Evidence]:
    """Yield each family's test score on a task, the mean over seeds, in the first metric it has.

    Classifications with a regime are excluded, because a regime makes a different task of them.
    """
    frame = frame[(frame["task"] == task) & (frame["baseline"] == "")]
    is_language = len(judged) > 1  # see `evidence_of`
    frame = frame if is_language else frame[frame["regime"] == ""]
    families = dict(zip(frame["name"], frame["family"], strict=True))
    form_counts = Counter(families.values())
    examples_seen = frame[frame["metric"] == "examples_seen"].groupby("cell")["value"].max()
    scales = {
        row["cell"]: f", scale {row['scale']} (length {row['length']:.0f})" if row["scale"] else ""
        for row in frame[["cell", "scale", "length"]].drop_duplicates("cell").to_dict("records")
    }
    tables = ((score, accuracy_table(frame, "test", score)) for score in judged)
    score, table = next(((s, t) for s, t in tables if t is not None), (ACCURACY, None))
    for row in table.rows if table else ():
        family = families[row.title]
        form = f", {row.title}" if form_counts[family] > 1 else ""
        for column, entry in zip(table.columns if table else (), row.entries, strict=True):
            if entry.value is None:
                continue
            value = entry.value * score.factor
            examples = max((examples_seen.get(cell, 0.0) for cell in entry.cells), default=0.0)
            after = f" after {examples:,.0f} training examples" if examples else ""
            about = f"{score.title.lower()}{after}, {column.title}{form}"
            about += "".join(sorted({scales[cell] for cell in entry.cells}))
            yield Evidence(Provenance(task, about, place), family, 0, value)
