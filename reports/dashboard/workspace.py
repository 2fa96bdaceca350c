"""A W&B workspace over the keys that runs carry, as a script for the public library of W&B."""

import json

from lra.reports.dashboard import keys
from lra.runners.metrics import JUDGED_BY

SCORES = (*JUDGED_BY, "loss")
TRAINED = ("train_step_time", "train_time", "process_peak_bytes", "parameters")
"""What a training costs: in its run's summary, beside its scores."""
_SCRIPT = '''\
"""Saves a W&B workspace over runs of lra; needs `pip install 'lra[dashboard]'`, `wandb login`."""

import wandb
import wandb_workspaces.reports.v2 as wr
import wandb_workspaces.workspaces as ws

SWEEP = {sweep!r}  # the group of runs that it shows; None: all of the project
PROJECT = {project!r}
ENTITY = {entity!r}  # account or team; None: the default of the account
MOST = 200  # runs in one panel


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

# No lines are grouped: a mean of runs that differ in more than their seed is a number of none.
workspace = ws.Workspace(
    entity=ENTITY or wandb.Api().default_entity,
    project=PROJECT,
    name=f"Results of {{SWEEP or 'all sweeps'}}",
    sections=[ws.Section(name=name, panels=each, is_open=True) for name, each in SECTIONS.items()],
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
    """Return a Python script that saves the workspace on W&B's server, and prints its address.

    What its arguments mean stands beside them in the script.
    """

    def listed(*names: str) -> str:
        return ", ".join(map(json.dumps, names))

    wanted = (("time", ""), (keys.SPEEDUP, "sdpa"), ("peak_tensor_bytes", ""))
    costs = [keys.cost(mode, *each) for mode in ("step", "forward") for each in wanted]
    validation = [keys.score("validation", metric) for metric in SCORES]
    return _SCRIPT.format(
        sweep=sweep,
        project=project,
        entity=entity,
        costs=listed(keys.LENGTH_AXIS, *costs),
        curves=listed(keys.STEP_AXIS, keys.LOSS, *validation),
        training=listed(keys.STEP_AXIS, *keys.TRAINING.values()),
        scores=listed(*(keys.score("test", metric) for metric in SCORES)),
        trade_offs=listed(keys.score("test", "accuracy"), *map(keys.training_key, TRAINED)),
    )
