"""Writes into pages the tables of what the program holds: `make pages`.

A table stands between `<!-- table: NAME -->` and `<!-- end -->`.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import itemgetter
from pathlib import Path
from typing import Any

from lra.composition.catalogue import choices
from lra.composition.own_options import TABLES as CHOSEN
from lra.composition.yaml_text import load
from lra.models.kernels.providers import WITHOUT, all_kernels
from lra.runners.metrics import METRICS
from published_tables import (
    published_checks,
    published_disagreements,
    published_means,
    published_mixed,
    published_wrong,
)

ROOT = Path(__file__).resolve().parents[2]
PAGES = (
    "docs/deviations.md",
    "docs/disagreements.md",
    "docs/gpu.md",
    "docs/published.md",
    "docs/results.md",
)
DISAGREEMENTS = ROOT / "tests/parity/disagreements.json"
PART = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def metrics() -> Iterator[str]:
    """Yield the lines of the table of metrics."""
    better = {True: "higher", False: "lower", None: "–"}
    yield "| metric | unit | better | meaning |"
    yield "|---|---|---|---|"
    for name, metric in METRICS.items():
        meaning = metric.meaning.replace("|", "\\|")
        yield f"| `{name}` | {metric.unit} | {better[metric.higher_is_better]} | {meaning} |"


def stated(node: Mapping[str, Any], place: tuple[str, ...] = ()) -> Iterator[tuple[str, str, str]]:
    """Yield name, sentence and place of every deviation of a protocol's file."""
    for name, sentence in (node.get("deviations") or {}).items():
        if isinstance(sentence, dict):
            ((option, values),) = sentence.items()
            for value, text in values.items():
                yield name, text, " with ".join((*place, f"`{option}={value}`"))
        elif sentence is not None:  # as where one does not hold
            yield name, sentence, " with ".join(place) or "everywhere"
    for table in CHOSEN:
        for choice, entry in (node.get(table) or {}).items():
            yield from stated(entry, (*place, choice))


def deviations() -> Iterator[str]:
    """Yield a heading and a table for each protocol: what differs from its source."""
    for file in choices("protocol"):
        places: dict[tuple[str, str], list[str]] = {}
        for name, sentence, place in stated(load(file)):
            places.setdefault((name, sentence), []).append(place)
        yield from ("", f"### `{file.stem}`", "", "| deviation | where | in the source | in lra |")
        yield "|---|---|---|---|"
        for (name, sentence), where in places.items():
            there, _, here = sentence.partition("; here ")
            said = re.sub(r"^there(?! is)\b,? ", "", there)
            yield f"| {name} | {', '.join(where)} | {said} | {here or '–'} |"
    yield ""


def disagreements() -> Iterator[str]:
    """Yield the lines of the table of public forms that differ."""
    yield "| family | one form | another form | what differs | difference | right | ours |"
    yield "|---|---|---|---|---|---|---|"
    for stored in sorted(
        json.loads(DISAGREEMENTS.read_text("utf-8")).values(), key=itemgetter("family")
    ):
        forms = {stored["one"]: "first", stored["other"]: "second"}
        right, ours = (forms.get(stored[key], stored[key]) for key in ("paper", "ours"))
        size = f"{stored['size']:.2g} {stored['unit']}"
        texts = stored["one"], stored["other"], stored["differs"], size, right, ours
        yield f"| `{stored['family']}` | {' | '.join(texts)} |"


def kernels() -> Iterator[str]:
    """Yield the lines of the table of public kernels."""
    yield "| operation | public kernel | package | device |"
    yield "|---|---|---|---|"
    for operation, known in sorted(all_kernels().items()):
        for each in known:
            first, *_, last = (*each.versions, each.versions[-1])
            package = f"{each.package} {first}" + f" to {last}" * (first != last)
            yield f"| `{operation}` | `{each.function}` | {package} | {', '.join(each.devices)} |"


def without_kernels() -> Iterator[str]:
    """Yield the lines of the table of what has no public kernel, with the reasons."""
    yield "| operation, kernel or package | why it is not used |"
    yield "|---|---|"
    for name, reason in WITHOUT.items():
        yield f"| `{name}` | {reason} |"


TABLES: Mapping[str, Callable[[], Iterable[str]]] = {
    "metrics": metrics, "deviations": deviations, "disagreements": disagreements,
    "kernels": kernels, "without_kernels": without_kernels, "published_checks": published_checks,
    "published_wrong": published_wrong, "published_mixed": published_mixed,
    "published_means": published_means, "published_disagreements": published_disagreements,
}  # fmt: skip


def written(text: str) -> str:
    """Return a page with its tables as the program has them."""
    return PART.sub(lambda part: part[1] + "\n".join(TABLES[part[2]]()) + "\n" + part[3], text)


if __name__ == "__main__":
    for page in PAGES:
        path = ROOT / page
        path.write_text(written(path.read_text("utf-8")), encoding="utf-8")
        print(path)
