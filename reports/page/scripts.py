"""Scripts and styles of the page, all inside it: DataTables, and those of the page."""

import re
from functools import cache
from importlib import resources
from importlib.util import find_spec
from pathlib import Path

PAGE_SCRIPTS = ("shell.js", "cells.js", "tables.js")
"""In this order; what one defines the next may use."""


@cache
def data_tables() -> tuple[str, str]:
    """Return script and style of DataTables, which itables brings; the script is a module."""
    spec = find_spec("itables")  # to import it takes half a second, and its files are all we want
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("itables is not installed: pip install itables", name="itables")
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
    """Return a script that an HTML page can hold: neither ends nor hides the element around it.

    Both sequences stand in texts and patterns alone, where a backslash changes nothing.
    """
    return re.sub(r"(?i)</(?=script)", r"<\\/", script).replace("<!--", r"\x3c!--")
