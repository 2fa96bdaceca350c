"""List the groups, their choices, and a summary of each choice. This module imports no torch."""

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
"""A group for `lra submit` only: it says where workers run, and is no part of a configuration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueEntry:
    """One choice of one group."""

    group: str
    name: str
    summary: str
    source: str
    """Paper, data source or datasheet; empty if there is none."""
    file: str
    package: str
    """The installed package that offers the choice; empty for lra and for folders of the user."""


def roots(config_dirs: Iterable[Path] = ()) -> list[Path]:
    """Return the folders of YAML files: of the user, of lra, and of installed packages.

    Raises FileNotFoundError if one of `config_dirs`, the user's folders, does not exist.
    """
    folders = []
    for folder in config_dirs:
        if not folder.is_dir():
            raise FileNotFoundError(
                f"--config-dir: {folder} is not a folder; give the path of a folder with YAML files"
            )
        folders.append(folder)
    return [*folders, ours(), *extensions().values()]


def ours() -> Path:
    """Return the folder of YAML files that comes with lra."""
    return Path(str(resources.files("lra.conf")))


@lru_cache(maxsize=512)
def our_file(path: str) -> dict[str, Any]:
    """Return the content of GROUP/NAME.yaml of lra, read once; {} if there is no such file."""
    file = ours() / f"{path}.yaml"
    return load(file) if file.is_file() else {}


def our_names(group: str) -> list[str]:
    """Return the choices of `group` that come with lra."""
    return sorted(file.stem for file in (ours() / group).glob("*.yaml"))


def groups(config_dirs: Iterable[Path] = ()) -> list[str]:
    """Return the groups that have at least one choice, in printing order."""
    existing = {file.parent.name for root in roots(config_dirs) for file in root.glob("*/*.yaml")}
    first = [group for group in FIRST if group in existing]
    return first + sorted(existing - set(FIRST))


def names(group: str, config_dirs: Iterable[Path] = ()) -> list[str]:
    """Return the choices of `group` without opening their files."""
    stems = {file.stem for root in roots(config_dirs) for file in root.glob(f"{group}/*.yaml")}
    return sorted(stems)


def choices(group: str, config_dirs: Iterable[Path] = ()) -> list[Path]:
    """Return the file of every choice of `group`, sorted by name.

    If several folders have a choice of one name, the first folder in `roots` wins.
    """
    by_name: dict[str, Path] = {}
    for root in roots(config_dirs):
        for file in root.glob(f"{group}/*.yaml"):
            by_name.setdefault(file.stem, file)
    return [by_name[name] for name in sorted(by_name)]


def entries(group: str, config_dirs: Iterable[Path] = ()) -> list[CatalogueEntry]:
    """Return the entry of every choice of `group`, sorted by name; see `choices`."""
    return [read_entry(file) for file in choices(group, config_dirs)]


def read_entry(file: Path) -> CatalogueEntry:
    """Return the entry of one choice; the summary is in `about`, or else in the first comment."""
    node = load(file)
    about = node.get("about") or {}
    if not isinstance(about, dict):
        raise ValueError(
            f"{file}: the key about: got {about!r}; wanted a mapping with the keys summary, and "
            "paper or source"
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
    """Return the first sentence of the comment at the beginning of a YAML file.

    Lines such as `# @package _global_`, which are meant for Hydra, are skipped.
    """
    words: list[str] = []
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        content = line.lstrip("# ").strip()
        if not content.startswith("@"):
            words += content.split()
    return " ".join(words).partition(". ")[0].rstrip(".")


def spellings(config_dirs: Iterable[Path] = ()) -> dict[str, str]:
    """Return the group that each word names; a group can be named in the singular or the plural."""
    existing = groups(config_dirs)
    return {plural(group): group for group in existing} | {group: group for group in existing}


def asked(given: Sequence[str], config_dirs: Sequence[Path]) -> tuple[list[str], list[Path]]:
    """Return the groups and the files of choices that a user asks for; one of the two is empty.

    Args:
        given: Either groups, or names of choices, which may follow their group. If it is empty, the
            user asks for all groups.
        config_dirs: Folders with the user's YAML files.

    Raises:
        UnknownName: There is no such group or choice; the message lists similar names.
    """
    by_word = spellings(config_dirs)
    if not given:
        return groups(config_dirs), []
    first, *others = given
    if first not in by_word:
        return [], [file for word in given for file in _find_files(word, by_word, config_dirs)]
    files = {file.stem: file for file in choices(by_word[first], config_dirs)}
    # All arguments are groups, unless the second one is a choice of the first.
    if not others or (others[0] not in files and {*others} <= by_word.keys()):
        return [by_word[word] for word in given], []
    names_found = [respelt(name, files) or known_as(name, files) or name for name in others]
    for name in names_found:
        if name not in files:
            raise UnknownName(unknown(by_word[first], name, files))
    return [], [files[name] for name in names_found]


def _find_files(name: str, by_word: Mapping[str, str], config_dirs: Sequence[Path]) -> list[Path]:
    """Return the files of choices called `name`, in any group, and of those often called so.

    `by_word` is what `spellings` returns.
    """
    every = [file for group in groups(config_dirs) for file in choices(group, config_dirs)]
    stems = {file.stem for file in every}
    wanted = {name, known_as(name, stems), name if name in stems else name.lower()}
    if matches := [file for file in every if file.stem in wanted]:
        return matches
    if name in by_word:
        raise UnknownName(f"got the group {name!r} after a name; type the group first, or omit it")
    plurals = {plural(group) for group in by_word.values()}
    resembles_group = near(name, plurals)
    raise UnknownName(
        unknown("group", name, plurals) if resembles_group else unknown("name", name, stems)
    )


def words(config_dirs: Iterable[Path] = ()) -> dict[str, str]:
    """Return the spelling of each group in `lra run`; a group without a default needs a plus."""
    with_default = _read_default_groups(ours() / "config.yaml")
    return {
        group: group if group in with_default else f"+{group}"
        for group in groups(config_dirs)
        if group != OF_SUBMIT
    }


@lru_cache(maxsize=8)
def _read_default_groups(file: Path) -> frozenset[str]:
    """Return the groups for which lra's config.yaml, `file`, chooses a default."""
    defaults = load(file).get("defaults") or []
    return frozenset(str(group) for entry in defaults if isinstance(entry, dict) for group in entry)
