import hashlib
import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from lra.tasks.data.lines import LineBlock, text_blocks
from lra.tasks.errors import BadData, NotPrepared
from lra.tasks.language import subwords
from lra.tasks.language.characters import sample_text
from lra.tasks.language.subwords import PIECE, Algorithm, Subwords, byte_letters, learnt

TEXT = b"".join(line + b" .\n" for line in sample_text(60_000)[:20_000].split(b" no"))
ODD = (
    "  two  blanks,\ttabs\t \n\n\r\n l'été 1914–18: 3.5 % <unk> <|endoftext|> “Ὅμηρος” 漢字 "
    "e\u0301 \u00a0\u2003x \x00\x0b\x0c _a_b `~ \U0001f600!?\n"
)
ROOT = Path(__file__).resolve().parents[3]


def made(algorithm=Algorithm.bpe, size=300, text=TEXT, **options):
    model = Subwords(size=size, train="hash", algorithm=algorithm, **options)
    model.learn(lambda: text_blocks(text, "train"))
    return model


def ids(model, text):
    return np.concatenate([model.encode(block) for block in text_blocks(text, "x")])


def strange_texts():
    draw = random.Random(0)
    letters = sorted(set(ODD) | set("abc ABC 012 .,;\n"))
    return ["".join(draw.choices(letters, k=200)).encode() for _ in range(200)]


@pytest.mark.parametrize("algorithm", list(Algorithm))
def test_the_text_comes_back_and_is_read_as_the_library_reads_it(algorithm):
    model = made(algorithm)
    library = made(algorithm, given=model._origin)
    for text in [TEXT, ODD.encode(), *strange_texts()]:
        found = ids(model, text)
        assert model.decode(found).encode() == text
        assert found.tolist() == ids(library, text).tolist()
        assert found.max() < 300
        assert found.dtype == np.uint16


def test_a_text_is_the_same_in_blocks_of_lines():
    model, fresh = made(), made()
    apart = [fresh.encode(LineBlock(line + b"\n", "x", 1)) for line in TEXT.split(b"\n")[:-1]]
    assert np.concatenate(apart).tolist() == ids(model, TEXT).tolist()


def test_forgetting_pieces_changes_nothing(monkeypatch):
    model = made()
    before = ids(model, TEXT).tolist()
    monkeypatch.setattr(subwords, "REMEMBERED", 5)
    assert ids(model, TEXT).tolist() == before == ids(model, TEXT).tolist()


def test_learning_from_pieces_equals_learning_by_the_library():
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

    alphabet = pre_tokenizers.ByteLevel.alphabet()
    assert set(byte_letters().values()) == set(alphabet)
    plain = Tokenizer(models.BPE())
    plain.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECE), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=sorted(alphabet), show_progress=False
    )
    text = TEXT + ODD.encode() * 3
    plain.train_from_iterator(text.decode().splitlines(keepends=True), trainer)
    model = made(size=400, text=text)
    assert model._tokenizer.get_vocab() == plain.get_vocab()


def test_learning_gives_the_same_in_another_process_with_other_threads():
    code = (
        "import hashlib, sys; from lra.tasks.data.lines import text_blocks; "
        "from lra.tasks.language.subwords import *\n"
        "text = sys.stdin.buffer.read()\n"
        "made = (learnt(text_blocks(text, 'x'), algorithm, 350)[0] for algorithm in Algorithm)\n"
        "print(*(hashlib.sha256(content).hexdigest() for content in made))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=TEXT,
        capture_output=True,
        cwd=ROOT,
        env={**os.environ, "RAYON_NUM_THREADS": "3", "PYTHONHASHSEED": "5"},
        check=True,
        timeout=120,
    )
    contents = [learnt(text_blocks(TEXT, "x"), algorithm, 350)[0] for algorithm in Algorithm]
    here = [hashlib.sha256(content).hexdigest() for content in contents]
    assert done.stdout.decode().split() == here


def test_the_number_of_ids_is_exact_or_refused():
    assert made(size=301, added=1)._tokenizer.get_vocab_size() == 300
    with pytest.raises(BadData, match=r"sub-words by bpe; wanted 5,000; set .*=\d+ or less"):
        made(size=5000)
    with pytest.raises(ValueError, match=r"must be above 257, .* got 257"):
        made(size=257, added=1)


def test_a_model_changed_by_hand_is_found():
    model = made()
    file = model._origin
    file.write_text(file.read_text().replace("isolated", "Isolated") + " ")
    with pytest.raises(BadData, match=r"tokenizer\.json: the file was changed: its SHA-256"):
        made()


def test_a_given_model(tmp_path):
    own = made()
    file = tmp_path / "tokenizer.json"
    file.write_bytes(own._content())
    given = made(given=file)
    assert given.name == "given 300"
    assert given.recipe != own.recipe
    with pytest.raises(BadData, match=r"300 ids; wanted 8,000; set task\.subword_vocabulary=300"):
        made(size=8000, given=file)
    file.write_text("{}")
    with pytest.raises(BadData, match=r"changed while lra was using it"):
        _ = given.sha256
    with pytest.raises(BadData, match=r"is not a tokenizer\.json"):
        made(given=file)
    with pytest.raises(NotPrepared, match=r"task\.tokenizer=.*missing"):
        made(given=tmp_path / "nowhere.json")


def test_what_looks_like_a_special_token_is_text(tmp_path):
    from tokenizers import Tokenizer

    library = Tokenizer.from_str(made()._content().decode())
    library.add_special_tokens(["<|end|>"])
    library.enable_truncation(3)
    file = tmp_path / "tokenizer.json"
    library.save(str(file))
    given = made(size=301, given=file)
    found = ids(given, b"a <|end|> of it\n")
    assert 300 not in found.tolist()
    assert given.decode(found) == "a <|end|> of it\n"
