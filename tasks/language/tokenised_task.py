"""The base of language tasks with a tokeniser: it stores ids, and counts words.

The tokens of a split are one long sequence. Perplexity per word is exp(summed nats / words of the
original text) for all kinds of tokens; the manifest has the number of words of each split. The
first token is never predicted, but the first word counts.
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
"""Number of tokens that are decoded to estimate the bytes per token."""


class Tokeniser(Protocol):
    """Turns text into ids: words, sub-words, or an alphabet."""

    @property
    def name(self) -> str:
        """Name in rows."""
        ...

    @property
    def size(self) -> int:
        """Number of ids."""
        ...

    @property
    def recipe(self) -> Mapping[str, object]:
        """Everything that decides the ids, as JSON values."""
        ...

    @property
    def sha256(self) -> str:
        """Hash of the stored file."""
        ...

    def is_stored(self) -> bool:
        """Return whether the tokeniser is stored on this machine."""
        ...

    def learn(self, train: Callable[[], Iterable[LineBlock]]) -> None:
        """Learn the vocabulary from the text `train()`, unless it is stored."""
        ...

    def encode(self, block: LineBlock) -> Integer[np.ndarray, " n"]:
        """Return the ids of whole lines."""
        ...

    def encode_text(self, text: str) -> Integer[np.ndarray, " n"]:
        """Return the ids of any text; raise ValueError for unknown characters or words."""
        ...

    def decode(self, ids: Integer[np.ndarray, " n"]) -> str:
        """Return the text of some ids."""
        ...


class TokenisedTask(LanguageTask):
    """A base class; a subclass names its tokeniser, and yields the encoded blocks of a split."""

    counted_as: ClassVar[str] = "words"
    """Name in the manifest of what `encoded` counts."""

    @property
    def document_end(self) -> str | None:
        """Text for the last id if it ends a document, else None."""
        return None

    @property
    @abstractmethod
    def tokeniser(self) -> Tokeniser:
        """The tokeniser; the same object at every call."""

    @abstractmethod
    def text(self, split: str) -> Iterable[LineBlock]:
        """Yield the text of `split` in blocks."""

    @abstractmethod
    def encoded(self, split: str, counted: dict[str, int]) -> Iterator[RaggedRows]:
        """Yield the ids of `split`; store the number of its words (or bytes) in `counted`.

        Raises:
            BadData: After the last block, if the split is incomplete.
        """

    @cached_property
    def tokenizer_text(self) -> str:
        """Name of the tokeniser and hash of its recipe, as rows and tables print them."""
        return f"{self.tokeniser.name} {identity_of(self.tokeniser.recipe)[:8]}"

    def write_encoded(self, **about: object) -> None:
        """Learn the tokeniser, encode all splits, and write the store."""
        self.tokeniser.learn(lambda: self.text("train"))
        # `encoded` fills this before the manifest is written.
        counted: dict[str, int] = {}
        self.write(
            {split: self.encoded(split, counted) for split in SPLITS},
            tokenizer=self.tokenizer_text,
            tokenizer_sha256=self.tokeniser.sha256,
            **{self.counted_as: counted, **about},
        )
        if isinstance(self.tokeniser, Words) and self.tokeniser.missed:
            log.warning(
                "%s: lra read %d words that are missing from the vocabulary as <unk>",
                self.spec.name,
                self.tokeniser.missed,
            )

    def _complete(self) -> bool:
        return super()._complete() and self.tokeniser.is_stored()

    def prepare(self) -> None:
        """Prepare the data on this machine, and compare the tokeniser with its hash."""
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
                f"{self.folder} was made with another tokeniser ({self.tokeniser.name}) of SHA-256 "
                f"{wanted}; the present one has {sha256}; delete this folder and prepare again"
            )

    def derived_metrics(self, split: str, loss: float) -> dict[str, float]:
        """Return the perplexity per token, and for sub-words also per word of the original text."""
        metrics = super().derived_metrics(split, loss)
        if self.spec.metric == "word_perplexity":
            metrics["word_perplexity"] = math.exp(loss * self.tokens_per_word(split))
        return metrics

    def tokens_per_word(self, split: str) -> float:
        """Return the number of predicted tokens per word of the original text."""
        words: Mapping[str, int] = self.store().about["words"]
        return (len(self.split(split).tokens) - 1) / words[split]

    def run_tokens(self, splits: Mapping[str, RaggedRows]) -> int:
        """Return the number of tokens of about 50 bytes, estimated from the beginning of train."""
        ids = np.asarray(splits["train"].tokens[:DECODED], np.int64)
        if self.document_end is not None:
            ids = ids[ids < self.spec.vocabulary - 1]
        text_bytes = len(self.tokeniser.decode(ids).encode())
        return max(2, round(RUN_BYTES * len(ids) / max(1, text_bytes)))

    def describe(self, split: str, index: int) -> str:
        """Return the text of a window."""
        return self.decode(self.example(split, index))

    def encode(self, text: str) -> Integer[np.ndarray, " n"]:
        """Return the ids of a text; raise ValueError for a word that train lacks."""
        return self.tokeniser.encode_text(text)

    def decode(self, ids: Integer[np.ndarray, " n"]) -> str:
        """Return the text of some ids, with the ends of documents."""
        if self.document_end is None:
            return self.tokeniser.decode(ids)
        last = self.spec.vocabulary - 1
        parts = np.split(ids, np.flatnonzero(ids == last) + 1)
        return self.document_end.join(self.tokeniser.decode(part[part < last]) for part in parts)


def piece(ids: Integer[np.ndarray, " n"]) -> RaggedRows:
    """Return a block of tokens whose sequence continues in the next block."""
    return RaggedRows(ids, np.zeros(1, np.int64), np.empty(0, np.uint8))


def end(last: list[int], vocabulary: int) -> RaggedRows:
    """Return a block that ends a sequence, with the tokens `last`."""
    ids = np.array(last, token_type(vocabulary))
    return RaggedRows(ids, np.array([0, len(ids)]), np.zeros(1, np.uint8))
