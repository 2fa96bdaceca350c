"""Read the YAML files of configurations: those of lra, of `--config-dir` and of installed packages.

Each file is read once, by `lra.composition.yaml_text`, which refuses damaged and very large files.
Hydra gets the files from here, too, through a plug-in. It only gets each file's list of other files
and its part `hydra`; `lra.composition.composer` merges all other values.
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
    """The content of a YAML file."""

    values: dict[str, Any]
    """All values except the list `defaults`."""
    brings: list[Any]
    """The list `defaults` of other files that this file needs."""
    header: dict[str, str | None]
    """Hydra's comments in the first lines: `package` is the key for the values; None: the group."""

    @property
    def alone(self) -> bool:
        """Whether the file only sets values of lra, and needs no other files."""
        return self.brings in ([], ["_self_"]) and "hydra" not in self.values


class Folder(ConfigSource):
    """A folder of YAML files that Hydra reads through the address `lra://FOLDER`."""

    read: ClassVar[dict[Path, File]] = {}

    @staticmethod
    def scheme() -> str:
        """Return the scheme of the addresses, `lra`."""
        return "lra"

    def _locate_file(self, config_path: str) -> Path:
        """Return the path of GROUP/NAME, to which the ending .yaml is added."""
        return Path(self.path) / self._normalize_file_name(config_path)

    def file(self, config_path: str) -> File:
        """Return the content of GROUP/NAME, which is read only once. Raises BadYaml."""
        path = self._locate_file(config_path)
        if path not in self.read:
            values = load(path)
            brings = values.pop("defaults", None) or []
            if not isinstance(brings, list):
                raise BadYaml(
                    f"{path}: the key defaults: got {brings!r}; wanted a list of other files"
                )
            with path.open(encoding="utf-8") as stream:  # Hydra's comments are in the first lines
                self.read[path] = File(values, brings, self._get_header_dict(stream.read(512)))
        return self.read[path]

    def load_config(self, config_path: str) -> ConfigResult:
        """Return the parts of a file that Hydra needs: `defaults` and `hydra`."""
        file = self.file(config_path)
        parts = {"defaults": file.brings} | {k: v for k, v in file.values.items() if k == "hydra"}
        config = OmegaConf.create(parts)
        return ConfigResult(self.provider, self.full_path(), config, dict(file.header))

    def available(self) -> bool:
        """Return whether the folder exists."""
        return self.is_group("")

    def is_group(self, config_path: str) -> bool:
        """Return whether the folder contains a folder `config_path`."""
        return (Path(self.path) / config_path).is_dir()

    def is_config(self, config_path: str) -> bool:
        """Return whether the folder contains the file `config_path` (without its ending)."""
        return self._locate_file(config_path).is_file()

    def list(self, config_path: str, results_filter: ObjectType | None = None) -> list[str]:  # noqa: ARG002
        """Return the names of the files of a group."""
        return sorted(file.stem for file in (Path(self.path) / config_path).glob("*.yaml"))


class SearchPath(SearchPathPlugin):
    """A plug-in that adds lra's folders to Hydra's search path while lra starts Hydra.

    Another program in the same process may start Hydra, too; then `now` is empty.
    """

    now: ClassVar[Sequence[Path]] = ()

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Put lra's folders before the folder on which Hydra is started."""
        for folder in self.now:
            search_path.prepend("lra", f"lra://{folder}", "main")


class Listed(NamedTuple):
    """Hydra's list of the files that a command chooses."""

    files: list[ResultDefault]
    """The files in Hydra's order."""
    packages: dict[str, str | None]
    """The key for the values, by group, if the group has one file and it only sets values."""


class Files:
    """The YAML files in several folders; if two have the same file, the earlier folder wins.

    Args:
        others: Further folders; the folder of lra comes first.
    """

    def __init__(self, others: Sequence[Path] = ()) -> None:
        """Find the folders, and forget the user's files that an earlier command read."""
        for path in [*Folder.read]:
            if not path.is_relative_to(ours()):  # files of the user may have changed meanwhile
                del Folder.read[path]
        self.folders = [ours(), *(folder.resolve() for folder in others)]
        self.sources = [Folder("lra", f"lra://{folder}") for folder in self.folders]
        self._names: dict[str, list[str]] = {}
        self.lists: dict[tuple[str, ...], Listed] = {}
        """Hydra's lists, by the arguments that choose files."""
        self.own_parts: dict[tuple[str, ...], bytes] = {}
        """The pickled part `hydra` of configurations, by the arguments that choose files."""

    def find(self, path: str) -> File | None:
        """Return the file GROUP/NAME; None if there is no such file. Raises BadYaml."""
        source = next((source for source in self.sources if source.is_config(path)), None)
        return None if source is None else source.file(path)

    def names(self, group: str) -> list[str]:
        """Return the names of a group's choices; [] if there is no such group."""
        if not group:
            return []
        if group not in self._names:
            listed = (source.list(group) for source in self.sources)
            self._names[group] = sorted({name for names in listed for name in names})
        return self._names[group]

    def start_hydra(self) -> None:
        """Start Hydra with these files; if Hydra was started before, that start is replaced."""
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
    """Return the files of lra alone, which do not change while a process runs."""
    return Files()
