"""The log of a cell: however much it writes, a few megabytes are kept, and the disk is spared."""

import isolated_jobs as jobs
import pytest
from isolated import done

from lra.runners.isolation.log import HEAD_BYTES, LARGEST_BYTES, TAIL_BYTES, Log
from lra.runners.records import Status


@pytest.mark.parametrize("how", ["return", "exit"])
def test_a_cell_that_shouts_leaves_the_beginning_and_the_end(how, tmp_path):
    path = tmp_path / "log"
    _, ending = done(jobs.shout, (30, how), log=path)
    assert ending.status is (Status.ok if how == "return" else Status.crashed)
    text = path.read_bytes()
    assert len(text) <= LARGEST_BYTES
    assert text.startswith(b"0000000" * 128 + b"\n")
    assert b"the last word\n" in text[-4000:]
    assert text.count(b" bytes left out]\n") == 1
    if how == "exit":
        assert ending.reason.endswith(f"the last line of {path} is: the last word")


def test_what_is_left_out_is_counted_over_several_times(tmp_path):
    path = tmp_path / "log"
    log = Log(path)
    written = 0
    for number in range(40):
        with path.open("ab") as file:
            written += file.write(f"{number:09}\n".encode() * 100_000)
        log.shorten()
        assert path.stat().st_size <= LARGEST_BYTES
    log.finish()
    text = path.read_bytes()
    (told,) = (line for line in text.splitlines() if line.endswith(b" bytes left out]"))
    assert int(told.split()[1]) + len(text) - len(told) - 2 == written
    assert text[:HEAD_BYTES] == (b"000000000\n" * 100_000 + b"000000001\n" * 4858)[:HEAD_BYTES]
    assert log.last_words().splitlines()[-1] == "000000039"


@pytest.mark.parametrize("before", [0, HEAD_BYTES // 2, 3 * HEAD_BYTES, 10 * HEAD_BYTES])
@pytest.mark.parametrize("own", [0, 100, HEAD_BYTES, 3 * TAIL_BYTES])
def test_the_last_words_are_never_those_of_an_earlier_attempt(before, own, tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b"out of memory\n" * (before // 14))
    log = Log(path)
    for _ in range(2):
        log.shorten()
    with path.open("ab") as file:
        file.write(b"own words\n" * (own // 10))
    for _ in range(2):
        log.shorten()
    assert all("own words".endswith(line) for line in log.last_words().splitlines())
    assert bool(log.last_words()) == bool(own)


def test_looks_come_faster_while_it_grows(tmp_path):
    path = tmp_path / "log"
    log = Log(path)
    quiet = []
    for _ in range(10):
        log.shorten()
        quiet.append(log.wait_s)
    assert quiet == sorted(quiet)
    path.write_bytes(b"x" * (2 * TAIL_BYTES))
    log.shorten()
    assert log.wait_s < quiet[0]
    soon = log.wait_s
    log.shorten()
    assert log.wait_s > soon


def test_a_folder_that_comes_late_is_no_fault_of_the_log(tmp_path):
    log = Log(tmp_path / "gone" / "log")
    log.shorten()
    assert log.last_words() == ""
    log.finish()
    log.path.parent.mkdir()
    log.path.write_text("word")
    assert log.last_words() == "word"
