"""Your text: a model predicts the next byte, character, word or sub-word of your files.

    lra run task=corpus task.train=notes task.name=my_notes task.units=subwords

    … ' th', 'ey', ' meet', '.', '⏎', end of the document | ' Shop', 'ping', ':', …

`train` is a text file, a folder of such files, or a pattern. Texts are UTF-8 and may be compressed
(`.gz`, `.xz`, `.bz2`). Files of a folder or a pattern are documents, in the order of their names,
and a special token ends each. Hidden files are skipped. Without a validation or test text, the end
of train becomes these splits: its last `test_fraction` of bytes is the test split, and the part
before it is validation. A split never begins inside a character; it may begin inside a document.

    units        ids                                                                    metric
    bytes        256
    characters   those that occur `least_count` times in train, <unk>       bits_per_character
    words        the same for words between blanks, <eos> at line ends              perplexity
    subwords     a byte-level BPE learnt from train, or a tokenizer.json's          perplexity

Every row has `bits_per_byte`, which you can compare for different units: loss / ln 2, times tokens
per byte of the text (Gao et al. 2020, arXiv:2101.00027). For a token read as `<unk>`, it adds the
bits of its bytes according to the frequencies of bytes in train. With words, additional blanks do
not count as bytes. The task refuses a tokenizer.json that does not reproduce every line.

Rows name the text with a hash of its content. You choose its name (`task.name`), except the name of
another task.
"""

import math
from collections.abc import Iterator
from enum import StrEnum, auto
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import numpy as np
from jaxtyping import Float, Int

from lra.conf.short_values import short_repr
from lra.tasks.data.lines import LineBlock
from lra.tasks.data.published_data import named_path
from lra.tasks.data.sources import data_root
from lra.tasks.data.storage import RaggedRows
from lra.tasks.data.stored_task import identity_of
from lra.tasks.errors import BadData
from lra.tasks.language import corpus_files as files
from lra.tasks.language.alphabets import Bytes, CharacterSet
from lra.tasks.language.base import Regime
from lra.tasks.language.subwords import Algorithm, Subwords
from lra.tasks.language.tokenised_task import TokenisedTask, end, piece
from lra.tasks.language.words import Unknown, Words, token_type
from lra.tasks.task import TaskSpec

VERSION = 1
SUBWORDS = 8000
LEAST_COUNT = 2


class CorpusUnits(StrEnum):
    """The kind of tokens."""

    bytes = auto()
    characters = auto()
    words = auto()
    subwords = auto()


class Corpus(TokenisedTask):
    """Next-token prediction on your text.

    Args:
        train: Your text: a file, a folder or a pattern such as 'notes/*.txt'.
        validation: Text to validate on; null: `validation_fraction` of train.
        test: Text to test on; null: `test_fraction` of train.
        validation_fraction: Share of the bytes of train that becomes the validation split.
        test_fraction: Share of the bytes of train that becomes the test split.
        units: bytes, characters, words or subwords.
        least_count: Words or characters that occur less often in train are read as `<unk>`.
        subword_vocabulary: Number of sub-words; null: that of `tokenizer`, or else 8,000.
        tokenizer: A tokenizer.json to use; null: learn sub-words from train.
    """

    incidental: ClassVar[frozenset[str]] = frozenset({"train", "validation", "test", "tokenizer"})
    """Options that are no part of a result's identity; the content of the files is."""
    counted_as = "bytes"

    def __init__(
        self,
        *,
        train: str | None = None,
        validation: str | None = None,
        test: str | None = None,
        validation_fraction: float = 0.1,
        test_fraction: float = 0.1,
        units: CorpusUnits = CorpusUnits.bytes,
        least_count: int = LEAST_COUNT,
        subword_vocabulary: int | None = None,
        tokenizer: str | None = None,
        length: int = 512,
        evaluation_length: int | None = None,
        regime: Regime = Regime.non_overlapping,
        stride: int | None = None,
        memory: int = 0,
        contiguous: bool = False,
        within_documents: bool = False,
    ) -> None:
        if train is None:
            raise ValueError(f"task.train must name your text: got null; {files.WANTED}")
        given = {"train": train, "validation": validation, "test": test}
        self.paths = {split: named_path(path) for split, path in given.items() if path is not None}
        shares = {"validation": validation_fraction, "test": test_fraction}
        for name, share in shares.items():
            if not 0 < share < 0.5:
                raise ValueError(f"task.{name}_fraction must lie in (0, 0.5): got {share}")
        self.shares = {name: share for name, share in shares.items() if name not in self.paths}
        self.units, self.least_count = units, least_count
        if least_count < 1:
            raise ValueError(f"task.least_count must be at least 1: got {least_count}")
        if least_count != LEAST_COUNT and units in (CorpusUnits.bytes, CorpusUnits.subwords):
            raise ValueError(
                f"task.least_count={least_count} needs task.units=characters or words: got "
                f"units={units}, all of which have ids"
            )
        for name, value in (("subword_vocabulary", subword_vocabulary), ("tokenizer", tokenizer)):
            if value is not None and units is not CorpusUnits.subwords:
                raise ValueError(
                    f"task.{name}={short_repr(value)} needs task.units=subwords: got units={units}"
                )
        self.given = named_path(tokenizer) if tokenizer is not None else None
        self.wanted = subword_vocabulary
        if self.wanted is None and self.given is None:
            self.wanted = SUBWORDS
        self.read_as(
            length=length,
            evaluation_length=evaluation_length,
            regime=regime,
            stride=stride,
            memory=memory,
            contiguous=contiguous,
            within_documents=within_documents,
        )
        # `encoded` fills both before the manifest is written.
        self._spelled_bits: dict[str, float] = {}
        self._remarks: dict[str, str] = {}

    @cached_property
    def spec(self) -> TaskSpec:
        """The facts about this task; the data hash is a hash of the text."""
        text_hash = self.content_hash(lambda: identity_of(self._text_facts))[:8]
        return self.stream_spec(
            name="corpus",
            version=VERSION,
            vocabulary=self.tokeniser.size + self.has_documents,
            metric="bits_per_byte",
            source=f"user's corpus: {self.paths['train'].name} {text_hash}",
            data_hash=self.content_hash(self._identity),
            tokenizer=self.tokenizer_text,
        )

    @property
    def tokenizer_text(self) -> str:
        """The units, as rows and tables print them, with the hash of the tokeniser."""
        return "bytes" if self.units is CorpusUnits.bytes else super().tokenizer_text

    @cached_property
    def has_documents(self) -> bool:
        """Whether files are documents; the last id then ends a document."""
        return not all(map(files.is_one_file, self.paths.values()))

    @property
    def document_end(self) -> str | None:
        """Text for the last id if it ends a document, else None."""
        return "\n<end of document>\n" if self.has_documents else None

    @cached_property
    def tokeniser(self) -> Bytes | CharacterSet | Words | Subwords:
        """The tokeniser; words and characters of train are counted now, because `spec` needs this.

        Raises:
            NotPrepared, BadData: The ids depend on the text, and it is missing or no text.
        """
        if self.units is CorpusUnits.bytes:
            return Bytes()
        train = {"content": self._content["train"], "held_out": self.shares}
        if self.units is CorpusUnits.subwords:
            return Subwords(
                size=self.wanted, train=train, algorithm=Algorithm.bpe, given=self.given
            )
        tokeniser = (
            Words(size=None, train=train, unknown=Unknown.unk, least=self.least_count)
            if self.units is CorpusUnits.words
            else CharacterSet(train=train, least=self.least_count)
        )
        tokeniser.learn(lambda: self.text("train"))
        return tokeniser

    @cached_property
    def _files(self) -> dict[str, list[Path]]:
        """Files of every split that has some."""
        return {split: files.find_files(split, path) for split, path in self.paths.items()}

    @cached_property
    def _content(self) -> dict[str, str]:
        """Hash of the text of every split that has files."""
        return files.identities(self.paths, self._files)

    @property
    def _text_facts(self) -> dict[str, object]:
        """What decides the text of each split, whatever its units."""
        return {"content": self._content, "held_out": self.shares}

    def _identity(self) -> str:
        """Return the hash of everything that decides the prepared data."""
        return identity_of(
            {
                "version": VERSION,
                "documents": self.has_documents,
                "units": self.units.value,
                "tokenizer": self.tokeniser.recipe,
                **self._text_facts,
            }
        )

    @property
    def folder(self) -> Path:
        """Folder of the prepared data; every name, length and regime uses the same one."""
        return data_root() / f"corpus-{self.spec.data_hash}"

    def copies_allowed(self, first: str, second: str) -> float:
        """Return 1: your splits may have any number of windows in common."""
        del first, second
        return 1.0

    def make(self) -> None:
        """Read the text, encode it, and store the ids."""
        self.write_encoded(
            units=self.units.value,
            licence="yours",
            spelled_bits=self._spelled_bits,
            remarks=self._remarks,
        )

    @cached_property
    def _spans(self) -> dict[str, tuple[int, int]]:
        """First and last byte in the text of train of each split that is a part of it."""
        total = last = files.size(self._files["train"])
        spans = {}
        for split in ("test", "validation"):
            if split in self.shares:
                first = last - round(self.shares[split] * total)
                spans[split], last = (first, last), first
        return spans | {"train": (0, last)}

    def blocks(self, split: str) -> Iterator[LineBlock | None]:
        """Yield the text of `split` in blocks, and None at the end of each file."""
        if split in self.paths and not (split == "train" and self.shares):
            return files.read_lines(self._files[split])
        return files.part(files.read_lines(self._files["train"]), *self._spans[split])

    def text(self, split: str) -> Iterator[LineBlock]:
        """Yield the text of `split` in blocks."""
        return (block for block in self.blocks(split) if block is not None)

    def encoded(self, split: str, counted: dict[str, int]) -> Iterator[RaggedRows]:
        """Yield the ids of `split`, and store the number of its bytes in `counted`."""
        vocabulary, tokeniser = self.spec.vocabulary, self.tokeniser
        tokens, text_bytes, ended = 0, 0, True
        letters = np.zeros(256, np.int64)  # how often each byte occurs in unknown units
        for block in self.blocks(split):
            ended = block is None
            if block is None:
                tokens += self.has_documents
                yield end([vocabulary - 1] if self.has_documents else [], vocabulary)
                continue
            self._check_reproduced(block)
            ids = tokeniser.encode(block).astype(token_type(vocabulary))
            text_bytes += len(block.text)
            if isinstance(tokeniser, Words | CharacterSet):
                spelled = tokeniser.unknown_letters(block.text)
                letters += np.bincount(np.frombuffer(spelled, np.uint8), minlength=256)
                if self.units is CorpusUnits.words:
                    text_bytes -= _count_lost_blanks(block.text)
            tokens += len(ids)
            yield piece(ids)
        if not ended:
            yield end([], vocabulary)
        if tokens < 2 or not text_bytes:
            raise BadData(
                f"{self.spec.source}: the {split} split has {tokens} tokens of {text_bytes} bytes; "
                f"wanted at least 2 tokens; use a longer text, or "
                f"{f'a larger task.{split}_fraction' if split in self.shares else 'other files'}"
            )
        counted[split] = text_bytes
        self._spelled_bits[split] = 0.0
        if letters.any():
            self._spelled_bits[split] = math.fsum(letters * self._byte_bits)
            self._remarks[split] = (
                f"{letters.sum():,} of {text_bytes:,} bytes of {split} belong to {self.units} that "
                f"occur less than {self.least_count} times in train and are read as <unk>; bits "
                "per byte include these bytes by their frequency, other metrics ignore them"
            )

    @cached_property
    def _byte_bits(self) -> Float[np.ndarray, " 256"]:
        """Bits of each byte value by its frequency in train, each count plus 1."""
        counts = np.ones(256)
        for block in self.text("train"):
            counts += np.bincount(np.frombuffer(block.text, np.uint8), minlength=256)
        bits: Float[np.ndarray, " 256"] = -np.log2(counts / counts.sum())
        return bits

    def _check_reproduced(self, block: LineBlock) -> None:
        """Raise `BadData` if the user's tokenizer.json does not reproduce a line of the block."""
        if not isinstance(self.tokeniser, Subwords):
            return
        if (altered := self.tokeniser.altered_line(block)) is not None:
            number, line, answer = altered
            raise BadData(
                f"task.tokenizer={self.given} decodes {short_repr(line)} to "
                f"{short_repr(answer)} ({block.where}, line {number}), and scores would ignore "
                "the difference; set task.tokenizer to a byte-level tokenizer.json, or remove this "
                "option to learn a tokeniser"
            )

    def derived_metrics(self, split: str, loss: float) -> dict[str, float]:
        """Return bits per byte, and the metric of the unit, for `loss` in nats per token."""
        bits, about = loss / math.log(2), self.store().about
        # The first token, which is not predicted, counts with the mean loss.
        total_bits = bits * len(self.split(split).tokens) + about["spelled_bits"][split]
        metrics = {"bits_per_byte": total_bits / about["bytes"][split]}
        if self.units is CorpusUnits.characters:
            metrics["bits_per_character"] = bits
        elif self.units is not CorpusUnits.bytes:
            metrics["perplexity"] = math.exp(loss)
        return metrics

    def document_starts(self, split: str) -> Int[np.ndarray, " d"] | None:
        """Return the position of each document's first token; None if the text is one file."""
        starts: Int[np.ndarray, " d"] = self.split(split).offsets[:-1]
        return starts if self.has_documents else None


def _count_lost_blanks(text: bytes) -> int:
    """Return the number of blanks that words do not reproduce: all but one between two words."""
    return len(text) - len(b"\n".join(b" ".join(line.split()) for line in text.split(b"\n")))
