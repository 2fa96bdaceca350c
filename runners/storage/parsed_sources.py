"""Parses a Python source: its imports, and a hash of its text without comments.

It takes half a second to parse all sources of a run, so results are cached on this machine by the
hash of each file's bytes. A cache file is ignored if it is damaged, or if another version of this
module or of Python wrote it.
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
"""The cache has at most so many sources."""
BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")
"""Attributes of a syntax node that contain statements, or nodes with statements."""
Version = tuple[int, int]
"""Version of a file: time of its last change in nanoseconds, and its size in bytes."""


class Statement(NamedTuple):
    """An import statement."""

    level: int
    """Number of leading dots of a relative import; 0: the import is absolute."""
    module: str
    names: tuple[str, ...]
    """Names that are imported from the module; empty for `import module`."""


class ParsedSource(NamedTuple):
    """The result of parsing a source."""

    digest: str
    """SHA-256 of the text without comments and blank lines."""
    statements: tuple[Statement, ...]


def parse_source(path: Path) -> ParsedSource:
    """Parse the source file at `path`, or return the cached result."""
    status = path.stat()
    return _parse_cached(path, (status.st_mtime_ns, status.st_size), data_root() / "hashes")


def keep_parsed() -> None:
    """Write newly parsed sources to the cache, if it can be written."""
    for shelf in _shelves.values():
        shelf.write()


class _Shelf:
    """Parsed sources in one file of a cache, by the SHA-256 of their bytes."""

    def __init__(self, file: Path) -> None:
        self.file, self.changed = file, False
        self.sources: dict[str, ParsedSource] = {}
        # The version that wrote the file, and its sources.
        maker, sources = json.loads(read_kept(file) or "[null, {}]")
        if maker == _version_text():
            for name, (digest, statements) in sources.items():
                imports = (Statement(n, m, tuple(names)) for n, m, names in statements)
                self.sources[name] = ParsedSource(digest, tuple(imports))

    def parse(self, path: Path) -> ParsedSource:
        """Return the parsed source file at `path`, from the cache if its bytes are known."""
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
        keep(self.file, json.dumps([_version_text(), dict([*self.sources.items()][-MOST:])]))


_shelves: dict[Path, _Shelf] = {}


@lru_cache(maxsize=4096)
def _parse_cached(path: Path, _version: Version, folder: Path) -> ParsedSource:
    """Return the parsed source; a changed file has another `_version`, so it is parsed again."""
    file = folder / "sources.json"
    if file not in _shelves:
        _shelves[file] = _Shelf(file)
    return _shelves[file].parse(path)


@lru_cache(maxsize=MOST)  # shared by all cache folders of a process, of which tests have many
def _parse_bytes(content: bytes, name: str) -> ParsedSource:
    text = io.StringIO(content.decode(), newline=None).read()  # every line ends with \n
    return ParsedSource(_sha256(without_comments(text).encode()), _list_statements(content, name))


@cache
def _version_text() -> str:
    """Return the version of this module and of Python, which a cache file must have."""
    return f"{_sha256(Path(__file__).read_bytes())} {sys.version}"


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _list_statements(content: bytes, name: str) -> tuple[Statement, ...]:
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
        for block in BLOCKS:  # expressions have no imports, and skipping them saves most time
            waiting.extend(getattr(node, block, ()))
    return tuple(statements)


def without_comments(source: str) -> str:
    """Return a Python source without comments and blank lines.

    The text between comments stays unchanged; it is not made from tokens, which differ between
    versions of Python.
    """
    source += "\n" * (not source.endswith("\n"))  # so that no token is beyond the last line
    lines: list[str | None] = [*source.split("\n")]
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        row, column = token.start
        line = lines[row - 1] or ""
        if token.type == tokenize.COMMENT:
            lines[row - 1] = line[:column].rstrip() or None
        elif token.type == tokenize.NL and not line.strip():
            lines[row - 1] = None
    return "\n".join(line for line in lines if line is not None)
