"""Scripts and styles of the page, all inside it: Vega, DataTables, and those of the page."""

import re
import resource
import subprocess
import sys
from functools import cache
from importlib import metadata, resources
from importlib.util import find_spec
from pathlib import Path

from lra.conf.kept import data_root, keep, read_kept

PAGE_SCRIPTS = ("shell.js", "specifications.js", "charts.js", "cells.js", "tables.js")
"""In this order; what one defines the next may use."""


_BUNDLE = "import sys, vl_convert; sys.stdout.write(vl_convert.javascript_bundle())"


@cache
def vega() -> str | None:
    """Return Vega, Vega-Lite and Vega-Embed as one script, which vl-convert brings.

    To bundle them takes about two seconds, so the text is kept in the cache, by the version of
    vl-convert. None where it cannot: its V8 reserves some forty gigabytes of addresses and ends the
    process under a limit (`ulimit -v`) that has no room for them. So under any limit it is asked
    in a separate process.
    """
    file = data_root() / f"vega-{metadata.version('vl-convert-python')}.js"
    script = read_kept(file)
    if script is None and (script := _bundled()) is not None:
        keep(file, script)
    return script and inline(script)


def _bundled() -> str | None:
    if resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY:
        import vl_convert

        return str(vl_convert.javascript_bundle())  # type: ignore[call-arg]  # its stub is wrong
    asked = [sys.executable, "-P", "-c", _BUNDLE]
    done = subprocess.run(asked, capture_output=True, encoding="utf-8", check=False)
    return done.stdout if done.returncode == 0 else None


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
