"""The child of `lra dashboard`: W&B's own specification of a workspace, and the way to its server.

It alone imports what it is about, in a process of its own.
"""

import importlib
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from lra.reports.dashboard.events import one_line, say
from lra.runners.records import digest

_COLUMNS, _HEIGHT = 2, 8
"""Panels side by side, and lines of W&B's grid, which is 24 wide, that one is high."""
_MOST = 200
"""Lines that one panel draws; W&B's own limit is 10."""
LONGEST = 200
"""Characters of an error's text."""
_VIEW = """
query View($entity: String, $project: String!, $type: String!, $name: String!) {
  project(name: $project, entityName: $entity) {
    id
    allViews(viewType: $type, viewName: $name) { edges { node { id name } } }
  }
}
"""


def main() -> None:
    """Read a job from standard input; print one JSON line per event."""
    job = json.load(sys.stdin)
    try:
        _library("reports.v2")
    except ImportError as error:
        say(event="missing", reason=str(error))
        return
    try:
        if "save" in job:
            save(job["save"], timeout_s=job["timeout_s"])
        else:
            content = specification(job["workspace"], project=job["project"], entity=job["entity"])
            say(event="made", specification=content)
    except Exception as error:  # noqa: BLE001 - whatever an answer of a server makes wandb raise
        say(event="failed", reason=one_line(error, LONGEST))


def _library(module: str) -> Any:
    """Return a module of wandb_workspaces, whose star imports no type checker sees through."""
    return importlib.import_module(f"wandb_workspaces.{module}")


# ------------------------------------------------------------------------- the specification


def specification(
    workspace: Mapping[str, Any], *, project: str, entity: str | None
) -> dict[str, Any]:
    """Return the view that W&B stores; the same workspace gives the same words.

    Args:
        workspace: `lra.reports.dashboard.panels.Workspace.as_json`.
        project: of W&B.
        entity: account or team; None: the one that is logged in, when it is saved.
    """
    # one in a project for a sweep: saved again, it takes the place of the one before
    identity = digest([project, workspace["sweep"]], digits=11)
    return {
        "project": project,
        "entity": entity,
        "name": f"nw-{identity}-v",
        "displayName": workspace["title"],
        "description": "",
        "type": "project-view",
        "spec": _spec(workspace, identity),
    }


def _spec(workspace: Mapping[str, Any], identity: str) -> dict[str, Any]:
    expr, workspaces = _library("expr"), _library("workspaces")

    built = workspaces.Workspace(
        entity="",
        project="",
        sections=[
            workspaces.Section(
                name=title,
                panels=_workspace_panels(panels, f"{identity} workspace {title}"),
                is_open=True,
                layout_settings=workspaces.SectionLayoutSettings(columns=_COLUMNS, rows=3),
            )
            for title, panels in workspace["sections"].items()
        ],
        settings=workspaces.WorkspaceSettings(max_runs=_MOST),
        runset_settings=workspaces.RunsetSettings(
            groupby=[expr.Config(name) for name in workspace["group_by"]],
            pinned_columns=[f"summary:{name}" for name in workspace["columns"]],
        ),
    )
    built._internal_runset_id = identity
    if workspace["sweep"] is not None:
        # not as the text of an expression, which a quotation mark in the name would end
        group = expr.Key(section="run", name="group")
        leaf = expr.Filters(op="=", key=group, value=workspace["sweep"])
        tree = expr.Filters(op="OR", filters=[expr.Filters(op="AND", filters=[leaf])])
        built._stashed_filters_v2 = expr.filters_tree_to_v2(tree)
        built._stashed_filter_string = built.runset_settings.filters
    spec: dict[str, Any] = json.loads(
        built._to_model().spec.model_dump_json(by_alias=True, exclude_none=True)
    )
    return spec


def _workspace_panels(panels: Sequence[Mapping[str, Any]], salt: str) -> list[Any]:
    v2 = _library("reports.v2")
    drawn = [_drawn(panel) for panel in panels]
    for number, panel in enumerate(drawn):
        panel._id = digest([salt, number], digits=12)
        panel.layout = v2.Layout(
            x=number % _COLUMNS * 24 // _COLUMNS,
            y=number // _COLUMNS * _HEIGHT,
            w=24 // _COLUMNS,
            h=_HEIGHT,
        )
    return drawn


def _drawn(panel: Mapping[str, Any]) -> Any:
    v2 = _library("reports.v2")
    title, names, along, log = (panel[name] for name in ("title", "names", "along", "log"))
    if panel["form"] == "lines":
        return v2.LinePlot(
            title=title,
            x=along,
            y=names,
            log_x=log,
            log_y=log,
            max_runs_to_show=_MOST,
            smoothing_type="none",
        )
    if panel["form"] == "scatter":
        return v2.ScatterPlot(
            title=title,
            x=v2.SummaryMetric(along),
            y=v2.SummaryMetric(names[0]),
            log_x=log,
            legend_template="${run:displayName}",
        )
    if panel["form"] == "parallel":
        columns = []
        for name in names:
            option = name.removeprefix("config:")
            metric = v2.SummaryMetric(name) if option == name else v2.Config(option)
            columns.append(v2.ParallelCoordinatesPlotColumn(metric=metric, display_name=option))
        return v2.ParallelCoordinatesPlot(title=title, columns=columns)
    if panel["form"] == "bars":
        return v2.BarPlot(title=title, metrics=names, max_bars_to_show=_MOST)
    return v2.WeavePanelSummaryTable(table_name=names[0])


# ---------------------------------------------------------------------------------- the server


def save(content: Mapping[str, Any], *, timeout_s: float) -> None:
    """Put a workspace on the server, in the place of that of the same name."""
    import wandb

    graphql, mutation = _library("_graphql"), _library("reports.v2.gql").upsert_view
    api: Any = wandb.Api(timeout=max(1, round(timeout_s)))
    entity, project = content["entity"] or api.default_entity, content["project"]
    if not entity:
        raise ValueError("the account has no default team: name one with --entity")
    asked = {"entity": entity, "project": project, "type": content["type"], "name": content["name"]}
    there = graphql.execute_graphql(api, _VIEW, asked)["project"]
    if there is None:
        api.create_project(project, entity)
    edges = there["allViews"]["edges"] if there else []
    view = {key: content[key] for key in ("name", "displayName", "description", "type")}
    view |= {"entityName": entity, "projectName": project, "spec": json.dumps(content["spec"])}
    view |= {"id": edges[0]["node"]["id"] if edges else None}
    graphql.execute_graphql(api, mutation, view)
    base = f"{graphql.get_app_url(api).rstrip('/')}/{quote(entity)}/{quote(project)}"
    say(event="saved", url=f"{base}?nw={content['name'][3:-2]}")


if __name__ == "__main__":
    main()
