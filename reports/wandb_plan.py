"""What the W&B mirror sends, as plain data: one run per model, task and seed, and a report run."""

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from reports.rows import TIMED, disturbed, labels_of, prepare, shown
from runners.records import COLUMNS, canonical, digest

Scalar = float | int | str | None

# Each axis with the metrics that are drawn over it.
LENGTH_AXIS, STEP_AXIS = "sequence_length", "optimiser_step"
AXES = {LENGTH_AXIS: ("speed/*", "memory/*"), STEP_AXIS: ("train/*", "quality/*")}
_PARTS = ("factor", "measure", "layer", "head", "within")
"""Labels that tell the final values of one cell apart."""
_TAG_LIMIT = 64
"""Characters that the server takes in a tag."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePlan:
    """A table of W&B."""

    columns: list[str]
    rows: list[list[Scalar]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """Everything about one W&B run."""

    id: str
    name: str
    group: str
    job_type: str
    tags: list[str]
    config: dict[str, Any]
    history: list[dict[str, float]] = field(default_factory=list)
    summary: dict[str, Scalar] = field(default_factory=dict)
    tables: dict[str, TablePlan] = field(default_factory=dict)
    images: dict[str, str] = field(default_factory=dict)
    """Paths of PNG files by name."""
    artifact: dict[str, list[str]] = field(default_factory=dict)
    """Artifact name: paths of its files."""

    def as_json(self) -> dict[str, Any]:
        """Return plain JSON for the process that writes it."""
        return asdict(self)

    def content(self) -> str:
        """Return a hash of everything in the run, files included."""
        paths = [*self.images.values(), *(p for files in self.artifact.values() for p in files)]
        files = {p: hashlib.sha256(Path(p).read_bytes()).hexdigest() for p in paths}
        return digest([json.loads(json.dumps(self.as_json())), files])


def run_id(*parts: object) -> str:
    """Return the stable id of a run: the same parts give the same run on any machine."""
    return digest([str(p) for p in parts], digits=16)


def plan_runs(
    rows: pd.DataFrame, *, sweep: str, config_by_cell: Mapping[str, Mapping[str, Any]]
) -> list[RunPlan]:
    """Plan one run per runner, model, task and seed."""
    frame = prepare(rows)
    plans = []
    keys = ["runner", "name", "task", "seed"]
    for key, part in frame.groupby(keys, sort=True, dropna=False):
        runner, name, task, seed = (shown(v) for v in key)
        plans.append(
            _plan(
                part,
                runner=runner,
                name=name,
                task=task,
                seed=seed,
                sweep=sweep,
                config_by_cell=config_by_cell,
            )
        )
    return plans


def _plan(
    part: pd.DataFrame,
    *,
    runner: str,
    name: str,
    task: str,
    seed: str,
    sweep: str,
    config_by_cell: Mapping[str, Mapping[str, Any]],
) -> RunPlan:
    device = shown(part["device"].iloc[0])
    cells = [str(c) for c in part["cell"].unique()]
    lengths = _by_length(part)
    bad = part[part["status"] != "ok"]
    summary: dict[str, Scalar] = dict(_final(part))
    for length, values in lengths.items():
        summary |= {f"at_{length}/{k.replace('/', '_')}": v for k, v in values.items()}
    summary["status"] = "complete" if bad.empty else "incomplete"
    own = bad[bad["reference"] == ""]
    for row in own.itertuples():
        place = f"at_{shown(row.length)}_{row.mode}"
        summary[f"failed/{place}"] = f"{row.status}: {row.reason}"
    if len(own):
        summary["failed_at_length"] = min(int(n) for n in own["length"].dropna())
    shaken = part[part["disturbed"] != ""]
    for row in shaken.itertuples():
        place = f"at_{shown(row.length)}_{_key(row).replace('/', '_')}"
        summary[f"disturbed/{place}"] = str(row.disturbed)
    places = ["mode", "length", "metric", "reference", "status", "reason"]
    columns = [*places, "cell"]
    listed = [[_plain(v) for v in line] for line in bad[columns].to_numpy(dtype=object)]
    history = [{LENGTH_AXIS: float(n)} | values for n, values in lengths.items()]
    facts = ("task_version", "source", "hardware", "device", "precision", "threads", "causal")
    return RunPlan(
        id=run_id(sweep, runner, name, task, seed),
        name=f"{name}/{task}/s{seed}",
        group=sweep,
        job_type=runner,
        tags=[t[:_TAG_LIMIT] for t in dict.fromkeys([name, task, device, sweep])],
        config={
            "sweep": sweep,
            "cells": cells,
            "disturbed_cells": sorted(set(shaken["cell"])),
            "run": {"model": name, "task": task, "seed": seed, "runner": runner}
            | {c: shown(part[c].iloc[0]) for c in facts},
            "config": _shared([config_by_cell[c] for c in cells if c in config_by_cell]),
        },
        history=history + _by_step(part),
        summary=summary,
        tables={"not_measured": TablePlan(columns=columns, rows=listed)} if listed else {},
    )


def _plain(value: Any) -> Scalar:
    if value is None or value is pd.NA or (isinstance(value, float) and math.isnan(value)):
        return None
    if isinstance(value, float) and math.isinf(value):
        return str(value)  # an open interval; JSON has no word for it
    return value if isinstance(value, (int, float, str)) else str(value)


def _shared(configs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what all configurations of a run agree on: its cells differ in length and mode."""
    if not configs:
        return {}
    first, found = configs[0], {}
    for key, value in first.items():
        others = [c.get(key) for c in configs[1:]]
        if isinstance(value, Mapping):
            if all(isinstance(o, Mapping) for o in others):
                found[key] = _shared([value, *(o for o in others if isinstance(o, Mapping))])
        elif all(key in c and canonical(c[key]) == canonical(value) for c in configs[1:]):
            found[key] = value
    return found


def _key(row: Any) -> str:
    against = f"_against_{row.reference}" if row.reference else ""
    section = "memory" if "bytes" in str(row.metric) else "speed"
    return f"{section}/{row.mode}_{row.metric}{against}"


def _by_length(part: pd.DataFrame) -> dict[int, dict[str, float]]:
    """Return the values of timing cells by length."""
    timed = part[part["cell"].isin(set(part[part["metric"].isin(TIMED)]["cell"]))]
    found: dict[int, dict[str, float]] = {}
    good = timed[(timed["status"] == "ok") & timed["length"].notna()].sort_values("length")
    for row in good.itertuples():
        found.setdefault(int(str(row.length)), {})[_key(row)] = float(str(row.value))
    return found


def _quality(row: Any) -> str:
    told = [f"{key}_{row.labels[key]}" for key in _PARTS if row.labels.get(key, "all") != "all"]
    if row.metric in {"span", "occlusion_agreement"}:
        return "/".join((str(row.metric), *told))
    if told:
        return f"quality/{row.split}_{row.metric}/{'_'.join(told)}"
    if str(row.metric) == "train_loss":
        return "train/loss"
    if row.split:
        return f"quality/{row.split}_{row.metric}"
    return f"train/{row.metric}"


def _by_step(part: pd.DataFrame) -> list[dict[str, float]]:
    """Return training curves: one line per optimiser step."""
    found: dict[int, dict[str, float]] = {}
    good = part[(part["status"] == "ok") & part["step"].notna()].sort_values("step")
    for row in good.itertuples():
        found.setdefault(int(str(row.step)), {})[_quality(row)] = float(str(row.value))
    return [{STEP_AXIS: float(step)} | values for step, values in found.items()]


def _final(part: pd.DataFrame) -> Iterator[tuple[str, float]]:
    """Yield the final values of cells that are not timed by length."""
    timed = set(part[part["metric"].isin(TIMED)]["cell"])
    for row in part[(part["status"] == "ok") & part["step"].isna()].itertuples():
        if row.cell not in timed:
            yield _quality(row), float(str(row.value))


def plan_report(
    rows: pd.DataFrame, files: Sequence[Path], *, sweep: str, rows_file: Path
) -> RunPlan:
    """Plan the run that holds tables, figures and all rows; writes the rows to `rows_file`."""
    lines = [
        json.dumps({c: _cell(record[c]) for c in COLUMNS}, sort_keys=True)
        for record in rows.to_dict("records")
    ]
    rows_file.parent.mkdir(parents=True, exist_ok=True)
    rows_file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    drawn = {p.stem for p in files if p.suffix == ".png"}
    tables = {
        f"tables/{p.stem}": _read_table(p)
        for p in files
        if p.suffix == ".csv" and p.stem not in drawn
    }
    artifact = {f"rows-{sweep}": [str(rows_file)]}
    if files:
        artifact[f"report-{sweep}"] = [str(p) for p in files]
    shaken = [disturbed({"labels": labels_of(found)}) for found in rows["labels"]]
    return RunPlan(
        id=run_id(sweep, "report"),
        name=f"report/{sweep}",
        group=sweep,
        job_type="report",
        tags=[sweep[:_TAG_LIMIT]],
        config={"sweep": sweep, "cells": int(rows["cell"].nunique())},
        summary={
            "rows": len(rows),
            "failed_rows": int((rows["status"] != "ok").sum()),
            "disturbed_rows": len([why for why in shaken if why]),
        },
        tables=tables,
        images={f"figures/{p.stem}": str(p) for p in files if p.suffix == ".png"},
        artifact=artifact,
    )


def _cell(value: Any) -> Any:
    if isinstance(value, (dict, list, tuple)):
        return value
    if value is pd.NaT or (not isinstance(value, str) and _plain(value) is None):
        return None
    return value.isoformat() if hasattr(value, "isoformat") else value


def _read_table(path: Path) -> TablePlan:
    table = pd.read_csv(path)
    rows = [[_plain(v) for v in line] for line in table.astype(object).to_numpy()]
    return TablePlan(columns=[str(c) for c in table.columns], rows=rows)
