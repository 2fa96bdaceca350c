"""WikiText-103 and WikiText-2 (Merity et al. 2016, arXiv:1609.07843): the next word of Wikipedia.

     = Robert Boulter = ⏎   ->   = Robert Boulter = <eos>        units=words, closed vocabulary
                                 ' =' ' Robert' ' B' 'oul' …     units=subwords, any text

`units=words` is the published task: words between blanks, `<eos>` at the end of each line, and a
vocabulary of 267,735 or 33,278 words. The metric is perplexity per word. `units=subwords` reads the
same text, or the raw one, in sub-words of any model. Its metric `word_perplexity` is exp(summed
nats / words) with the words of the published task, so you can compare different sub-words. In
form=tokens, rare words are replaced by `<unk>`, which makes the text easier than form=raw; rows
name the form.

The task compares the number of words of every split with the published one unless `partial` is set.
`source=sample` is generated text for trials; its results say `sample`.
"""

from collections.abc import Iterator
from enum import StrEnum, auto
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Int, Integer

from lra.tasks.data.lines import LineBlock
from lra.tasks.data.published_data import check_partial, given_path, named_path, source_name
from lra.tasks.data.sources import data_root, folder_identity
from lra.tasks.data.storage import RaggedRows
from lra.tasks.data.stored_task import GENERATED, identity_of
from lra.tasks.errors import BadData, NotPrepared
from lra.tasks.language import wikitext_files as files
from lra.tasks.language.base import Regime
from lra.tasks.language.subwords import Algorithm, Subwords
from lra.tasks.language.tokenised_task import TokenisedTask, end, piece
from lra.tasks.language.wikitext_files import WikiTextCorpus, WikiTextForm
from lra.tasks.language.words import Unknown, Words, count_words, split_words, vocabulary_file
from lra.tasks.task import SPLITS, TaskSpec

VERSION = 1
SUBWORDS = 8000
SAMPLE_SUBWORDS = 400


class WikiTextSource(StrEnum):
    """Where the text comes from."""

    files = auto()
    datasets = auto()
    sample = auto()


class Units(StrEnum):
    """The kind of tokens."""

    words = auto()
    subwords = auto()


class WikiText(TokenisedTask):
    """Predict the next word or sub-word of Wikipedia articles.

    Args:
        corpus: wikitext103 or wikitext2.
        source: files, datasets or sample.
        path: With source=files, the public zip, a folder with it, or a folder with the files
            wiki.{train,valid,test}.tokens (plain, .gz, .xz or .bz2); with source=datasets, a folder
            of parquet files. Null: the public data.
        form: tokens, or raw (only with sub-words).
        partial: Whether the files are only a part of the text.
        units: words or subwords.
        vocabulary_size: Number of words, including `<unk>` and `<eos>`; null: the published number.
        unknown: Treatment of a word that train lacks: refuse (an error), or unk (read as `<unk>`).
        subword_vocabulary: Number of sub-words; null: that of `tokenizer`, or else 8,000 (sample:
            400).
        subword_model: bpe or unigram.
        tokenizer: A tokenizer.json to use; null: learn sub-words from train.
        within_documents: Whether tokens attend only to their own article.
    """

    incidental: ClassVar[frozenset[str]] = frozenset({"path", "tokenizer"})
    """Options that are no part of a result's identity; the content of the files is."""

    def __init__(
        self,
        *,
        corpus: WikiTextCorpus = WikiTextCorpus.wikitext103,
        source: WikiTextSource = WikiTextSource.files,
        path: str | None = None,
        form: WikiTextForm = WikiTextForm.tokens,
        partial: bool = False,
        units: Units = Units.words,
        vocabulary_size: int | None = None,
        unknown: Unknown = Unknown.refuse,
        subword_vocabulary: int | None = None,
        subword_model: Algorithm = Algorithm.bpe,
        tokenizer: str | None = None,
        length: int = 512,
        evaluation_length: int | None = None,
        regime: Regime = Regime.non_overlapping,
        stride: int | None = None,
        memory: int = 0,
        contiguous: bool = False,
        within_documents: bool = False,
    ) -> None:
        self.corpus, self.source, self.form = corpus, source, form
        self.units, self.unknown = units, unknown
        self.algorithm = subword_model
        self.path = given_path(path, source)
        if self.units is Units.words:
            given = {"subword_vocabulary": subword_vocabulary, "tokenizer": tokenizer}
            for name, value in given.items():
                if value is not None:
                    raise ValueError(
                        f"task.{name}={value} needs task.units=subwords: got units=words"
                    )
            if self.form is WikiTextForm.raw:
                raise ValueError(
                    "task.units=words needs task.form=tokens, which has a closed vocabulary: got "
                    "form=raw; set task.units=subwords, or remove task.form"
                )
        elif vocabulary_size is not None or self.unknown is not Unknown.refuse:
            raise ValueError(
                "task.vocabulary_size and task.unknown need task.units=words: got units=subwords "
                f"with vocabulary_size={vocabulary_size}, unknown={self.unknown}"
            )
        if within_documents and self.units is Units.subwords:
            raise ValueError(
                "task.within_documents=true needs task.units=words, which shows where articles "
                "begin: got units=subwords; set task.units=words, or task.within_documents=false"
            )
        self.facts = files.CORPORA[self.corpus]
        self.given = named_path(tokenizer) if tokenizer is not None else None
        self.partial = partial
        check_partial(partial, self.source is not WikiTextSource.sample)
        self.vocabulary_size, self.subword_vocabulary = vocabulary_size, subword_vocabulary
        self.read_as(
            length=length,
            evaluation_length=evaluation_length,
            regime=regime,
            stride=stride,
            memory=memory,
            contiguous=contiguous,
            within_documents=within_documents,
        )

    @cached_property
    def spec(self) -> TaskSpec:
        """The facts about this task; with a `path`, the data hash is a hash of its files."""
        words = self.units is Units.words
        return self.stream_spec(
            name=str(self.corpus),
            version=VERSION,
            vocabulary=self.tokeniser.size,
            metric="perplexity" if words else "word_perplexity",
            source=self._source_name(),
            data_hash=self.content_hash(self._identity),
            tokenizer=self.tokenizer_text,
        )

    def _source_name(self) -> str:
        """Return the source as rows print it, with the form if it is raw."""
        form = ", raw" if self.form is WikiTextForm.raw else ""
        return source_name(self.source, self.path, partial=self.partial, form=form)

    @cached_property
    def tokeniser(self) -> Words | Subwords:
        """The tokeniser for words or sub-words; needs only the hash of the data."""
        train = self._content["train"]
        sample = self.source is WikiTextSource.sample
        if self.units is Units.words:
            words = self.vocabulary_size or self.facts.vocabulary
            if sample and self.vocabulary_size is None:
                counts = count_words(files.read_sample("train"))
                words = vocabulary_file(counts).count(b"\n")
            return Words(size=words, train=train, unknown=self.unknown)
        size = self.subword_vocabulary
        if size is None and self.given is None:
            size = SAMPLE_SUBWORDS if sample else SUBWORDS
        return Subwords(size=size, train=train, algorithm=self.algorithm, given=self.given)

    def _identity(self) -> str:
        """Return the hash of everything that decides the prepared data."""
        return identity_of(
            {
                "version": VERSION,
                "corpus": self.corpus.value,
                "source": self.source.value,
                "form": self.form.value,
                "partial": self.partial,
                "content": self._content,
                "units": self.units.value,
                "unknown": self.unknown.value,
                "vocabulary": self.tokeniser.size,
                "tokenizer": self.tokeniser.recipe,
            }
        )

    @cached_property
    def _content(self) -> dict[str, str]:
        """Hash of the text of every split."""
        if self.source is WikiTextSource.sample:
            return dict.fromkeys(SPLITS, f"sample {VERSION}")
        if self.source is WikiTextSource.datasets:
            config = files.hub_config(self.corpus, self.form)
            content = f"{files.HUB_NAME}@{files.HUB_REVISION}/{config}"
            if self.path is not None:
                if not self.path.is_dir():
                    raise NotPrepared(
                        f"task.path={self.path} is missing; download the parquet files of "
                        f"{content} (train, validation, test; column text) into this folder; "
                        f"{files.LICENCE}"
                    )
                content = folder_identity(self.path)
            return dict.fromkeys(SPLITS, content)
        if self.path is None:
            return dict.fromkeys(SPLITS, self.facts.sha256[self.form])
        return files.identities(self._sources)

    @cached_property
    def _sources(self) -> dict[str, files.TextFile]:
        """The file of each split, for source=files."""
        return files.find_splits(self.path, self.corpus, self.form)

    @cached_property
    def _hub(self) -> Any:
        """The loaded data set, for source=datasets."""
        return files.load_hub(self.path, self.corpus, self.form)

    @property
    def folder(self) -> Path:
        """Folder of the prepared data; every length and regime uses the same one."""
        return data_root() / f"{self.corpus}-{self.source}-{self.spec.data_hash}"

    def text(self, split: str) -> Iterator[LineBlock]:
        """Yield the text of `split` in blocks."""
        if self.source is WikiTextSource.sample:
            return files.read_sample(split)
        if self.source is WikiTextSource.datasets:
            return files.read_hub(self._hub[split], f"{self.spec.source}, {split}")
        return files.read_split(self._sources[split])

    def make(self) -> None:
        """Read the text, encode it, and store the ids."""
        sample = self.source is WikiTextSource.sample
        self.write_encoded(
            units=self.units.value,
            form=self.form.value,
            licence=GENERATED if sample else files.LICENCE,
        )

    def encoded(self, split: str, counted: dict[str, int]) -> Iterator[RaggedRows]:
        """Yield the ids of `split`, and store the number of its words in `counted`."""
        words = 0
        for block in self.text(split):
            ids = self.tokeniser.encode(block)
            words += len(ids) if self.units is Units.words else len(split_words(block.text))
            yield piece(ids)
        self._check(split, words)
        counted[split] = words
        yield end([], self.spec.vocabulary)

    def document_starts(self, split: str) -> Int[np.ndarray, " d"] | None:
        """Return the position of each article's first token; None for sub-words.

        An article begins with a line ` = Title = ` after an empty line; section titles have `= =`.
        """
        if self.units is not Units.words:
            return None
        try:
            sign, line_end = self.tokeniser.encode_text("=\n").tolist()
        except ValueError:  # a part of the corpus without headings
            return None
        return article_starts(self.split(split).tokens, sign, line_end)

    def _check(self, split: str, words: int) -> None:
        """Raise `BadData` if a split that should be complete has another number of words."""
        if self.partial or self.source is WikiTextSource.sample:
            return
        wanted = self.facts.words[split]
        if abs(words - wanted) > (self.facts.unverified if split == "train" else 0):
            raise BadData(
                f"{self.spec.source}: the {split} split has {words:,} words (including <eos>); "
                f"wanted {wanted:,}; fetch the file again, or, to use a part of it, set "
                "task.partial=true"
            )


def article_starts(
    tokens: Integer[np.ndarray, " t"], sign: int, line_end: int
) -> Int[np.ndarray, " d"]:
    """Return the position of each article's first token; an article begins with ` = Title = `.

    The first article begins at 0, and each other one at such a title after an empty line.

    Args:
        tokens: Ids of whole lines.
        sign: The id of `=`.
        line_end: The id of `<eos>`.
    """
    ends = np.flatnonzero(tokens == line_end)
    starts = np.concatenate(([0], ends + 1))[:-1]
    has_title = ends - starts >= 3  # a title has a word between two signs
    starts, ends = starts[has_title], ends[has_title]
    titles = (tokens[starts] == sign) & (tokens[starts + 1] != sign)
    titles &= (tokens[ends - 1] == sign) & (tokens[ends - 2] != sign)
    # The line before is empty if two line ends precede this line.
    after_empty = (starts < 2) | (tokens[np.maximum(starts - 2, 0)] == line_end)
    first_tokens = starts[titles & after_empty]
    # Tokens before the first title belong to the first article.
    return np.concatenate(([0], first_tokens[1:] if len(first_tokens) else first_tokens)).astype(
        np.int64
    )
