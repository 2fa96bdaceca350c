"""The child of `lra dashboard`: W&B's own specification of a dashboard, and the way to its server.

As `reports.dashboard.process`, it alone imports what it is about, in a process of its own.
"""

import importlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from reports.dashboard.events import one_line, say
from runners.records import digest

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
            made = specification(job["dashboard"], project=job["project"], entity=job["entity"])
            say(event="made", specification=made)
    except Exception as error:  # noqa: BLE001 - whatever an answer of a server makes wandb raise
        say(event="failed", reason=one_line(error, LONGEST))


def _library(module: str) -> Any:
    """Return a module of wandb_workspaces, whose star imports no type checker sees through."""
    return importlib.import_module(f"wandb_workspaces.{module}")


# ------------------------------------------------------------------------- the specification


def specification(
    dashboard: Mapping[str, Any], *, project: str, entity: str | None
) -> dict[str, Any]:
    """Return workspace and report as W&B stores them; the same dashboard gives the same words.

    Args:
        dashboard: `reports.dashboard.panels.Dashboard.as_json`.
        project: of W&B.
        entity: account or team; None: the one that is logged in, when it is saved.
    """
    # one of each in a project for a sweep: saved again, it takes the place of the one before
    identity = digest([project, dashboard["sweep"]], digits=11)
    return {
        "project": project,
        "entity": entity,
        "workspace": {
            "name": f"nw-{identity}-v",
            "displayName": dashboard["title"],
            "description": "",
            "type": "project-view",
            "spec": _workspace(dashboard, identity),
        },
        "report": {
            "name": f"lra{identity}",
            "displayName": dashboard["title"],
            "description": "Made by lra dashboard.",
            "type": "runs",
            "spec": _report(dashboard, identity),
        },
    }


def _workspace(dashboard: Mapping[str, Any], identity: str) -> dict[str, Any]:
    expr, workspaces = _library("expr"), _library("workspaces")

    made = workspaces.Workspace(
        entity="",
        project="",
        sections=[
            workspaces.Section(
                name=section["title"],
                panels=_panels(section["panels"], f"{identity} workspace {section['title']}"),
                is_open=True,
                layout_settings=workspaces.SectionLayoutSettings(columns=_COLUMNS, rows=3),
            )
            for section in dashboard["workspace"]
        ],
        settings=workspaces.WorkspaceSettings(max_runs=_MOST),
        runset_settings=workspaces.RunsetSettings(
            groupby=[expr.Config(name) for name in dashboard["group_by"]],
            pinned_columns=[f"{k['place']}:{k['name']}" for k in dashboard["columns"]],
        ),
    )
    made._internal_runset_id = identity
    _filter(made, made.runset_settings, dashboard["sweep"], {})
    spec: dict[str, Any] = json.loads(
        made._to_model().spec.model_dump_json(by_alias=True, exclude_none=True)
    )
    return spec


def _report(dashboard: Mapping[str, Any], identity: str) -> dict[str, Any]:
    v2 = _library("reports.v2")

    blocks: list[Any] = [v2.TableOfContents()]
    for section in dashboard["report"]:
        blocks.append(v2.H1(section["title"]))
        if section["text"]:
            blocks.append(v2.MarkdownBlock(section["text"]))
        if section["panels"]:
            # without a project of its own a run set is the report's; with one the server is asked
            runs = v2.Runset(
                name="runs", groupby=[f"config.{name}" for name in section["group_by"]]
            )
            runs._id = digest([identity, section["title"]], digits=12)
            _filter(runs, runs, dashboard["sweep"], section["where"])
            panels = _panels(section["panels"], f"{identity} report {section['title']}")
            blocks.append(v2.PanelGrid(runsets=[runs], panels=panels))
    made = v2.Report(project="", entity="", title="", blocks=blocks, width="fluid")
    spec: dict[str, Any] = json.loads(
        made._to_model().spec.model_dump_json(by_alias=True, exclude_none=True)
    )
    return spec


def _filter(keeps: Any, settings: Any, sweep: str | None, where: Mapping[str, object]) -> None:
    """Let a run set show the runs of a sweep and of a setting.

    Not as the text of an expression, which the library would make and read again: a quotation mark
    in the name of a device ends it.
    """
    expr = _library("expr")

    wanted = [(f"{name}.value", "config", value) for name, value in where.items()]
    if sweep is not None:
        wanted.insert(0, ("group", "run", sweep))
    leaves = [
        expr.Filters(op="=", key=expr.Key(section=section, name=name), value=value)
        for name, section, value in wanted
    ]
    tree = expr.Filters(op="OR", filters=[expr.Filters(op="AND", filters=leaves)])
    keeps._stashed_filters_v2 = expr.filters_tree_to_v2(tree)
    keeps._stashed_filter_string = settings.filters


def _panels(panels: Sequence[Mapping[str, Any]], salt: str) -> list[Any]:
    v2, found = _library("reports.v2"), list(_made(panels))
    for number, panel in enumerate(found):
        panel._id = digest([salt, number], digits=12)
        panel.layout = v2.Layout(
            x=number % _COLUMNS * 24 // _COLUMNS,
            y=number // _COLUMNS * _HEIGHT,
            w=24 // _COLUMNS,
            h=_HEIGHT,
        )
    return found


def _made(panels: Sequence[Mapping[str, Any]]) -> Iterator[Any]:
    v2 = _library("reports.v2")

    for panel in panels:
        title, values, along = panel["title"], panel["values"], panel["along"]
        if panel["form"] == "lines":
            yield v2.LinePlot(
                title=title,
                x=along["name"],
                y=[value["name"] for value in values],
                log_x=along["log"],
                log_y=values[0]["log"],
                title_x=along["title"],
                title_y=values[0]["title"],
                max_runs_to_show=_MOST,
                smoothing_type="none",
            )
        elif panel["form"] == "scatter":
            (value,) = values
            yield v2.ScatterPlot(
                title=title,
                x=_key(along),
                y=_key(value),
                log_x=along["log"],
                log_y=value["log"],
                legend_template="${run:displayName}",
            )
        elif panel["form"] == "parallel":
            columns = [
                v2.ParallelCoordinatesPlotColumn(
                    metric=_key(value), display_name=value["title"], log=value["log"] or None
                )
                for value in values
            ]
            yield v2.ParallelCoordinatesPlot(title=title, columns=columns)
        elif panel["form"] == "bars":
            yield v2.BarPlot(
                title=title, metrics=[value["name"] for value in values], max_bars_to_show=_MOST
            )
        else:
            yield v2.WeavePanelSummaryTable(table_name=values[0]["name"])


def _key(key: Mapping[str, Any]) -> Any:
    v2 = _library("reports.v2")

    kind = v2.Config if key["place"] == "config" else v2.SummaryMetric
    return kind(key["name"])


# ---------------------------------------------------------------------------------- the server


def save(made: Mapping[str, Any], *, timeout_s: float) -> None:
    """Put workspace and report on the server, in the place of those of the same name."""
    import wandb

    graphql, mutation = _library("_graphql"), _library("reports.v2.gql").upsert_view
    api: Any = wandb.Api(timeout=max(1, round(timeout_s)))
    entity, project = made["entity"] or api.default_entity, made["project"]
    if not entity:
        raise ValueError("the account has no default team: name one with --entity")
    for part in ("workspace", "report"):
        view = made[part]
        asked = {
            "entity": entity, "project": project, "type": view["type"], "name": view["name"],
        }  # fmt: skip
        there = graphql.execute_graphql(api, _VIEW, asked)["project"]
        if there is None:
            api.create_project(project, entity)
        edges = there["allViews"]["edges"] if there else []
        told = {key: view[key] for key in ("name", "displayName", "description", "type")}
        told |= {"entityName": entity, "projectName": project, "spec": json.dumps(view["spec"])}
        told |= {"id": edges[0]["node"]["id"] if edges else None}
        saved = graphql.execute_graphql(api, mutation, told)["upsertView"]["view"]
        base = f"{graphql.get_app_url(api).rstrip('/')}/{quote(entity)}/{quote(project)}"
        title = quote(view["displayName"].replace(" ", "-"))
        url = {
            "workspace": f"{base}?nw={view['name'][3:-2]}",
            "report": f"{base}/reports/{title}--{saved['id']}",
        }
        say(event="saved", part=part, url=url[part])


if __name__ == "__main__":
    main()
