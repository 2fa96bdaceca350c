"""What is read out of a Python source: its imports, and a hash without its comments.

To read all that a cell depends on takes half a second, so both are kept in the cache of this
machine, under the hash of what the source holds: a source that changed is another one. A file that
is damaged, or written by another version of this module or of Python, counts for nothing.
"""

import ast
import hashlib
import io
import json
import sys
import tokenize
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from lra.conf.cached_texts import data_root, keep, read_kept

MOST = 1024
"""Sources that are kept."""
BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")
"""Where a node holds statements, or what holds them."""
Version = tuple[int, int]
"""Of a file: time of its last change in nanoseconds, and bytes."""


class Statement(NamedTuple):
    """An import."""

    level: int
    """Dots in front of a relative one."""
    module: str
    names: tuple[str, ...]
    """What is imported from it."""


class ParsedSource(NamedTuple):
    """What is read out of a source."""

    digest: str
    """SHA-256 of its text without comments and blank lines."""
    statements: tuple[Statement, ...]


def parse_source(path: Path) -> ParsedSource:
    """Return what is read out of a source."""
    status = path.stat()
    return _parsed(path, (status.st_mtime_ns, status.st_size), data_root() / "hashes")


def keep_parsed() -> None:
    """Write what was read anew to the cache, if it can be written."""
    for shelf in _shelves.values():
        shelf.write()


class _Shelf:
    """Parsed sources in one file of a cache, by the SHA-256 of their bytes."""

    def __init__(self, file: Path) -> None:
        self.file, self.changed = file, False
        self.sources: dict[str, ParsedSource] = {}
        maker, sources = json.loads(read_kept(file) or "[null, {}]")
        if maker == _maker():
            for name, (digest, statements) in sources.items():
                imports = (Statement(n, m, tuple(names)) for n, m, names in statements)
                self.sources[name] = ParsedSource(digest, tuple(imports))

    def parse(self, path: Path) -> ParsedSource:
        """Return what a source holds."""
        content = path.read_bytes()
        name = _sha256(content)
        if name not in self.sources:
            self.sources[name] = _read(content, str(path))
            self.changed = True
        return self.sources[name]

    def write(self) -> None:
        """Write the newest sources, where there are new ones."""
        if not self.changed:
            return
        self.changed = False
        keep(self.file, json.dumps([_maker(), dict([*self.sources.items()][-MOST:])]))


_shelves: dict[Path, _Shelf] = {}


@lru_cache(maxsize=4096)
def _parsed(path: Path, _version: Version, folder: Path) -> ParsedSource:
    file = folder / "sources.json"
    if file not in _shelves:
        _shelves[file] = _Shelf(file)
    return _shelves[file].parse(path)


@lru_cache(maxsize=MOST)  # whatever folders one process keeps it in: tests have many
def _read(content: bytes, name: str) -> ParsedSource:
    text = io.StringIO(content.decode(), newline=None).read()
    return ParsedSource(_sha256(without_comments(text).encode()), _statements(content, name))


@cache
def _maker() -> str:
    """Return what names this module and this Python."""
    return f"{_sha256(Path(__file__).read_bytes())} {sys.version}"


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _statements(content: bytes, name: str) -> tuple[Statement, ...]:
    statements: list[Statement] = []
    waiting: list[Any] = [ast.parse(content, filename=name)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            statements.extend(Statement(0, alias.name, ()) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names = tuple(alias.name for alias in node.names)
            statements.append(Statement(node.level, node.module or "", names))
        for block in BLOCKS:  # no expression imports, and most of a source is expressions
            waiting.extend(getattr(node, block, ()))
    return tuple(statements)


def without_comments(source: str) -> str:
    """Return a Python source without comments and blank lines.

    Works on positions rather than on tokens: the text between comments stays as it is, whichever
    version of Python reads it.
    """
    source += "\n" * (not source.endswith("\n"))  # with one, no token is behind the last line
    lines: list[str | None] = [*source.split("\n")]
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        row, column = token.start
        line = lines[row - 1] or ""
        if token.type == tokenize.COMMENT:
            lines[row - 1] = line[:column].rstrip() or None
        elif token.type == tokenize.NL and not line.strip():
            lines[row - 1] = None
    return "\n".join(line for line in lines if line is not None)
