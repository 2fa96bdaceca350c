"""How many generated cases are tried: few in `make test`, many in `make campaign`."""

import os
from collections import defaultdict

EVERY = int(os.environ.get("LRA_FUZZ", "1"))
"""Times as many cases as in `make test`; above 1, tests marked `share` have all parameters."""


def cases(short: int) -> int:
    """Return the number of cases of a fuzz test: `short`, times LRA_FUZZ where that is set."""
    return short * EVERY


def part(items: list, index: int, of: int) -> list:
    """Return every so many-th item from a place that `index` decides; all in `make campaign`."""
    return items if EVERY > 1 else items[index % of :: of]


def shared_out(items: list) -> tuple[list, list]:
    """Divide tests into those that run and those that `make campaign` alone runs.

    Of the parameters of a test with `pytest.mark.share(n)`, every n-th runs, and at least one: of
    another test from another place, so that together they see most families and options.
    """
    groups = defaultdict(list)
    for item in items:
        if mark := item.get_closest_marker("share"):
            groups[item.nodeid.partition("[")[0], *mark.args].append(item)
    left = {
        item
        for (name, n), group in groups.items()
        for item in {*group}.difference(part(group, len(name), min(n, len(group))))
    }
    return [item for item in items if item not in left], [*left]
