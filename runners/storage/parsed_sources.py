"""Parses a Python source: its imports, and a hash without its comments.

To parse all sources that a cell depends on takes half a second, so results are cached on this
machine by the hash of each file's bytes. A cache file that is damaged, or was written by another
version of this module or of Python, is ignored.
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
"""Most sources in the cache."""
BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")
"""Attributes of a syntax node that hold statements, or nodes with statements."""
Version = tuple[int, int]
"""A file's version: time of its last change in nanoseconds, and its bytes."""


class Statement(NamedTuple):
    """An import statement."""

    level: int
    """Number of leading dots of a relative import; 0: an absolute one."""
    module: str
    names: tuple[str, ...]
    """Names that are imported from the module; empty for `import module`."""


class ParsedSource(NamedTuple):
    """The result of parsing a source."""

    digest: str
    """SHA-256 of its text without comments and blank lines."""
    statements: tuple[Statement, ...]


def parse_source(path: Path) -> ParsedSource:
    """Parse the source file at `path`, or return the cached result."""
    status = path.stat()
    return _parsed(path, (status.st_mtime_ns, status.st_size), data_root() / "hashes")


def keep_parsed() -> None:
    """Write newly parsed sources to the cache, if it can be written."""
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
        """Parse the source file at `path`, unless one with the same bytes is cached."""
        content = path.read_bytes()
        name = _sha256(content)
        if name not in self.sources:
            self.sources[name] = _parse_bytes(content, str(path))
            self.changed = True
        return self.sources[name]

    def write(self) -> None:
        """Write the newest `MOST` sources, if any was added."""
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


@lru_cache(maxsize=MOST)  # shared by all cache folders of a process: tests have many
def _parse_bytes(content: bytes, name: str) -> ParsedSource:
    text = io.StringIO(content.decode(), newline=None).read()
    return ParsedSource(_sha256(without_comments(text).encode()), _statements(content, name))


@cache
def _maker() -> str:
    """Return the version of this module and of Python, which a cache file must have."""
    return f"{_sha256(Path(__file__).read_bytes())} {sys.version}"


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _statements(content: bytes, name: str) -> tuple[Statement, ...]:
    """Return all import statements of a source, also those inside functions and branches."""
    statements: list[Statement] = []
    waiting: list[Any] = [ast.parse(content, filename=name)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            statements.extend(Statement(0, alias.name, ()) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names = tuple(alias.name for alias in node.names)
            statements.append(Statement(node.level, node.module or "", names))
        for block in BLOCKS:  # expressions contain no imports: skipping them saves most of the time
            waiting.extend(getattr(node, block, ()))
    return tuple(statements)


def without_comments(source: str) -> str:
    """Return a Python source without comments and blank lines.

    The text between comments stays as it is; it is not rebuilt from tokens, which differ between
    versions of Python.
    """
    source += "\n" * (not source.endswith("\n"))  # else a token could stand after the last line
    lines: list[str | None] = [*source.split("\n")]
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        row, column = token.start
        line = lines[row - 1] or ""
        if token.type == tokenize.COMMENT:
            lines[row - 1] = line[:column].rstrip() or None
        elif token.type == tokenize.NL and not line.strip():
            lines[row - 1] = None
    return "\n".join(line for line in lines if line is not None)
