"""Language tasks over texts: words or sub-words, made once and checked, and words counted.

The tokens of a split are one stream. Perplexity per word is exp(summed nats / words of the original
text), whatever the tokens: the number of words of each split stands in the store's manifest. The
first token of a stream is never predicted; the first word counts.
"""

import logging
import math
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property

import numpy as np
from jaxtyping import Integer

from tasks.data.lines import LineBlock
from tasks.data.prepared import identity_of
from tasks.data.storage import Ragged
from tasks.errors import BadData
from tasks.language.base import LanguageTask
from tasks.language.subwords import Subwords
from tasks.language.words import Words, token_type
from tasks.task import SPLITS

log = logging.getLogger(__name__)


class TokenisedTask(LanguageTask):
    """A task says what its tokeniser is, and yields the encoded blocks of each split."""

    @property
    @abstractmethod
    def tokeniser(self) -> Words | Subwords:
        """Makes ids of text; the same object at every call."""

    @abstractmethod
    def text(self, split: str) -> Iterable[LineBlock]:
        """Yield the text of a split."""

    @abstractmethod
    def encoded(self, split: str, counted: dict[str, int]) -> Iterator[Ragged]:
        """Yield the ids of a split, and leave in `counted` how many words it has.

        Raises:
            BadData: At its end, where the split is not what it should be.
        """

    @cached_property
    def tokenizer_text(self) -> str:
        """The tokeniser as rows and tables say it: name and hash of its recipe."""
        return f"{self.tokeniser.name} {identity_of(self.tokeniser.recipe)[:8]}"

    def write_encoded(self, **about: object) -> None:
        """Make the tokeniser and write the store."""
        self.tokeniser.make(lambda: self.text("train"))
        # Filled while the splits are written, which is before the manifest is.
        words: dict[str, int] = {}
        self.write(
            {split: self.encoded(split, words) for split in SPLITS},
            words=words,
            tokenizer=self.tokenizer_text,
            tokenizer_sha256=self.tokeniser.sha256,
            **about,
        )
        if isinstance(self.tokeniser, Words) and self.tokeniser.missed:
            log.warning(
                "%s: %d words that train does not have were read as <unk>",
                self.spec.name,
                self.tokeniser.missed,
            )

    def _complete(self) -> bool:
        return super()._complete() and self.tokeniser.there()

    def prepare(self) -> None:
        """Make the data ready on this machine, and compare the tokeniser with its hash."""
        super().prepare()
        self.check_tokeniser()

    def verify(self) -> None:
        """Compare the prepared files and the tokeniser with their hashes."""
        super().verify()
        self.check_tokeniser()

    def check_tokeniser(self) -> None:
        """Raise `BadData` unless the tokeniser is the one that made the stored ids."""
        sha256, wanted = self.tokeniser.sha256, self.store().about.get("tokenizer_sha256")
        if sha256 != wanted:
            raise BadData(
                f"{self.folder} was made by another {self.tokeniser.name}: SHA-256 {sha256}, "
                f"wanted {wanted}; delete this folder and prepare again"
            )

    def derived(self, split: str, loss: float) -> dict[str, float]:
        """Return perplexity per token; of sub-words, per word of the original text as well."""
        metrics = super().derived(split, loss)
        if self.spec.metric == "word_perplexity":
            metrics["word_perplexity"] = math.exp(loss * self.tokens_per_word(split))
        return metrics

    def tokens_per_word(self, split: str) -> float:
        """Return predicted tokens per word of the original text."""
        words: Mapping[str, int] = self.store().about["words"]
        return (len(self.split(split).tokens) - 1) / words[split]

    def describe(self, split: str, index: int) -> str:
        """Return one window of text."""
        return self.decode(self.example(split, index))

    def encode(self, text: str) -> Integer[np.ndarray, " n"]:
        """Return the ids of a text. ValueError for a word that train does not have."""
        return self.tokeniser.encode_text(text)

    def decode(self, ids: Integer[np.ndarray, " n"]) -> str:
        """Return the text of some ids."""
        return self.tokeniser.decode(ids)


def piece(ids: Integer[np.ndarray, " n"]) -> Ragged:
    """Return tokens whose sequence goes on in the next block."""
    return Ragged(ids, np.zeros(1, np.int64), np.empty(0, np.uint8))


def end(last: list[int], vocabulary: int) -> Ragged:
    """Return the end of a sequence, with its last tokens."""
    ids = np.array(last, token_type(vocabulary))
    return Ragged(ids, np.array([0, len(ids)]), np.zeros(1, np.uint8))
