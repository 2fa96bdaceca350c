"""What a user writes who checks types: a run, a refusal, rows, a search, a table."""

import json
from pathlib import Path

import lra

SMALL = "task.source=sample logger=none report=false"


def trained(steps: int) -> lra.CompletedSweep | None:
    try:
        return lra.run(
            SMALL, model="identity", task="listops", optim={"steps": steps, "warmup_steps": 0}
        )
    except lra.ConfigError as error:
        print(f"refused: {error}")
    except (lra.NotPrepared, lra.BadData, lra.BadStore) as error:
        print(f"no data: {error}")
    return None


def losses(done: lra.CompletedSweep) -> list[float]:
    kept: list[float] = []
    for file in done.results.glob("cells/*/*/rows-*.jsonl"):
        for line in file.read_text().splitlines():
            row: lra.Row = json.loads(line)
            if row["metric"] == "loss" and row["value"] is not None:
                kept.append(row["value"])
    return kept


def words(search: lra.Search, findings: lra.Findings) -> list[str]:
    tuned: lra.ResultTable = search.table()
    failed: list[lra.Finding] = findings.failed
    return [tuned.to_markdown(), *(each.detail for each in failed)]


assert trained(-1) is None
done = trained(2)
assert done is not None
found = lra.rows(done.results, done.sweep)
ended = found[found["status"] == lra.Status.ok]
print(done.exit_code, len(losses(done)) > 0, len(ended) > 0, sorted(set(ended["model"])))
model: lra.Backbone = lra.model("identity")
task: lra.Task = lra.task("listops", source="sample")
print(Path(done.results).name, model.training, task.spec.name)
