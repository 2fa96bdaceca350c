"""What can be chosen: groups, their choices, and the line that describes each. Imports no torch."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

from lra.composition.extensions import extensions, package_of
from lra.composition.yaml_text import load
from lra.errors import UnknownName, known_as, near, plural, respelt, unknown

FIRST = (
    "model", "task", "hardware", "size", "optim", "runner", "search", "protocol", "scale",
    "logger", "cluster",
)  # fmt: skip
"""The order in which groups are printed; groups not named here follow by alphabet."""
OF_SUBMIT = "cluster"
"""The group that `lra submit` alone takes: it says who runs the cells, and is no part of one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueEntry:
    """One choice of one group."""

    group: str
    name: str
    summary: str
    source: str
    """Paper, data source or datasheet; empty where the choice is our own."""
    file: str
    package: str
    """Of an installed package; empty for lra's own and those of a folder."""


def roots(config_dirs: Iterable[Path] = ()) -> list[Path]:
    """Return the folders that hold groups: the user's own, ours, those of installed packages."""
    folders = []
    for folder in config_dirs:
        if not folder.is_dir():
            raise FileNotFoundError(f"--config-dir {folder} is not a folder: give one that exists")
        folders.append(folder)
    return [*folders, ours(), *extensions().values()]


def ours() -> Path:
    """Return the folder of lra's own choices."""
    return Path(str(resources.files("lra.conf")))


@lru_cache(maxsize=512)
def our_file(path: str) -> dict[str, Any]:
    """Return GROUP/NAME of lra's own, which stays while a process runs; empty where none is."""
    file = ours() / f"{path}.yaml"
    return load(file) if file.is_file() else {}


def our_names(group: str) -> list[str]:
    """Return lra's own choices of `group`."""
    return sorted(file.stem for file in (ours() / group).glob("*.yaml"))


def groups(config_dirs: Iterable[Path] = ()) -> list[str]:
    """Return the groups that have at least one choice, in printing order."""
    seen = {file.parent.name for root in roots(config_dirs) for file in root.glob("*/*.yaml")}
    first = [group for group in FIRST if group in seen]
    return first + sorted(seen - set(FIRST))


def names(group: str, config_dirs: Iterable[Path] = ()) -> list[str]:
    """Return the choices of `group` without opening their files."""
    stems = {file.stem for root in roots(config_dirs) for file in root.glob(f"{group}/*.yaml")}
    return sorted(stems)


def choices(group: str, config_dirs: Iterable[Path] = ()) -> list[Path]:
    """Return the file of every choice of `group`, by name; of one name, the first in `roots`."""
    by_name: dict[str, Path] = {}
    for root in roots(config_dirs):
        for file in root.glob(f"{group}/*.yaml"):
            by_name.setdefault(file.stem, file)
    return [by_name[name] for name in sorted(by_name)]


def entries(group: str, config_dirs: Iterable[Path] = ()) -> list[CatalogueEntry]:
    """Read every choice of `group`, sorted by name; the user's own files win over ours."""
    return [read_entry(file) for file in choices(group, config_dirs)]


def read_entry(file: Path) -> CatalogueEntry:
    """Read the line that describes one choice: its `about`, or else its opening comment."""
    node = load(file)
    about = node.get("about") or {}
    if not isinstance(about, dict):
        raise ValueError(
            f"{file}: about must be a mapping with summary and paper or source: got {about!r}"
        )
    summary = about.get("summary") or opening_comment(file.read_text(encoding="utf-8"))
    return CatalogueEntry(
        group=file.parent.name,
        name=file.stem,
        summary=" ".join(str(summary).split()),
        source=str(about.get("paper") or about.get("source") or ""),
        file=str(file),
        package=package_of(file),
    )


def opening_comment(text: str) -> str:
    """Return the first sentence of the comment that opens a YAML file, Hydra's directives aside."""
    words: list[str] = []
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        content = line.lstrip("# ").strip()
        if not content.startswith("@"):
            words += content.split()
    return " ".join(words).partition(". ")[0].rstrip(".")


def spellings(config_dirs: Iterable[Path] = ()) -> dict[str, str]:
    """Return each group by the words for it: its name and its plural."""
    existing = groups(config_dirs)
    return {plural(group): group for group in existing} | {group: group for group in existing}


def asked(given: Sequence[str], config_dirs: Sequence[Path]) -> tuple[list[str], list[Path]]:
    """Return the groups and the files of the choices that are asked for; one of the two is empty.

    Args:
        given: Groups; or names of choices, perhaps with their group before them. None: all groups.
        config_dirs: Folders of the user's own choices.

    Raises:
        UnknownName: there is no such group or choice; with near matches.
    """
    by_word = spellings(config_dirs)
    if not given:
        return groups(config_dirs), []
    first, *behind = given
    if first not in by_word:
        return [], [file for word in given for file in _of_any(word, by_word, config_dirs)]
    files = {file.stem: file for file in choices(by_word[first], config_dirs)}
    if not behind or (behind[0] not in files and {*behind} <= by_word.keys()):
        return [by_word[word] for word in given], []
    found = [respelt(name, files) or known_as(name, files) or name for name in behind]
    for name in found:
        if name not in files:
            raise UnknownName(unknown(by_word[first], name, files))
    return [], [files[name] for name in found]


def _of_any(name: str, by_word: Mapping[str, str], config_dirs: Sequence[Path]) -> list[Path]:
    """Return the files of the choices of this name and of what others call so, by group."""
    every = [file for group in groups(config_dirs) for file in choices(group, config_dirs)]
    stems = {file.stem for file in every}
    wanted = {name, known_as(name, stems), name if name in stems else name.lower()}
    if matches := [file for file in every if file.stem in wanted]:
        return matches
    if name in by_word:
        raise UnknownName(f"got the group {name!r} after a name; put the group first, or omit it")
    plurals = {plural(group) for group in by_word.values()}
    of_group = near(name, plurals)
    raise UnknownName(unknown("group", name, plurals) if of_group else unknown("name", name, stems))


def words(config_dirs: Iterable[Path] = ()) -> dict[str, str]:
    """Return how `lra run` spells each of its groups: those without a default take a plus."""
    with_default = _with_default(ours() / "config.yaml")
    return {
        group: group if group in with_default else f"+{group}"
        for group in groups(config_dirs)
        if group != OF_SUBMIT
    }


@lru_cache(maxsize=8)
def _with_default(file: Path) -> frozenset[str]:
    """Return the groups that our own configuration has a choice for: its file stays as it is."""
    defaults = load(file).get("defaults") or []
    return frozenset(str(group) for entry in defaults if isinstance(entry, dict) for group in entry)
