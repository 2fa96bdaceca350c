"""Fit the weights of `lra.runners.measurement.effort` on half of the cells, judge them on the
other.

    python tests/benchmarks/planning.py RESULTS

Cells are those of `runner=train` in a results folder, and of `+experiment=families` in
`reports/published`, whose machine's rates must be those of this one (`lra doctor --rates`). Every
second cell of each is fitted: least squares of predicted / measured, no weight below 0.
"""

import argparse
import json
from pathlib import Path

import numpy as np
from scipy.optimize import nnls

from lra.composition.compose import typed
from lra.composition.hydra_entry import entries
from lra.runners.measurement.effort import WEIGHTS, Effort, parts
from lra.runners.measurement.rates import stored_rates
from lra.runners.storage.formats import cell_folders, read_newest_rows
from lra.runners.store import Store
from lra.sweep.cell_list import build
from lra.sweep.costs import Costs
from lra.sweep.forecast import threads
from lra.sweep.work import CellWork

PUBLISHED = Path(__file__).resolve().parents[2] / "reports/published/families-epyc-2026-11-21.jsonl"


def part_seconds(run, columns, costs: Costs) -> Effort:
    """Return the seconds of each kind of work in the first passes of a cell, not weighted."""
    work = CellWork.planned(run, columns)
    first = run.runner.passes(work)[0]
    rates = stored_rates(run.hardware, threads(run))
    if rates is None:
        raise SystemExit("this machine has no rates: lra doctor --rates")
    return parts(costs.of(run, first).work, rates)


def trainings(results: Path):
    """Yield name, measured seconds and parts of every training in a results folder."""
    store, costs = Store(results), Costs()
    for folder in cell_folders(results):
        about, newest = store.cell(folder.name), read_newest_rows(folder)
        times = {row["metric"]: row["value"] for row in (newest[1] if newest else [])}
        if about["columns"]["runner"] == "train" and times.get("train_step_time"):
            run = typed(about["config"])
            name = f"{about['columns']['model']} on {about['columns']['task']}"
            yield name, times["train_step_time"], part_seconds(run, about["columns"], costs)


def families():
    """Yield the same of the published costs of every family."""
    measured = {}
    for line in PUBLISHED.read_text().splitlines():
        row = json.loads(line)
        if row["metric"] == "time" and row["value"]:
            measured[row["model"], row["length"]] = row["value"]
    costs = Costs()
    planned = build(entries(["+experiment=families"])).planned
    for each in planned:
        columns = each.cell.columns
        seconds = measured.get((columns["model"], columns["length"]))
        if seconds and not (columns["model"] == "tlb" and columns["length"] > 2048):
            name = f"{columns['model']} at {columns['length']}"
            yield name, seconds, part_seconds(each.run, columns, costs)


def main() -> None:
    """Print weights, errors on the other half, and every ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    sets = {"trainings": sorted(trainings(parser.parse_args().results)), "families": [*families()]}
    rows = [(kind, number % 2 == 0, *cell) for kind, cells in sets.items()
            for number, cell in enumerate(cells)]  # fmt: skip
    measured = np.array([row[3] for row in rows])
    relative = np.array([row[4] for row in rows]) / measured[:, None]
    half = np.array([row[1] for row in rows])
    # The two sets count alike, however many cells each has.
    size = np.array([1 / len(sets[row[0]]) ** 0.5 for row in rows])
    fitted, _ = nnls((relative * size[:, None])[half], size[half])
    print("weights", Effort(*(round(float(weight), 2) for weight in fitted)))
    for what, weights in (("fitted now", fitted), ("in effort.py", np.array(WEIGHTS))):
        ratios = 1 / (relative @ weights)
        for kind in sets:
            for name, part in (("fitted", half), ("other half", ~half)):
                some = ratios[part & np.array([row[0] == kind for row in rows])]
                near = np.mean((some < 1.5) & (some > 1 / 1.5))
                print(
                    f"{what}: {kind}, {name}, {len(some)} cells: {near:.0%} within 1.5, "
                    f"median {np.median(some):.2f}, {some.min():.2f} to {some.max():.2f}"
                )
    for row, ratio in zip(rows, 1 / (relative @ np.array(fitted)), strict=True):
        print(f"{row[2]:32} {row[3]:10.4f} s  measured / predicted {ratio:.2f}")


if __name__ == "__main__":
    main()
