"""How many generated cases a fuzz test takes: few in `make test`, many in `make campaign`."""

import os


def cases(short: int) -> int:
    """Return the number of cases: `short`, times LRA_FUZZ where that is set."""
    return short * int(os.environ.get("LRA_FUZZ", "1"))
