"""The program `lra`. Child processes import this module again: it must stay light."""

import signal
import sys

from lra.conf import garbage
from lra.terminal import streams as standard_streams


def main() -> None:
    """Run the command line and leave with its exit code."""
    garbage.seldom()
    try:
        standard_streams.settle()
        from lra import cli

        cli.alone = True
        code = cli.main(sys.argv[1:])
    except KeyboardInterrupt:  # while that was imported
        code = 130
    except SystemExit as ended:  # of argparse
        if not isinstance(ended.code, int):
            raise
        code = ended.code
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it ends, and how is settled
    standard_streams.leave(code)


if __name__ == "__main__":
    main()
