"""Read the scripts and styles of the page, which become part of it: DataTables, and its own."""

import re
from functools import cache
from importlib import resources
from importlib.util import find_spec
from pathlib import Path

PAGE_SCRIPTS = ("shell.js", "cells.js", "tables.js")
"""The scripts in their order; a script may use definitions of earlier ones."""


@cache
def data_tables() -> tuple[str, str]:
    """Return the script (a module) and the style of DataTables, from the package itables."""
    spec = find_spec("itables")  # not imported, because that takes half a second
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(
            "the report's page needs the package itables, which is missing: pip install itables",
            name="itables",
        )
    folder = Path(spec.origin).parent / "html"
    script, sheet = (
        (folder / f"dt_bundle.{form}").read_text(encoding="utf-8") for form in ("js", "css")
    )
    return inline(script), re.sub(r"(?i)</style", r"<\\/style", sheet)


@cache
def page_script() -> str:
    """Return the script of the page itself."""
    return inline("\n".join(_template(name) for name in PAGE_SCRIPTS))


@cache
def page_style() -> str:
    """Return the style of the page itself."""
    return _template("page.css")


def _template(name: str) -> str:
    return (resources.files("lra.reports.page") / "templates" / name).read_text(encoding="utf-8")


def inline(script: str) -> str:
    """Return a script without the sequences `</script` and `<!--`, which would end its element.

    A backslash breaks them. They occur only in texts and patterns, which it does not change.
    """
    return re.sub(r"(?i)</(?=script)", r"<\\/", script).replace("<!--", r"\x3c!--")
