"""`lra dashboard`: a W&B workspace over the runs of stored results, as a file and on the server.

No key and no network are needed to make the file.
"""

import argparse
import json
import math
import re
import sys

from lra.composition.arguments import Parser, add_results, path_word
from lra.results.stored import destination, stored

PROJECT_OF = "wandb_online"
"""The choice of `logger` whose project is the default."""


def main(argv: list[str]) -> int:
    """Parse the words after `lra dashboard`; write the file, and save it where that is asked."""
    parser = Parser(
        prog="lra dashboard",
        description=f"{__doc__} Exit code 1 where cells were left out because a file of theirs is "
        "damaged, 2 where the server did not take it.",
    )
    add_results(parser)
    parser.add_argument("--sweep", help="name of a sweep; default: every stored result")
    parser.add_argument(
        "--out", type=path_word, help="file; default: RESULTS/reports/SWEEP/dashboard.json"
    )
    parser.add_argument("--title", help="of the workspace")
    parser.add_argument(
        "--project", type=_name, help="of W&B; default: that of logger=wandb_online"
    )
    parser.add_argument(
        "--entity", type=_name, help="account or team of W&B; default: the account's own"
    )
    parser.add_argument("--save", action="store_true", help="save it on W&B's server, too")
    parser.add_argument(
        "--deadline", type=_seconds, default=60.0, metavar="SECONDS",
        help="how long saving may take; default: 60",
    )  # fmt: skip
    choice = parser.parse_args(argv)
    from lra.reports.dashboard import publish

    publish.check_library()
    project, entity = _account()
    rows, cells, left_out = stored(choice.results, choice.sweep)
    from lra.reports.dashboard.panels import plan_workspace
    from lra.reports.dashboard.plan import plan_runs
    from lra.runners.store import rows_in
    from lra.sweep.model_names import cell_model_name

    names = {key: cell_model_name(cell) for key, cell in cells.items()}
    runs = plan_runs(rows_in(rows), sweep=choice.sweep or "all", cells=cells, names=names)
    folder, title = destination(choice.results, choice.sweep)
    title = (choice.title or title).encode(errors="replace").decode()  # bytes that are no text
    board = publish.specification(
        plan_workspace(runs, title=title, sweep=choice.sweep),
        project=choice.project or project,
        entity=choice.entity or entity,
    )
    out = choice.out or folder / "dashboard.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(board, indent=1, sort_keys=True, ensure_ascii=False)
    out.write_text(text + "\n", encoding="utf-8")
    print(out)
    for line in left_out:
        print(f"left out: {line}", file=sys.stderr)
    if choice.save:
        saved = publish.save(board, deadline_s=choice.deadline)
        if saved.problem:
            print(
                f"lra: W&B's server does not have it: {saved.problem.rstrip('.')}. "
                "The file is written; once it answers, the same command saves it",
                file=sys.stderr,
            )
            return 2
        print(saved.url)
    return 1 if left_out else 0


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < 86_400:
        raise argparse.ArgumentTypeError(f"got {text!r}; wanted seconds, above 0")
    return seconds


def _name(text: str) -> str:
    if not re.fullmatch(r"[^/\\#?%:\s]{1,128}", text) or not text.isprintable():
        raise argparse.ArgumentTypeError(
            f"got {text!r}; wanted up to 128 characters, without spaces and any of / \\ # ? %% :"
        )
    return text


def _account() -> tuple[str, str | None]:
    """Return project and entity as the configuration of the logger says."""
    from lra.composition.catalogue import ours
    from lra.composition.yaml_text import load

    options = load(ours() / "logger" / f"{PROJECT_OF}.yaml")
    return str(options["project"]), options["entity"]
