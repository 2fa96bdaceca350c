"""Fill the HTML templates of this package; every value is escaped, and none may be missing."""

import json
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Environment


@cache
def _environment() -> "Environment":
    """Return what fills the templates: it escapes values, and refuses missing ones."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(
        loader=PackageLoader("lra.reports.page"), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip


def render(template: str, **values: Any) -> str:
    """Return a template of `reports/page/templates` with its values filled in.

    Args:
        template: the name of the file.
        values: the values that the template names. Text is escaped, except where the template
            marks it with `safe`.

    Raises:
        jinja2.TemplateNotFound: there is no such file.
        jinja2.UndefinedError: a value that the template names is missing.
    """
    return _environment().get_template(template).render(**values)


def script_json(value: Any) -> str:
    """Return JSON for a script element, with codes for letters that could end the element."""
    text = json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    for letter, code in _CODES.items():
        text = text.replace(letter, code)
    return text


_CODES = {letter: f"\\u{ord(letter):04x}" for letter in "<>&\u2028\u2029"}
