"""Pickles of CIFAR-10 are read as data: nothing they say is ever called, and none is a crash."""

import os
import pickle
import random
import struct

import numpy as np
import pytest

from tasks import cifar_pickle
from tasks.errors import BadData
from tests.fuzz import cases

LABELS = [6, 9, 9, 4, 1, 0]


def planes(kind=np.uint8):
    return np.random.default_rng(0).integers(0, 256, (len(LABELS), 3072)).astype(kind)


def python_2():
    """Write a batch as Python 2 wrote the official ones: byte strings, protocol 2."""
    content = planes().tobytes()
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\nq\x01cnumpy\nndarray\nq\x02K\x00\x85U\x01b\x87R"
        b"(K\x01K\x06M\x00\x0c\x86cnumpy\ndtype\nq\x03U\x02u1K\x00K\x01\x87R"
        b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89T"
    )
    array += struct.pack("<I", len(content)) + content + b"tb"
    labels = b"](" + b"".join(b"K" + bytes([label]) for label in LABELS) + b"e"
    return b"\x80\x02}q\x00(U\x0bbatch_labelU\x05first" + b"U\x06labels" + labels + \
        b"U\x04data" + array + b"u."  # fmt: skip


def written(protocol=2, data=None, labels=LABELS):
    content = {b"data": planes() if data is None else data, b"labels": labels, b"batch_label": b"x"}
    return pickle.dumps(content, protocol=protocol)


@pytest.mark.parametrize("protocol", [2, 3, 4])
@pytest.mark.parametrize("labels", [LABELS, np.array(LABELS), np.array(LABELS, ">i4")])
@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_of_every_order_and_protocol(protocol, labels, order):
    rows = cifar_pickle.read(written(protocol, np.asarray(planes(), order=order), labels), "here")
    np.testing.assert_array_equal(rows.planes, planes())
    assert rows.labels.tolist() == LABELS


def test_what_python_2_wrote():
    rows = cifar_pickle.read(python_2(), "here")
    np.testing.assert_array_equal(rows.planes, planes())
    assert rows.labels.tolist() == LABELS
    known = pickle.loads(python_2(), encoding="bytes")  # noqa: S301  our own
    np.testing.assert_array_equal(rows.planes, known[b"data"])


class Runs:
    """Does something when it is unpickled."""

    def __init__(self, *call):
        self.call = call

    def __reduce__(self):
        return self.call


def evil(folder):
    """Yield pickles that run code, or read and write memory that is not theirs, once unpickled."""
    mark = str(folder / "ran")
    for call in (
        (os.system, (f"touch {mark}",)),
        (eval, (f"open({mark!r}, 'w')",)),
        (np.ndarray, ((4,), np.dtype(object), bytes(range(64)))),
        (np.frombuffer, (bytes(64), "u1")),
        (np.dtype, ("O",)),
    ):
        for protocol in (2, 3, 4):
            for place in ("data", "labels", "beside"):
                content = {b"data": planes(), b"labels": LABELS}
                content[place.encode()] = Runs(*call)
                yield pickle.dumps(content, protocol)
    objects = np.empty(6, object)
    objects[:] = LABELS
    yield written(labels=objects)
    # An array of objects over bytes of ours: pointers of the caller's choice.
    yield python_2().replace(b"U\x02u1", b"U\x02O8")
    yield python_2().replace(b"U\x02u1", b"U\x02V8")


def test_nothing_that_a_pickle_names_is_called(tmp_path):
    number = 0
    for content in evil(tmp_path):
        number += 1
        try:
            cifar_pickle.read(content, "here")
        except BadData as error:
            assert str(error).startswith("here")  # noqa: PT017
        else:
            raise AssertionError("an evil pickle was read")
    assert number > 40
    assert not (tmp_path / "ran").exists()


def mutated(content, drawn):
    spoilt = bytearray(content)
    for _ in range(drawn.randint(1, 5)):
        # Mostly among the instructions, which are few beside the pixels.
        place = drawn.choice((drawn.randrange(300), -drawn.randrange(1, 60)))
        place = place % len(spoilt) if drawn.randrange(8) else drawn.randrange(len(spoilt))
        match drawn.randrange(4):
            case 0:
                spoilt[place] = drawn.randrange(256)
            case 1:
                del spoilt[place : place + drawn.randrange(1, 9)]
            case 2:
                spoilt[place:place] = drawn.choice(SPLICED)
            case _:
                del spoilt[place + 1 :]
        spoilt = spoilt or bytearray(b".")
    return bytes(spoilt)


SPLICED = (
    b"R", b"b", b"(", b"t", b"\x85", b"\x86", b"\x87", b"}", b"]", b"u", b"s", b"e", b"a", b"0",
    b"2", b"1", b"h\x00", b"j\xff\xff\xff\x7f", b"N", b"\x88", b"\x89", b"K\x07", b".",
    b"cos\nsystem\n", b"cnumpy\nndarray\n", b"cnumpy\ndtype\n", b"\x81", b"\x92", b"o", b"i",
    b"\x8a\x0a" + b"\xff" * 10, b"U\x05hello", b"X\x05\0\0\0hello", b"\x8d" + b"\xff" * 8,
    b"\x80\xff", b"F1e999\n", b"I" + b"9" * 5000 + b"\n", b"P1\n", b"Q", b"\x97", b"\x98",
)  # fmt: skip


@pytest.mark.parametrize("seed", range(4))
def test_mutated_pickles_are_read_or_refused(seed):
    drawn = random.Random(seed)
    originals = [python_2(), *(written(protocol) for protocol in (2, 3, 4))]
    read = 0
    for number in range(cases(300)):
        content = mutated(originals[number % len(originals)], drawn)
        try:
            rows = cifar_pickle.read(content, "here")
        except BadData as error:
            said = str(error)
            assert said.startswith("here")
            assert len(said) < 400
        else:
            read += 1
            assert rows.planes.shape == (len(rows.labels), 3072)
            assert rows.labels.max() <= 9
    assert read < cases(300)


def test_noise_is_no_pickle():
    drawn = random.Random(9)
    for _ in range(cases(300)):
        with pytest.raises(BadData):
            cifar_pickle.read(drawn.randbytes(drawn.randrange(60)), "here")


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x02" + b"\x85" * 100_000 + b".",
        b"\x80\x02N" + b"\x85" * 100_000 + b".",
        b"\x80\x02]" + b"h\x00e" * 1000 + b".",
        b"\x80\x02}N" + b"\x85" * 200_000 + b"Ns.",
        b"\x80\x02" + b"N0" * 3_000_000 + b".",
    ],
    ids=["no operand", "deep", "itself", "deep key", "endless"],
)
def test_shapes_that_recurse(content):
    with pytest.raises(BadData):
        cifar_pickle.read(content, "here")


@pytest.mark.parametrize("labels", [[1.0] * 6, [True] * 6, ["1"] * 6, [None] * 6, [10] * 6, [1]])
def test_labels_that_are_none(labels):
    with pytest.raises(BadData, match="here"):
        cifar_pickle.read(written(labels=labels), "here")
