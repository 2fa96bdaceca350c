"""Words about options of a mixer, in a sweep over models that do not all have them.

`-m model=cosformer,linformer model.mixer.variant=faithful,lra` asks for what there is: the variants
of Linformer, and cosFormer, which has none and is faithful, once. What a model does not have is
left out by name; a word that no model of the sweep knows is refused as everywhere.
"""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf

from lra.composition.loader import Loader

BEGINNING = "model.mixer."
PLAIN = ("variant", "faithful")
"""What a family without variants is."""


def about_mixers(combinations: Sequence[Sequence[str]]) -> bool:
    """Tell whether a sweep has words about options of mixers: all combinations have the same."""
    return any(word.lstrip("+").startswith(BEGINNING) for word in chain(*combinations[:1]))


class MixerWords:
    """Fits the words of each combination to its model."""

    def __init__(self, loader: Loader, combinations: Sequence[Sequence[str]]) -> None:
        """Begin a sweep of `combinations`."""
        self.loader = loader
        self.models = dict.fromkeys(map(_model_of, combinations))
        self.options: dict[str | None, Mapping[str, Any] | None] = {
            name: self._options(name) for name in self.models
        }
        self.left_out: dict[tuple[str, str], int] = {}

    def fitted(self, words: Sequence[str]) -> list[str] | None:
        """Return the words of a combination that its model has a use for; None: leave it out."""
        own = self.options[_model_of(words)]
        kept = []
        for word in words:
            key, _, value = word.lstrip("+").partition("=")
            name = key.removeprefix(BEGINNING).partition(".")[0]
            if not key.startswith(BEGINNING) or own is None or name in own or not self._known(name):
                kept.append(word)
            elif (name, value) != PLAIN:
                pair = (str(_model_of(words)), f"{key}={value}")
                self.left_out[pair] = self.left_out.get(pair, 0) + 1
                return None
        return kept

    def notes(self) -> list[str]:
        """Return what was left out, as somebody at a keyboard should hear it."""
        return [
            f"{word} is no option of model={model}: left out ({count} of the combinations)"
            for (model, word), count in self.left_out.items()
        ]

    def _known(self, name: str) -> bool:
        """Return whether some model of the sweep has the option."""
        return any(name in (options or ()) for options in self.options.values())

    def _options(self, model: str | None) -> Mapping[str, Any] | None:
        """Return the options in a model's file; None where they cannot be read."""
        if model is None:
            return None
        loaded = self.loader.repository.load_config(f"model/{model}")
        if loaded is None:
            return None
        mixer = OmegaConf.select(cast(DictConfig, loaded.config), "mixer")
        return mixer if isinstance(mixer, Mapping) else None


def _model_of(words: Sequence[str]) -> str | None:
    chosen = [word.partition("=")[2] for word in words if word.startswith("model=")]
    return chosen[-1] if chosen else None
