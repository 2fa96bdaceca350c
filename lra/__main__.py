"""The program `lra`. Child processes import this module again: it must stay light."""

import io
import sys


def main() -> None:
    """Run the command line and leave with its exit code."""
    from lra.cli import main as run

    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names of files need be no text
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
