"""Hydra's reader of configuration files, with a look at each before Hydra reads it."""

import copy
import pickle
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, cast

from hydra._internal.config_repository import ConfigRepository
from hydra._internal.hydra import Hydra
from hydra._internal.utils import create_config_search_path
from hydra.core.config_search_path import ConfigSearchPath, SearchPathQuery
from hydra.core.global_hydra import GlobalHydra
from hydra.core.object_type import ObjectType
from hydra.plugins.config_source import ConfigResult

from lra.composition.extensions import extensions
from lra.composition.loader import Loader
from lra.composition.yaml_text import load

_PACKAGED: dict[tuple[str, str], bytes] = {}
"""Files of our own package and of Hydra's, pickled: they stay as they are while a process runs."""


class Repository(ConfigRepository):
    """Reads each file once; refuses one that is damaged, no mapping or too large.

    Hydra copies its repository for every combination, because the places to look at may change
    with it; the files do not, and are shared by all copies.
    """

    def __init__(self, config_search_path: ConfigSearchPath) -> None:
        super().__init__(config_search_path)
        self.read: dict[tuple[str, str], bytes] = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> "Repository":
        return copy.copy(self)  # new places are put into a new list

    def load_config(self, config_path: str) -> ConfigResult | None:
        """Return a file as Hydra holds it, and None where there is none.

        Raises:
            BadYaml: The file holds no configuration.
        """
        source = self._find_object_source(config_path, ObjectType.CONFIG)
        key = ("" if source is None else repr(source), config_path)
        read = _PACKAGED if source is not None and source.scheme() == "pkg" else self.read
        if key not in read:
            if source is not None and source.scheme() == "file":
                load((Path(source.path) / _file_name(config_path)).resolve())
            read[key] = pickle.dumps(super().load_config(config_path))
        # Hydra changes its arguments; a pickle is copied three times as fast as its objects.
        return cast(ConfigResult | None, pickle.loads(read[key]))  # noqa: S301  # our own


def _file_name(config_path: str) -> str:
    return config_path if config_path.endswith((".yaml", ".yml")) else f"{config_path}.yaml"


def hydra_of(config_dir: str | None) -> Hydra:
    """Return Hydra on our configuration files and those under `config_dir`."""
    own = {} if config_dir is None else {"command-line": Path(config_dir).resolve()}
    others = {**own, **extensions()}
    hydra = _hydra_beside(others) if others else _hydra_alone()
    cast(Loader, hydra.config_loader).begin_command()
    GlobalHydra.instance().clear()
    GlobalHydra.instance().initialize(hydra)
    return hydra


@cache
def _hydra_alone() -> Hydra:
    """Return Hydra on our own files, which stay as they are while a process runs."""
    return _hydra_beside({})


def _hydra_beside(others: Mapping[str, Path]) -> Hydra:
    search_path = create_config_search_path("pkg://lra.conf")
    for provider, folder in others.items():
        behind_ours = SearchPathQuery(provider="schema")
        search_path.prepend(provider=provider, path=f"file://{folder}", anchor=behind_ours)
    loader = Loader(search_path)
    loader.repository = Repository(search_path)
    return Hydra(task_name="lra", config_loader=loader)
