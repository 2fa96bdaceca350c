"""How fast text becomes tokens: `python tests/benchmarks/tokens.py --json rows.jsonl`.

Reads 100 MB of made-up words, whose frequencies fall with their rank as those of real text do, or
of `--text FILE`, repeated until it is enough. Prints wall seconds and processor seconds (of all
threads): on a shared machine only the second says what the work costs. Writes into a temporary
folder and removes it.
"""

import argparse
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tests.benchmarks.data import Rows, processor_seconds, timed

WORDS = 250_000
LINE = 60
AT_ONCE = 1 << 20


def made_up(size: int) -> Iterator[bytes]:
    """Yield `size` bytes of lines of words, punctuation and blank lines."""
    draw = np.random.default_rng(0)
    syllables = [a + b for a in "bdfgklmnprstvz" for b in ("a", "e", "i", "o", "u", "an", "er")]
    lengths = 1 + draw.poisson(1.3, WORDS)
    words = ["".join(draw.choice(syllables, number)) for number in lengths]
    marks = [",", ".", "the", "of", "=", "<unk>", "é", "1914"]
    words = np.array([*marks, *(w.title() if i % 9 == 0 else w for i, w in enumerate(words))])
    shares = np.cumsum(1 / (np.arange(len(words)) + 2.7))
    while size > 0:
        places = np.searchsorted(shares, draw.random(AT_ONCE) * shares[-1])
        chosen = words[places].tolist()
        lines = (" ".join(chosen[first : first + LINE]) for first in range(0, AT_ONCE, LINE))
        text = "".join(f" {line} \n \n" for line in lines).encode()[:size]
        yield text
        size -= len(text)


def repeated(file: Path, size: int) -> Iterator[bytes]:
    """Yield `size` bytes of a text, again and again."""
    text = file.read_bytes()
    while size > 0:
        yield text[:size]
        size -= len(text)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--text", type=Path, help="a text of your own, UTF-8")
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--subwords", type=int, default=8000)
    parser.add_argument("--json", type=Path, help="append rows, one JSON object a line")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LRA_DATA"] = folder
        file, size = Path(folder) / "text", arguments.megabytes * 1_000_000
        parts = made_up(size) if arguments.text is None else repeated(arguments.text, size)
        with file.open("wb") as written:
            for part in parts:
                # What the end cuts off in the middle of a character is left out.
                written.write(part.decode(errors="ignore").encode())
        rows = run(file, arguments.subwords)
    if arguments.json:
        with arguments.json.open("a") as written:
            written.writelines(json.dumps(row) + "\n" for row in rows)


def run(file: Path, subwords: int) -> Rows:
    """Measure, print, and return what was printed."""
    from tasks.data.lines import LineBlock, blocks
    from tasks.language.subwords import Algorithm, Subwords, learnt
    from tasks.language.words import Unknown, Words, count_words

    rows: Rows = []
    megabytes = file.stat().st_size / 1e6
    print(f"{len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}")

    def text() -> Iterator[LineBlock]:
        with file.open("rb") as opened:
            yield from blocks(opened, str(file))

    with timed(rows, f"{megabytes:.0f} MB, words counted"):
        counts = count_words(text())
    words = Words(size=len({b"<unk>", b"<eos>", *counts}), train="text", unknown=Unknown.refuse)
    words.make(text)
    with timed(rows, f"the same to ids of {words.size:,} words"):
        number = sum(len(words.encode(block)) for block in text())
    print(f"{number:,} words")
    for algorithm in Algorithm:
        with timed(rows, f"{subwords:,} sub-words learnt by {algorithm}"):
            content, _ = learnt(text(), algorithm, subwords)
        print(f"SHA-256 {hashlib.sha256(content).hexdigest()[:16]}")
        path = file.with_name(f"{algorithm}.json")
        path.write_bytes(content)
        given = Subwords(size=subwords, train="text", algorithm=algorithm, given=path)
        own = Subwords(size=subwords, train="text", algorithm=algorithm)
        own._learnt = lambda _, content=content: content  # type: ignore[method-assign]
        own.make(text)
        for name, model in (("learnt here", own), ("given, by the library", given)):
            with timed(rows, f"{megabytes:.0f} MB to sub-words of {algorithm}, {name}"):
                number = sum(len(model.encode(block)) for block in text())
            print(f"{number:,} sub-words")
    print(f"{processor_seconds():,.0f} s of processors in all")
    return rows


if __name__ == "__main__":
    main()
