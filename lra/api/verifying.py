"""Check a mixer, given as a class, by its name, or by the import path of its class."""

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lra.api.plain_errors import plainly
from lra.errors import ConfigError
from lra.terminal.progress import still_running, with_lines

if TYPE_CHECKING:
    import pandas as pd

    from lra.models.contract.case import Finding
    from lra.models.mixer import MixerFactory


@dataclass(frozen=True, slots=True, repr=False)
class Findings:
    """The results of the checks. A notebook shows them, and `print` writes them as `lra verify`.

    Attributes:
        mixer: The mixer that was checked.
        findings: One for each check and direction: `check`, `passed`, `detail`, `applies`.
    """

    mixer: str
    findings: "tuple[Finding, ...]"

    @property
    def passed(self) -> bool:
        """Whether every check passed."""
        return not self.failed

    @property
    def failed(self) -> "list[Finding]":
        """The findings of the checks that failed, each with its likely cause."""
        return [finding for finding in self.findings if not finding.passed]

    def to_pandas(self) -> "pd.DataFrame":
        """Return a frame with the columns `check`, `passed`, `detail` and `applies`."""
        import pandas as pd

        return pd.DataFrame(list(self.findings), columns=["check", "passed", "detail", "applies"])

    def __iter__(self) -> "Iterator[Finding]":
        return iter(self.findings)

    def __len__(self) -> int:
        return len(self.findings)

    def __repr__(self) -> str:
        from lra.terminal.screen import table

        return f"{table(finding_lines(self.findings), indent='')}\n{_summarise(self)}"

    def _repr_html_(self) -> str:
        """Return HTML with a table of the failed checks; a click unfolds the passed ones."""
        parts = [f"<p><b>{escape(_summarise(self))}</b></p>"]
        passed = [finding for finding in self.findings if finding.passed]
        if self.failed:
            parts.append(_write_html_table(finding_lines(self.failed)))
        if passed:
            folded = _write_html_table(finding_lines(passed))
            parts.append(f"<details><summary>{len(passed)} passed</summary>{folded}</details>")
        return "\n".join(parts)


def _summarise(findings: Findings) -> str:
    return count_findings(findings.mixer, findings.findings)


def finding_lines(findings: "Iterable[Finding]") -> list[tuple[str, str, str]]:
    """Return table rows (mark, check, detail), the failed checks last.

    Failed checks share one row if they raise the same error or if only their numbers differ.
    """
    rows: list[tuple[str, str, str]] = []
    failures: dict[str, list[Finding]] = {}
    for finding in findings:
        if finding.passed:
            rows.append(("ok" if finding.applies else "--", finding.check, finding.detail))
        else:
            error = re.search(r"\w+(Error|Exception|Unsupported): .*", finding.detail, re.DOTALL)
            # With every number replaced by 0, equal causes have equal texts.
            text = (error[0] if error else finding.detail).partition("; in Call(")[0]
            cause = re.sub(r"[\d.]+(e[-+]\d+)?", "0", text)
            failures.setdefault(cause, []).append(finding)
    for first, *others in failures.values():
        names = [finding.check for finding in others]
        rest = f"{', '.join(names[:3])}{f' and {len(names) - 3} more' if len(names) > 3 else ''}"
        detail = f"{first.detail}; {rest} failed for the same reason" if names else first.detail
        rows.append(("NO", first.check, detail))
    return rows


def count_findings(mixer: str, findings: "Sequence[Finding]") -> str:
    """Return a line that says how many checks of `mixer` passed, failed and did not apply."""
    failed = sum(not finding.passed for finding in findings)
    not_applicable = sum(not finding.applies for finding in findings)
    passed = len(findings) - failed - not_applicable
    return f"{mixer}: {passed} checks passed, {failed} failed, {not_applicable} not applicable"


def _write_html_table(rows: list[tuple[str, str, str]]) -> str:
    """Return table rows (mark, check, detail) as HTML, with their text escaped."""
    start = '<td style="text-align: left">'
    cells = (f"{start}{f'</td>{start}'.join(map(escape, row))}</td>" for row in rows)
    return f"<table>{''.join(f'<tr>{row_cells}</tr>' for row_cells in cells)}</table>"


@plainly
def verify(
    mixer: "str | Callable[..., Any]",
    /,
    *,
    width: int = 32,
    heads: int = 2,
    max_length: int = 256,
    device: str = "cpu",
    dtype: str = "float64",
    config_dir: "str | Path | None" = None,
    plugins: Sequence[str] = (),
    **options: Any,
) -> Findings:
    """Check masks, padding, states and cost of a mixer, as `lra verify` does.

    Args:
        mixer: A class or function with the parameters `(site, *, option: type = default)`, for
            example one that you have just defined in a notebook; a name of `lra list models`; or
            `package.module:Class`. `site` is an `lra.models.mixer.Site`: width, heads, causal ….
        width: Width of the model around the mixer.
        heads: Number of attention heads.
        max_length: Longest sequence, in tokens.
        device: Where the checks run: cpu or cuda.
        dtype: Precision of most checks: float64, or float32 for kernels without float64.
        config_dir: A folder with your configuration files.
        plugins: Packages that these files may name.
        **options: Options of the mixer by name.

    Returns:
        The result of each check: read `passed` and `failed`, or let a notebook show all.

    Raises:
        ValueError: `mixer` is not a mixer, or an option or the device is unknown.

    Examples:
        >>> import lra
        >>> findings = lra.verify("identity", max_length=64)
        >>> findings.passed
        True
    """
    folders = [] if config_dir is None else [Path(config_dir)]
    if isinstance(mixer, str):
        from lra.composition.lookup import resolve

        name, factory = mixer, resolve(mixer, options, folders, plugins)
    else:
        name, factory = _bind_class(mixer, options)
    findings = run_checks(
        factory, width=width, heads=heads, max_length=max_length, device=device, dtype=dtype
    )
    return Findings(name, tuple(findings))


def run_checks(
    factory: "MixerFactory", *, device: str, dtype: str, width: int, heads: int, max_length: int
) -> "list[Finding]":
    """Run the checks of `lra verify` on the mixer that `factory` builds; see `verify`.

    Raises:
        ConfigError: A number, the device or the precision is invalid, or there is no such device.
    """
    import torch

    from lra.models.contract.suite import verify as checks

    for key, number in (("width", width), ("heads", heads), ("max_length", max_length)):
        if type(number) is not int or number < 1:
            raise ConfigError(f"{key}: got {number!r:.80}; wanted a whole number of at least 1")
    for key, word, words in (
        ("device", device, ("cpu", "cuda")), ("dtype", dtype, ("float64", "float32")),
    ):  # fmt: skip
        if word not in words:
            raise ConfigError(f"{key}: got {word!r}; wanted {' or '.join(words)}")
    if device == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            "got device='cuda', but PyTorch finds no GPU here (`lra doctor` prints what it finds); "
            "use device='cpu', or a machine with a GPU and a CUDA build of torch"
        )
    with still_running("checking the mixer"):
        findings = checks(
            factory,
            width=width,
            heads=heads,
            max_length=max_length,
            device=device,
            dtype=getattr(torch, dtype),
            each=_report_names,
        )
    return _merge_directions(findings)


def _report_names(names: Sequence[str]) -> Iterator[str]:
    """Yield the names of checks; now and then print on stderr which check begins."""
    yield from with_lines(names, lambda number, name: f"{name} … ({number} of {len(names)})")


def _merge_directions(findings: "list[Finding]") -> "list[Finding]":
    """Return the findings without bidirectional ones that repeat the causal ones word for word.

    This only happens to a mixer that reads earlier tokens only, even when it may read all tokens.
    """
    results = {finding.check: finding[1:] for finding in findings}  # all fields but `check`
    bidirectional = [check for check in results if check.startswith("bidirectional.")]
    repeated = {
        check
        for check in bidirectional
        if results.get(check.replace("bidirectional.", "causal.", 1)) == results[check]
    }
    if "bidirectional.traits" not in repeated:
        return findings
    detail = "this mixer reads earlier tokens only, so these checks are those of the causal form"
    first = findings[0]._replace(check="bidirectional", detail=detail, applies=False)
    # The last finding is about the directions together.
    *rest, last = (finding for finding in findings if finding.check not in repeated)
    return [first, *rest, last._replace(detail="the mixer works, and reads earlier tokens only")]


def _bind_class(mixer: Any, options: dict[str, Any]) -> "tuple[str, MixerFactory]":
    """Return the name of the class or function `mixer`, and a factory that applies `options`."""
    from lra.composition.compose import bound_mixer

    name = getattr(mixer, "__qualname__", None) or type(mixer).__name__
    if not inspect.isclass(mixer) and not inspect.isfunction(mixer):
        raise ConfigError(
            f"mixer: got {mixer!r:.80} ({type(mixer).__name__}); wanted a class, as in "
            "lra.verify(MyMixer), because the checks build several instances of it"
        )
    factory, _ = bound_mixer(mixer, options, name, name)
    return name, factory
