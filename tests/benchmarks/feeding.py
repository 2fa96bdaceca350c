"""How fast data are made and fed, and text becomes tokens.

    python tests/benchmarks/feeding.py PART --json ROWS

- `trees`: the official ListOps data set, `--trees` of them, made and opened; bytes to ids; batches.
- `pictures`: epochs of 50,000 pictures of 1,024 bytes from a memory-mapped store.
- `pathfinder`: path-checked pictures of every side in one process.
- `stream`: a stream of `--tokens` of two bytes, as many as PG-19 has words (4.1 GB of disk),
  written block by block and read for one epoch in random order; its own memory is looked at
  along the way.
- `tokens`: 100 MB of words whose frequencies fall with their rank as those of real text do, or of
  `--text FILE`, repeated until it is enough, to words and sub-words.

All is written into a temporary folder, and removed.
"""

import hashlib
import os
import statistics
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from lra.tasks.classification.listops.task import ListOps
from lra.tasks.classification.pathfinder.published import draw
from lra.tasks.classification.pathfinder.styles import STYLES
from lra.tasks.classification.pathfinder.task import Pathfinder
from lra.tasks.classification.text import Text, TextSource
from lra.tasks.data.batching import collate
from lra.tasks.data.lines import LineBlock, blocks
from lra.tasks.data.sources import data_root
from lra.tasks.data.storage import Ragged, from_rows, write_store
from lra.tasks.language.base import LanguageTask, Regime
from lra.tasks.language.subwords import Algorithm, Subwords, learnt
from lra.tasks.language.words import Unknown, Words, count_words
from lra.tasks.task import TaskSpec
from tests.benchmarks.frame import Rows, append, command_line, interleaved, say_machine, timed

STEP_S = 0.020
"""A short training step, against which waiting for a batch is put."""
BLOCK = 1 << 24
SHAPES = ((256, 32), (512, 32), (1024, 16), (4096, 8))
"""Tokens of a window, and windows of a batch."""


def trees(options: Namespace) -> Rows:
    """Make the official trees, encode bytes, and feed three tasks."""
    rows: Rows = []
    sizes = {
        "train_examples": options.trees - 4000, "validation_examples": 2000, "test_examples": 2000,
    }  # fmt: skip
    listops = ListOps(**sizes)
    with timed(rows, f"{options.trees:,} official trees, encoded"):
        listops.prepare()
    with timed(rows, "opening the prepared task"):
        ListOps(**sizes).prepare()
    quick = ListOps(min_length=50, max_length=150, max_depth=4, train_examples=36_000)
    with timed(rows, "quickstart trees (40,000; 50 < length < 150)"):
        quick.prepare()

    text = np.random.PCG64(0).random_raw(8_000_000).view(np.uint8)
    offsets = np.arange(0, len(text), 2000)
    split = from_rows([text[i : i + 2000] for i in offsets], np.zeros(len(offsets), np.uint8))
    batches = np.arange(len(offsets)).reshape(-1, 32)

    def encode() -> None:
        for batch in batches:
            collate(split, batch, max_length=2000, shift=1)

    rate = len(text) / statistics.median(interleaved({"encode": encode}, 9)["encode"])
    print(f"byte tokenisation, 32 x 2,000 bytes to ids: {rate / 1e6:,.0f} MB/s")
    rows.append({"what": "byte tokenisation, 32 x 2,000", "bytes_per_second": rate})
    sample = Text(source=TextSource.sample)
    sample.prepare()
    for name, task in {
        "listops quickstart": quick, "listops official": listops, "text sample": sample,
    }.items():  # fmt: skip
        waits, fed = [], task.batches("train", batch_size=32, seed=1)
        for _ in range(200):
            began = time.perf_counter()
            if next(fed, None) is None:
                break
            waits.append(time.perf_counter() - began)
        first, *others = waits
        wait = statistics.median(others)
        print(
            f"{name}, batch 32: {1 / wait:8,.0f} batches/s, {wait / STEP_S:.2%} of a "
            f"{STEP_S * 1e3:.0f} ms step; first batch after {first * 1e3:.0f} ms"
        )
        rows.append({"what": f"{name}, batch 32", "first_batch_s": first, "batch_s": others})
    return rows


def memory_without_files() -> int:
    """Return the resident bytes that no file backs."""
    status = Path("/proc/self/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) * 1024


def pictures(_: Namespace) -> Rows:
    """Feed epochs of stored noise."""
    sizes = {"train_examples": 50_000, "validation_examples": 1000, "test_examples": 1000}
    task = Pathfinder(**sizes)

    def noise(number: int) -> Ragged:
        pixels = np.random.PCG64(number).random_raw(number * 128).view(np.uint8)
        offsets = np.arange(number + 1, dtype=np.int64) * 1024
        return Ragged(pixels, offsets, np.zeros(number, np.uint8))

    splits = {name.split("_")[0]: noise(number) for name, number in sizes.items()}
    write_store(task.folder, splits, {"data_hash": task.spec.data_hash})
    began = time.perf_counter()
    task.prepare()
    opened = time.perf_counter() - began
    rates, memory = [], []
    for seed in range(6):
        began = time.perf_counter()
        number = sum(len(b.tokens) for b in task.batches("train", batch_size=32, seed=seed))
        rates.append(number / (time.perf_counter() - began))
        memory.append(memory_without_files())
    what = "32 x 1,024 from a memory-mapped store"
    print(
        f"{what}: {statistics.median(rates):,.0f} sequences/s; opened in {opened * 1e3:.0f} ms; "
        f"{(memory[-1] - memory[0]) / 2**20:+.1f} MiB of memory over 5 epochs"
    )
    return [
        {
            "what": what, "sequences_per_second": rates, "open_s": opened,
            "own_memory_bytes": memory,
        }
    ]  # fmt: skip


def pathfinder(_: Namespace) -> Rows:
    """Draw pictures of every side."""
    rows = []
    for side, pen in STYLES.items():
        number = 500 if side == 32 else 100
        draw(pen, 1, 0)
        began = time.process_time()
        for index in range(number):
            draw(pen, 0, index)
        each = (time.process_time() - began) / number
        what = f"Pathfinder, side {side}, published"
        print(f"{what}: {each * 1e3:.1f} ms a picture of one core")
        rows.append({"what": what, "processor_s": each})
    return rows


class Stream(LanguageTask):
    """Random tokens."""

    tokens = 0

    @property
    def spec(self) -> TaskSpec:
        """Return facts that depend on no data."""
        return self.stream_spec(
            name="stream", version=1, vocabulary=32_768, metric="perplexity", source="random",
            data_hash="none",
        )  # fmt: skip

    @property
    def folder(self) -> Path:
        """Return where the stream lies."""
        return data_root() / "stream"

    def make(self) -> None:
        """Write it, block by block."""

        def parts(number: int) -> Iterator[Ragged]:
            generator = np.random.default_rng(0)
            for first in range(0, number, BLOCK):
                part = generator.integers(0, 32_768, min(BLOCK, number - first), dtype=np.uint16)
                yield Ragged(part, np.array([0, len(part)]), np.zeros(1, np.uint8))

        sizes = {"train": self.tokens, "validation": 10_000, "test": 10_000}
        self.write({split: parts(number) for split, number in sizes.items()})


def stream(options: Namespace) -> Rows:
    """Read an epoch of each shape."""
    rows: Rows = []
    Stream.tokens = options.tokens
    for length, windows in SHAPES:
        task = Stream()
        task.read_as(
            length=length, regime=Regime.non_overlapping, stride=None, memory=0, contiguous=False
        )
        task.prepare()
        task.split("train")
        seen, memory = 0, []
        began = time.perf_counter()
        for number, batch in enumerate(task.batches("train", batch_size=windows, seed=1)):
            seen += batch.target.numel()
            if number % 20_000 == 0:
                memory.append(memory_without_files())
        spent = time.perf_counter() - began
        memory.append(memory_without_files())
        growth = (memory[-1] - memory[min(1, len(memory) - 1)]) / 2**20
        print(
            f"{windows} windows of {length:,}: {seen / spent / 1e6:.0f} M tokens/s over an epoch "
            f"of {seen:,} tokens; {growth:+.1f} MiB of own memory from batch 20,000 to its end",
            flush=True,
        )
        rows.append(
            {
                "what": f"{windows} windows of {length} from a stream of {options.tokens} tokens",
                "tokens_per_s": seen / spent, "tokens": seen, "own_memory_bytes": memory,
            }
        )  # fmt: skip
    return rows


def words_by_rank(size: int) -> Iterator[bytes]:
    """Yield `size` bytes of lines of words, punctuation and blank lines."""
    generator = np.random.default_rng(0)
    syllables = [a + b for a in "bdfgklmnprstvz" for b in ("a", "e", "i", "o", "u", "an", "er")]
    lengths = 1 + generator.poisson(1.3, 250_000)
    words = ["".join(generator.choice(syllables, number)) for number in lengths]
    marks = [",", ".", "the", "of", "=", "<unk>", "é", "1914"]
    words = np.array([*marks, *(w.title() if i % 9 == 0 else w for i, w in enumerate(words))])
    shares = np.cumsum(1 / (np.arange(len(words)) + 2.7))
    while size > 0:
        places = np.searchsorted(shares, generator.random(1 << 20) * shares[-1])
        chosen = words[places].tolist()
        lines = (" ".join(chosen[first : first + 60]) for first in range(0, len(chosen), 60))
        text = "".join(f" {line} \n \n" for line in lines).encode()[:size]
        yield text
        size -= len(text)


def repeated(file: Path, size: int) -> Iterator[bytes]:
    """Yield `size` bytes of a text, again and again."""
    text = file.read_bytes()
    while size > 0:
        yield text[:size]
        size -= len(text)


def tokens(options: Namespace) -> Rows:
    """Count words and learn sub-words of a text, and apply both."""
    file, size = data_root() / "text", options.megabytes * 1_000_000
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("wb") as written:
        for part in words_by_rank(size) if options.text is None else repeated(options.text, size):
            # What the end cuts off in the middle of a character is left out.
            written.write(part.decode(errors="ignore").encode())

    def text() -> Iterator[LineBlock]:
        with file.open("rb") as opened:
            yield from blocks(opened, str(file))

    rows: Rows = []
    with timed(rows, f"{options.megabytes} MB, words counted"):
        counts = count_words(text())
    words = Words(size=len({b"<unk>", b"<eos>", *counts}), train="text", unknown=Unknown.refuse)
    words.make(text)
    with timed(rows, f"the same to ids of {words.size:,} words"):
        print(f"{sum(len(words.encode(block)) for block in text()):,} words")
    for algorithm in Algorithm:
        with timed(rows, f"{options.subwords:,} sub-words learnt by {algorithm}"):
            content, _ = learnt(text(), algorithm, options.subwords)
        print(f"SHA-256 {hashlib.sha256(content).hexdigest()[:16]}")
        path = file.with_name(f"{algorithm}.json")
        path.write_bytes(content)
        facts = {"size": options.subwords, "train": "text", "algorithm": algorithm}
        given, own = Subwords(**facts, given=path), Subwords(**facts)
        own._learnt = lambda _, content=content: content  # type: ignore[method-assign]
        own.make(text)
        for name, model in (("learnt here", own), ("given, by the library", given)):
            with timed(rows, f"{options.megabytes} MB to sub-words of {algorithm}, {name}"):
                print(f"{sum(len(model.encode(block)) for block in text()):,} sub-words")
    return rows


PARTS: dict[str, Callable[[Namespace], Rows]] = {
    each.__name__: each for each in (trees, pictures, pathfinder, stream, tokens)
}


def main() -> None:
    """Measure one part."""
    parser = command_line(__doc__, [*PARTS])
    parser.add_argument("--trees", type=int, default=100_000)
    parser.add_argument("--tokens", type=int, default=2_000_000_000)
    parser.add_argument("--text", type=Path, help="a text of your own, UTF-8")
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--subwords", type=int, default=8000)
    options = parser.parse_args()
    say_machine()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LRA_DATA"] = folder
        append(options.json, PARTS[options.part](options))


if __name__ == "__main__":
    main()
