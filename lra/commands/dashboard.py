"""`lra dashboard`: a script that saves a W&B workspace over the runs of a project or a sweep."""

import argparse
import re

from lra.composition.arguments import Parser
from lra.composition.catalogue import ours
from lra.composition.yaml_text import load
from lra.reports.dashboard.workspace import script

PROJECT_OF = "wandb_online"
"""The logger configuration that sets the default project and account."""


def main(argv: list[str]) -> int:
    """Print the script that the arguments `argv` ask for."""
    parser = Parser(
        prog="lra dashboard",
        description="Print a script that makes a W&B workspace over the runs of a project or a "
        "sweep. Printing works offline; running the script needs a network and your W&B key.",
        epilog="example:\n  lra dashboard --sweep mine > workspace.py && python workspace.py",
    )
    parser.add_argument("--sweep", help="name of a sweep; default: every run of the project")
    parser.add_argument(
        "--project", type=_check_name,
        help="project of W&B; default: the project that logger=wandb_online uses",
    )  # fmt: skip
    parser.add_argument(
        "--entity", type=_check_name, help="account or team of W&B; default: your account"
    )
    choice = parser.parse_args(argv)
    logger = load(ours() / "logger" / f"{PROJECT_OF}.yaml")
    print(
        script(
            sweep=choice.sweep,
            project=choice.project or str(logger["project"]),
            entity=choice.entity or logger["entity"],
        ),
        end="",
    )
    return 0


def _check_name(text: str) -> str:
    """Return `text` if W&B accepts it as a name; raise ArgumentTypeError otherwise."""
    if not re.fullmatch(r"[^/\\#?%:\s]{1,128}", text) or not text.isprintable():
        raise argparse.ArgumentTypeError(
            f"got {text!r}; wanted a name of at most 128 characters that contains neither spaces "
            "nor any of / \\ # ? %% :"
        )
    return text
