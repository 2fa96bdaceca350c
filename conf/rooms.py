"""Names of what is ours: the folders that are packages within `lra`, and how they are spelt.

Sources import `lra.models.mixer`. Configurations, stores and fingerprints say `models.mixer`,
which always means ours, whatever else is installed.
"""

ROOMS = ("models", "tasks", "runners", "reports", "conf")
TOP = "lra"


def imported_name(name: str) -> str:
    """Return what Python imports for a stored name, as in lra.models.mixer for models.mixer."""
    return f"{TOP}.{name}" if name.partition(".")[0] in ROOMS else name


def stored_name(name: str) -> str:
    """Return how a store spells what Python imports, as in models.mixer for lra.models.mixer."""
    rest = name.removeprefix(f"{TOP}.")
    return rest if rest.partition(".")[0] in ROOMS else name
