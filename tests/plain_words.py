"""Pages and messages use the field's words, and seldom say what does not happen.

`python -m tests.plain_words FILE ...` prints what these files say.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SHIPPED = ("conf", "lra", "models", "reports", "runners", "tasks")

# Phrase: what to write in its place.
AVOIDED = {
    r"\bbeside\b": "compared with; together with; next to",
    r"\b(?:tell|tells|told|telling)\b[^.\n]{0,30}\bapart\b": "significantly different",
    r"\bin turns\b": "interleaved",
    r"\bwhat (?:it|they|one|each|\w+ (?:family|model|run)) costs?\b": "time and memory",
    r"(?<!your )(?<!my )(?<!kernels=)\bown\b": "separate; custom; your; drop the word",
    r"\bkept\b": "saved; stored; fixed; unchanged",
    r"\bheld\b(?!.out)": "fixed; saved; used; bounded",
    r"\b(?:left|leaves|leaving) out\b|\bleave out\b": "excluded; omitted; skipped",
    r"\b(?:not|un)\s?resolved\b": "too uncertain: [interval]",
    r"\bsees\b": "attends to; depends on; reads",
    r"\bshares? of right answers\b": "accuracy",
    r"\bright answers?\b": "correct answers",
    r"\bwords? of (?:a|the|this|its) command\b|\bwords after\b": "arguments",
    r"\bgo(?:es)? to and fro\b|\bas it stands\b": "say it plainly",
    r"\bcells?\b": "run, runs",
}
NEGATION = re.compile(
    r"\b(?:not|no|nothing|none|never|cannot|nobody|neither|nor|nowhere)\b|n't\b", re.IGNORECASE
)
COMMAND = re.compile(r"for example|`[^`]+`|^(?: {4}|```)", re.IGNORECASE | re.MULTILINE)


def tracked(*patterns: str) -> list[Path]:
    """Return the files of the repository that match."""
    named = subprocess.run(
        ["git", "ls-files", "-z", *patterns], cwd=ROOT, check=True, capture_output=True, text=True
    )
    return [ROOT / name for name in named.stdout.split("\0") if name]


def pages() -> list[Path]:
    """Return every page that a person reads."""
    return tracked("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/**/*.md", "docs/*.md")


def prose(page: Path) -> str:
    """Return the text of a page without code, addresses, comments, generated tables; lines stay."""
    text = page.read_text(encoding="utf-8")
    whole = (r"^```.*?^```", r"<!-- table: .*?<!-- end -->", r"<!--.*?-->")
    for pattern in (*whole, r"^ {4}.*?$", r"`[^`]*`", r"\]\([^)]*\)"):
        flags = re.MULTILINE | re.DOTALL if pattern in whole else re.MULTILINE
        text = re.sub(pattern, lambda found: "\n" * found[0].count("\n"), text, flags=flags)
    return text


def messages(source: Path) -> Iterator[tuple[int, str]]:
    """Yield the sentences among the strings of a source, docstrings aside, with their lines."""
    tree = ast.parse(source.read_text(encoding="utf-8"))
    inside = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr | ast.JoinedStr)
        for part in ast.walk(node)
        if isinstance(node, ast.JoinedStr) or part is node.value
        if part is not node and isinstance(part, ast.Constant)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = [str(v.value) if isinstance(v, ast.Constant) else "…" for v in node.values]
            if " " in (text := "".join(parts)).strip():  # the name of a file is no sentence
                yield node.lineno, text
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in inside
            and " " in node.value.strip()
        ):
            yield node.lineno, node.value


def findings(file: Path) -> list[str]:
    """Return the places of a file whose words stand in the list, and what to write there."""
    if file.suffix == ".py":
        spoken = [(line, re.sub(r"`[^`]*`", "", text)) for line, text in messages(file)]
    elif file.suffix == ".yaml":
        lines = file.read_text(encoding="utf-8").splitlines()
        spoken = [(n, text.split("#", 1)[1]) for n, text in enumerate(lines, 1) if "#" in text]
        spoken = [(n, re.sub(r"`[^`]*`", "", text)) for n, text in spoken]
    else:
        spoken = [*enumerate(prose(file).splitlines(), 1)]
    return [
        f"{file.relative_to(ROOT)}:{line}: {found[0]!r}: {instead}"
        for line, text in spoken
        for phrase, instead in AVOIDED.items()
        for found in re.finditer(phrase, text, re.IGNORECASE)
    ]


if __name__ == "__main__":
    given = [Path(name).resolve() for name in sys.argv[1:]]
    for file in given:
        sys.stdout.write("".join(f"{found}\n" for found in findings(file)))
        if file.suffix == ".md":
            text = file.read_text(encoding="utf-8")
            shown = COMMAND.search("\n".join(text.splitlines()[:10]))
            sys.stdout.write(
                f"{file.name}: {len(NEGATION.findall(prose(file)))} negations in "
                f"{len(prose(file).split())} words"
                f"{'' if shown else '; no example or command in the first 10 lines'}\n"
            )
