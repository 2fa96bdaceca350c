"""How many generated cases are tried: few in `make test`, many in `make campaign`."""

import os
from collections import defaultdict

EVERY = int(os.environ.get("LRA_FUZZ", "1"))
"""Times as many cases as in `make test`; above 1, tests are not shared out."""
HALVED = ("tests/contracts/", "tests/literal/", "tests/models/", "tests/runners/")
"""Folders in which every second parameter runs of tests with more than `LONG` of them."""
LONG = 12


def cases(short: int) -> int:
    """Return the number of cases of a fuzz test: `short`, times LRA_FUZZ where that is set."""
    return short * EVERY


def part(items: list, index: int, of: int) -> list:
    """Return every so many-th item from a place that `index` decides; all in `make campaign`."""
    return items if EVERY > 1 else items[index % of :: of]


def shared_out(items: list) -> tuple[list, list]:
    """Divide tests into those that run and those that `make campaign` alone runs.

    Of the parameters of a test with `pytest.mark.share(n)`, every n-th runs, and at least one: of
    another test from another place, so that together they see most families and options. Long
    lists of `HALVED` are halved without a mark.
    """
    groups = defaultdict(list)
    for item in items:
        mark, name = item.get_closest_marker("share"), item.nodeid.partition("[")[0]
        if mark or name.startswith(HALVED):
            groups[name, mark.args[0] if mark else None].append(item)
    left = set()
    for (name, marked), group in groups.items():
        of = marked or 1 + (len(group) > LONG)
        left |= {*group}.difference(part(group, len(name), min(of, len(group))))
    return [item for item in items if item not in left], [*left]
