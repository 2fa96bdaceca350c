"""Files of configuration: ours, those under `--config-dir`, those of installed packages.

Each is read once, by `lra.composition.yaml_text`, and refused where it is damaged, no mapping or
too large. Hydra reads them here, too, by a plug-in for its sources. Of values it gets its own part
alone: `lra.composition.composer` merges the others.
"""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from hydra import initialize_config_dir
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.default_element import ResultDefault
from hydra.core.global_hydra import GlobalHydra
from hydra.core.object_type import ObjectType
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigResult, ConfigSource
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import OmegaConf

from lra.composition.catalogue import ours
from lra.composition.yaml_text import BadYaml, load


class File(NamedTuple):
    """What a file says."""

    values: dict[str, Any]
    """Without its list of other files."""
    brings: list[Any]
    """That list."""
    header: dict[str, str | None]
    """`package` is where its first lines put the values; None: where its folder says."""

    @property
    def alone(self) -> bool:
        """Whether it only sets values, none of Hydra's among them."""
        return self.brings in ([], ["_self_"]) and "hydra" not in self.values


class Folder(ConfigSource):
    """A folder as Hydra looks into it, `lra://FOLDER`."""

    read: ClassVar[dict[Path, File]] = {}

    @staticmethod
    def scheme() -> str:
        """Return what its addresses begin with."""
        return "lra"

    def _file(self, config_path: str) -> Path:
        return Path(self.path) / self._normalize_file_name(config_path)

    def file(self, config_path: str) -> File:
        """Return what a file says, read once. Raises BadYaml."""
        path = self._file(config_path)
        if path not in self.read:
            values = load(path)
            brings = values.pop("defaults", None) or []
            if not isinstance(brings, list):
                raise BadYaml(f"{path}: defaults: got {brings!r}; wanted a list of files")
            with path.open(encoding="utf-8") as stream:
                self.read[path] = File(values, brings, self._get_header_dict(stream.read(512)))
        return self.read[path]

    def load_config(self, config_path: str) -> ConfigResult:
        """Return what Hydra needs of a file."""
        file = self.file(config_path)
        kept = {"defaults": file.brings} | {k: v for k, v in file.values.items() if k == "hydra"}
        config = OmegaConf.create(kept)
        return ConfigResult(self.provider, self.full_path(), config, dict(file.header))

    def available(self) -> bool:
        """Return whether the folder is there."""
        return self.is_group("")

    def is_group(self, config_path: str) -> bool:
        """Return whether there is a folder of this name."""
        return (Path(self.path) / config_path).is_dir()

    def is_config(self, config_path: str) -> bool:
        """Return whether there is a file of this name."""
        return self._file(config_path).is_file()

    def list(self, config_path: str, results_filter: ObjectType | None = None) -> list[str]:  # noqa: ARG002
        """Return the names of the files of a group."""
        return sorted(file.stem for file in (Path(self.path) / config_path).glob("*.yaml"))


class SearchPath(SearchPathPlugin):
    """Has Hydra look into our folders while it starts for us, and into none for others."""

    now: ClassVar[Sequence[Path]] = ()

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Put our folders before what Hydra is started on."""
        for folder in self.now:
            search_path.prepend("lra", f"lra://{folder}", "main")


class Listed(NamedTuple):
    """What Hydra says of choices."""

    files: list[ResultDefault]
    """In its order."""
    packages: dict[str, str | None]
    """By group, where the file that only sets values, and has no other beside it, puts them."""


class Files:
    """The files of some folders; of two with one name the former folder's, ours first."""

    def __init__(self, others: Sequence[Path] = ()) -> None:
        for path in [*Folder.read]:
            if not path.is_relative_to(ours()):  # they may have changed since
                del Folder.read[path]
        self.folders = [ours(), *(folder.resolve() for folder in others)]
        self.sources = [Folder("lra", f"lra://{folder}") for folder in self.folders]
        self._names: dict[str, list[str]] = {}
        self.lists: dict[tuple[str, ...], Listed] = {}
        """By the words that bring files along."""
        self.own_parts: dict[tuple[str, ...], bytes] = {}
        """Hydra's own part, likewise."""

    def find(self, path: str) -> File | None:
        """Return GROUP/NAME; None where there is none. Raises BadYaml."""
        there = (source for source in self.sources if source.is_config(path))
        source = next(there, None)
        return None if source is None else source.file(path)

    def names(self, group: str) -> list[str]:
        """Return the names of a group; none for what is no group."""
        if not group:
            return []
        if group not in self._names:
            listed = (source.list(group) for source in self.sources)
            self._names[group] = sorted({name for names in listed for name in names})
        return self._names[group]

    def start_hydra(self) -> None:
        """Start Hydra on these files, in the place of whatever it was on."""
        plugins = Plugins.instance()
        plugins.register(Folder)
        plugins.register(SearchPath)
        GlobalHydra.instance().clear()
        SearchPath.now = self.folders
        try:
            initialize_config_dir(str(ours()), job_name="lra", version_base="1.3")
        finally:
            SearchPath.now = ()


@cache
def our_files() -> Files:
    """Return our own files, which stay as they are while a process runs."""
    return Files()
