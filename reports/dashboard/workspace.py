"""Write a Python script that makes a W&B workspace with panels for the runs of lra."""

import json

from lra.reports.dashboard import keys
from lra.runners.metrics import JUDGED_BY

SCORES = (*JUDGED_BY, "loss")
TRAINED = ("train_step_time", "train_time", "process_peak_bytes", "parameters")
"""Costs of a training, which are in the summary of its run."""
_SCRIPT = '''\
"""Save a W&B workspace for the runs of lra.

First run `pip install 'lra[dashboard]'` and `wandb login`.
"""

import wandb
import wandb_workspaces.reports.v2 as wr
import wandb_workspaces.workspaces as ws

SWEEP = {sweep!r}  # the workspace shows the runs of this sweep; None shows all of the project
PROJECT = {project!r}
ENTITY = {entity!r}  # the W&B account or team; None is your default
MOST = 200  # the most runs in one panel


def lines(x, *names, log=False):
    shape = {{"x": x, "log_x": log, "log_y": log, "max_runs_to_show": MOST}}
    return [wr.LinePlot(title=name, y=[name], **shape) for name in names]


def bars(*names):
    return [wr.BarPlot(title=name, metrics=[name], max_bars_to_show=MOST) for name in names]


def points(y, *names):
    score = wr.SummaryMetric(y)
    return [wr.ScatterPlot(title=f"{{y}} against {{x}}", x=wr.SummaryMetric(x), y=score, log_x=True)
            for x in names]


SECTIONS = {{
    "Cost against length": lines({costs}, log=True),
    "Learning curves": lines({curves}),
    "While training": lines({training}),
    "Scores": bars({scores}),
    "Score against cost": points({trade_offs}),
    "Failures": bars("failed_at_length"),
}}

# Lines are not grouped, because a mean over runs of different models has no meaning.
workspace = ws.Workspace(
    entity=ENTITY or wandb.Api().default_entity,
    project=PROJECT,
    name=f"Results of {{SWEEP or 'all sweeps'}}",
    sections=[ws.Section(name=name, panels=p, is_open=True) for name, p in SECTIONS.items()],
    settings=ws.WorkspaceSettings(max_runs=MOST),
    runset_settings=ws.RunsetSettings(
        filters="" if SWEEP is None else f"Metric('Group') == {{SWEEP!r}}",
        pinned_columns=["summary:status"],
    ),
)
workspace.save()
print(workspace.url)
'''


def script(*, sweep: str | None, project: str, entity: str | None) -> str:
    """Return a Python script that saves the workspace on W&B's server and prints its address.

    Comments in the script explain its arguments.
    """

    def quote(*names: str) -> str:
        """Return names as arguments of a call in the script."""
        return ", ".join(map(json.dumps, names))

    metrics = (("time", ""), (keys.SPEEDUP, "sdpa"), ("peak_tensor_bytes", ""))
    costs = [
        keys.cost(mode, metric, reference)
        for mode in ("step", "forward")
        for metric, reference in metrics
    ]
    validation = [keys.score("validation", metric) for metric in SCORES]
    return _SCRIPT.format(
        sweep=sweep,
        project=project,
        entity=entity,
        costs=quote(keys.LENGTH_AXIS, *costs),
        curves=quote(keys.STEP_AXIS, keys.LOSS, *validation),
        training=quote(keys.STEP_AXIS, *keys.TRAINING.values()),
        scores=quote(*(keys.score("test", metric) for metric in SCORES)),
        trade_offs=quote(keys.score("test", "accuracy"), *map(keys.training_key, TRAINED)),
    )
