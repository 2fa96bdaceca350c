"""Language tasks over texts: words or sub-words, made once and checked, and words counted.

The tokens of a split are one stream. Perplexity per word is exp(summed nats / words of the original
text), whatever the tokens: the number of words of each split stands in the store's manifest. The
first token of a stream is never predicted; the first word counts.
"""

import logging
import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from typing import ClassVar, Protocol

import numpy as np
from jaxtyping import Integer

from lra.tasks.data.lines import LineBlock
from lra.tasks.data.overlap import RUN_BYTES
from lra.tasks.data.storage import RaggedRows
from lra.tasks.data.stored_task import identity_of
from lra.tasks.errors import BadData
from lra.tasks.language.base import LanguageTask
from lra.tasks.language.words import Words, token_type
from lra.tasks.task import SPLITS

log = logging.getLogger(__name__)

DECODED = 10_000
"""Tokens that tell how many bytes one has."""


class Tokeniser(Protocol):
    """What makes ids of text: words, sub-words, or an alphabet."""

    @property
    def name(self) -> str:
        """What rows call it."""
        ...

    @property
    def size(self) -> int:
        """Number of ids."""
        ...

    @property
    def recipe(self) -> Mapping[str, object]:
        """What decides it, plain JSON."""
        ...

    @property
    def sha256(self) -> str:
        """Hash of what is stored of it."""
        ...

    def is_stored(self) -> bool:
        """Return whether it is on this machine."""
        ...

    def learn(self, train: Callable[[], Iterable[LineBlock]]) -> None:
        """Learn it from train, unless that is done."""
        ...

    def encode(self, block: LineBlock) -> Integer[np.ndarray, " n"]:
        """Return the ids of whole lines."""
        ...

    def encode_text(self, text: str) -> Integer[np.ndarray, " n"]:
        """Return the ids of any text; ValueError where it cannot be read."""
        ...

    def decode(self, ids: Integer[np.ndarray, " n"]) -> str:
        """Return the text of some ids."""
        ...


class TokenisedTask(LanguageTask):
    """A task says what its tokeniser is, and yields the encoded blocks of each split."""

    counted_as: ClassVar[str] = "words"
    """What `encoded` counts, as the manifest names it."""

    @property
    def document_end(self) -> str | None:
        """How the last id is shown, where it ends a document; None: it does not."""
        return None

    @property
    @abstractmethod
    def tokeniser(self) -> Tokeniser:
        """Makes ids of text; the same object at every call."""

    @abstractmethod
    def text(self, split: str) -> Iterable[LineBlock]:
        """Yield the text of a split."""

    @abstractmethod
    def encoded(self, split: str, counted: dict[str, int]) -> Iterator[RaggedRows]:
        """Yield the ids of a split, and leave in `counted` how many words, or others, it has.

        Raises:
            BadData: At its end, where the split is not what it should be.
        """

    @cached_property
    def tokenizer_text(self) -> str:
        """The tokeniser as rows and tables say it: name and hash of its recipe."""
        return f"{self.tokeniser.name} {identity_of(self.tokeniser.recipe)[:8]}"

    def write_encoded(self, **about: object) -> None:
        """Make the tokeniser and write the store."""
        self.tokeniser.learn(lambda: self.text("train"))
        # Filled while the splits are written, which is before the manifest is.
        counted: dict[str, int] = {}
        self.write(
            {split: self.encoded(split, counted) for split in SPLITS},
            tokenizer=self.tokenizer_text,
            tokenizer_sha256=self.tokeniser.sha256,
            **{self.counted_as: counted, **about},
        )
        if isinstance(self.tokeniser, Words) and self.tokeniser.missed:
            log.warning(
                "%s: %d words that are missing from the vocabulary were read as <unk>",
                self.spec.name,
                self.tokeniser.missed,
            )

    def _complete(self) -> bool:
        return super()._complete() and self.tokeniser.is_stored()

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
                f"{self.folder} was made with another {self.tokeniser.name}: SHA-256 {sha256}, "
                f"wanted {wanted}; delete this folder and prepare again"
            )

    def derived_metrics(self, split: str, loss: float) -> dict[str, float]:
        """Return perplexity per token; of sub-words, per word of the original text as well."""
        metrics = super().derived_metrics(split, loss)
        if self.spec.metric == "word_perplexity":
            metrics["word_perplexity"] = math.exp(loss * self.tokens_per_word(split))
        return metrics

    def tokens_per_word(self, split: str) -> float:
        """Return predicted tokens per word of the original text."""
        words: Mapping[str, int] = self.store().about["words"]
        return (len(self.split(split).tokens) - 1) / words[split]

    def run_tokens(self, splits: Mapping[str, RaggedRows]) -> int:
        """Return the tokens of some 50 bytes, as the beginning of train has them."""
        ids = np.asarray(splits["train"].tokens[:DECODED], np.int64)
        if self.document_end is not None:
            ids = ids[ids < self.spec.vocabulary - 1]
        text_bytes = len(self.tokeniser.decode(ids).encode())
        return max(2, round(RUN_BYTES * len(ids) / max(1, text_bytes)))

    def describe(self, split: str, index: int) -> str:
        """Return one window of text."""
        return self.decode(self.example(split, index))

    def encode(self, text: str) -> Integer[np.ndarray, " n"]:
        """Return the ids of a text. ValueError for a word that train does not have."""
        return self.tokeniser.encode_text(text)

    def decode(self, ids: Integer[np.ndarray, " n"]) -> str:
        """Return the text of some ids, with the ends of documents."""
        if self.document_end is None:
            return self.tokeniser.decode(ids)
        last = self.spec.vocabulary - 1
        parts = np.split(ids, np.flatnonzero(ids == last) + 1)
        return self.document_end.join(self.tokeniser.decode(part[part < last]) for part in parts)


def piece(ids: Integer[np.ndarray, " n"]) -> RaggedRows:
    """Return tokens whose sequence goes on in the next block."""
    return RaggedRows(ids, np.zeros(1, np.int64), np.empty(0, np.uint8))


def end(last: list[int], vocabulary: int) -> RaggedRows:
    """Return the end of a sequence, with its last tokens."""
    ids = np.array(last, token_type(vocabulary))
    return RaggedRows(ids, np.array([0, len(ids)]), np.zeros(1, np.uint8))
