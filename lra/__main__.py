"""The program `lra`. Child processes import this module again: it must stay light."""

import signal
import sys

from lra.conf import garbage
from lra.terminal import streams as standard_streams


def main() -> None:
    """Run the command line, and end this process with its exit code."""
    garbage.seldom()  # Python collects garbage less often, which makes lra faster
    try:
        standard_streams.settle()  # makes closed or full streams safe
        from lra import cli

        cli.alone = True
        code = cli.main(sys.argv[1:])
    except KeyboardInterrupt:  # Ctrl-C during the imports above
        code = 130
    except SystemExit as exit_request:  # argparse raises it
        if not isinstance(exit_request.code, int):
            raise
        code = exit_request.code
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a late Ctrl-C must not change the exit code
    standard_streams.leave(code)


if __name__ == "__main__":
    main()
