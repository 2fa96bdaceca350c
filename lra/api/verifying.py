"""The contract checks on a mixer: a class, a name, or the place of a class."""

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

        return f"{table(finding_lines(self.findings), indent='')}\n{_sentence(self)}"

    def _repr_html_(self) -> str:
        """Return the failures as a table, all others folded away."""
        rows = [f"<p><b>{escape(_sentence(self))}</b></p>"]
        good = [finding for finding in self.findings if finding.passed]
        if self.failed:
            rows.append(_table(finding_lines(self.failed)))
        if good:
            folded = _table(finding_lines(good))
            rows.append(f"<details><summary>{len(good)} passed</summary>{folded}</details>")
        return "\n".join(rows)


def _sentence(findings: Findings) -> str:
    return count_findings(findings.mixer, findings.findings)


def finding_lines(findings: "Iterable[Finding]") -> list[tuple[str, str, str]]:
    """Return a row of each finding, failures last and one for all that say the same.

    They say the same where they raise the same error, or differ in numbers alone.
    """
    rows: list[tuple[str, str, str]] = []
    failures: dict[str, list[Finding]] = {}
    for each in findings:
        if each.passed:
            rows.append(("ok" if each.applies else "--", each.check, each.detail))
        else:
            error = re.search(r"\w+(Error|Exception|Unsupported): .*", each.detail, re.DOTALL)
            cause = re.sub(r"[\d.]+(e[-+]\d+)?", "0", error[0] if error else each.detail)
            failures.setdefault(cause, []).append(each)
    for first, *others in failures.values():
        more = [each.check for each in others]
        rest = f"{', '.join(more[:3])}{f' and {len(more) - 3} more' if len(more) > 3 else ''}"
        detail = f"{first.detail}; the same in {rest}" if more else first.detail
        rows.append(("NO", first.check, detail))
    return rows


def count_findings(mixer: str, findings: "Sequence[Finding]") -> str:
    """Return how many checks passed, failed and did not apply."""
    failed = sum(not finding.passed for finding in findings)
    idle = sum(not finding.applies for finding in findings)
    passed = len(findings) - failed - idle
    return f"{mixer}: {passed} checks passed, {failed} failed, {idle} not applicable"


def _table(rows: list[tuple[str, str, str]]) -> str:
    start = '<td style="text-align: left">'
    cells = (f"{start}{f'</td>{start}'.join(map(escape, row))}</td>" for row in rows)
    return f"<table>{''.join(f'<tr>{each}</tr>' for each in cells)}</table>"


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
    """Run the contract checks on a mixer, as `lra verify` does.

    Args:
        mixer: A class or function of `(site, *, option: type = default)`, also one that you have
            just defined in a notebook; a name of `lra list models`; or `package.module:Class`.
        width: Width of the model around the mixer.
        heads: Number of attention heads.
        max_length: Longest sequence, in tokens.
        device: Where the checks run: cpu or cuda.
        dtype: Precision of most checks: float64, or float32 for kernels without float64.
        config_dir: A folder with your configuration files.
        plugins: Packages that these files may name.
        **options: Options of the mixer by name.

    Returns:
        The result of each check: look at `passed` and `failed`, or let a notebook show all.

    Raises:
        ValueError: This is no mixer, or an option or the device is unknown.

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
        name, factory = _factory(mixer, options)
    findings = run_checks(
        factory, width=width, heads=heads, max_length=max_length, device=device, dtype=dtype
    )
    return Findings(name, tuple(findings))


def run_checks(
    factory: "MixerFactory", *, device: str, dtype: str, width: int, heads: int, max_length: int
) -> "list[Finding]":
    """Run the checks; refuse a device that is not here, and a number format without tolerances."""
    import torch

    from lra.models.contract.suite import verify as checks

    for key, number in (("width", width), ("heads", heads), ("max_length", max_length)):
        if type(number) is not int or number < 1:
            raise ConfigError(f"{key}: got {number!r:.80}; wanted a whole number from 1 on")
    if device not in ("cpu", "cuda") or dtype not in ("float64", "float32"):
        raise ConfigError(
            f"got device={device!r}, dtype={dtype!r}; wanted cpu or cuda, float64 or float32"
        )
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
            each=_told,
        )
    return _once(findings)


def _told(names: Sequence[str]) -> Iterator[str]:
    """Yield the names of checks, and say on stderr now and then which of them begins."""
    yield from with_lines(names, lambda number, name: f"{name} … ({number} of {len(names)})")


def _once(findings: "list[Finding]") -> "list[Finding]":
    """Leave out the bidirectional findings of a mixer that are its causal ones word for word.

    Such a mixer looks back alone in both directions, and what it does otherwise stays.
    """
    said = {finding.check: finding[1:] for finding in findings}
    both = [name for name in said if name.startswith("bidirectional.")]
    twins = {name for name in both if said.get(f"causal.{name[14:]}") == said[name]}
    if "bidirectional.traits" not in twins:
        return findings
    alone = "the same as causal: this mixer only reads earlier tokens, in both directions"
    first = findings[0]._replace(check="bidirectional", detail=alone, applies=False)
    *rest, last = (finding for finding in findings if finding.check not in twins)
    return [first, *rest, last._replace(detail="works, and reads earlier tokens only")]


def _factory(mixer: Any, options: dict[str, Any]) -> "tuple[str, MixerFactory]":
    from lra.composition.compose import bound_mixer

    name = getattr(mixer, "__qualname__", None) or type(mixer).__name__
    if not inspect.isclass(mixer) and not inspect.isfunction(mixer):
        raise ConfigError(
            f"got {mixer!r:.80} ({type(mixer).__name__}); wanted a class, as in "
            "lra.verify(MyMixer), in place of an instance: the checks build it several times"
        )
    factory, _ = bound_mixer(mixer, options, name, name)
    return name, factory
