"""Names of the packages inside `lra`, in imports and in stored files.

Source code imports `lra.models.mixer`. Configurations, result files and fingerprints say
`models.mixer`, which always means this package, even if another `models` is installed.
"""

ROOMS = ("models", "tasks", "runners", "reports", "conf")
"""The packages inside lra, whose stored names lack `TOP`."""
TOP = "lra"


def imported_name(name: str) -> str:
    """Return the import name for a stored name, for example lra.models.mixer for models.mixer."""
    return f"{TOP}.{name}" if name.partition(".")[0] in ROOMS else name


def stored_name(name: str) -> str:
    """Return the stored name for an import name, for example models.mixer for lra.models.mixer."""
    rest = name.removeprefix(f"{TOP}.")
    return rest if rest.partition(".")[0] in ROOMS else name
