"""Nothing that a store says steers the terminal of who reads it, or leads out of its folder."""

import errno
import io
import json
import os
import random
import sys
from pathlib import Path

import pytest

from lra.cli import main
from lra.cluster.cells import WorkerOptions
from lra.cluster.local import LocalEngine
from lra.cluster.plan import HEAD, BadPlan, StoredPlan, plan_folder
from lra.cluster.progress_of import early_endings
from lra.cluster.state import WorkerState, read_states
from lra.cluster.worker import Worker
from lra.runners.storage.seals import DIGEST, digest_of, seal, unseal
from lra.runners.store import Store
from lra.tasks.data.bars import tqdm
from lra.terminal.console import complain
from lra.terminal.screen import Region, beneath, encodable, escape, one_line, plainly_written
from tests.lra.sweep.small_sweeps import TINY

EVIL = "\x1b[2Jgone\r\x07\x9b31m\u202eback\nlra: all is well"
STEERING = {*map(chr, range(32)), *map(chr, range(0x7F, 0xA0)), "\u202e"} - {"\n", "\t"}


def steered(text: str) -> set[str]:
    return STEERING & {*text}


def test_every_control_character_is_spelt_out_and_all_else_stays() -> None:
    draw = random.Random(0)
    for _ in range(300):
        text = "".join(chr(draw.choice([draw.randrange(0x20), draw.randrange(0xD800)]))
                       for _ in range(30))  # fmt: skip
        assert steered(escape(text)) == set()
        assert "\n" not in one_line(text)
        assert steered(encodable(text, sys.stdout)) == set()
    assert escape("naïve 漢字 🙂\n\ta") == "naïve 漢字 🙂\n\ta"


def test_json_that_is_printed_stays_json(capsys: pytest.CaptureFixture[str]) -> None:
    with plainly_written():
        sys.stdout.write(json.dumps({"a": EVIL}, ensure_ascii=False))
    out = capsys.readouterr().out
    assert steered(out) == set()
    assert json.loads(out) == {"a": EVIL}


def test_what_draws_goes_beneath(capsys: pytest.CaptureFixture[str]) -> None:
    with plainly_written():
        for _ in tqdm(range(3), disable=False):
            pass
        complain(EVIL)
        sys.stderr.writelines([EVIL])
    err = capsys.readouterr().err
    assert "\r100%" in err
    assert steered(err) == {"\r"}  # of the bar, and of no message but a print's
    stream = io.StringIO()
    Region(stream, size=lambda: os.terminal_size((80, 24))).draw([EVIL])
    assert steered(stream.getvalue()) == set()
    assert "\n" not in stream.getvalue()
    assert beneath(stream) is stream


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StoredPlan:
    with monkeypatch.context() as patch:
        patch.setattr(LocalEngine, "submit", lambda *_: [])
        words = (f"results={tmp_path}", "sweep=some", "model=identity")
        assert main(["submit", *TINY, *words]) == 0
    return StoredPlan(plan_folder(tmp_path, "some"))


def resealed(path: Path, **changed: object) -> None:
    told = {k: v for k, v in unseal(path.read_bytes(), {}).items() if k != DIGEST}
    path.write_bytes(seal({**told, **changed}))


def test_notes_of_a_store_do_not_steer_who_watches(
    plan: StoredPlan, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    key = plan.entries[0].key
    claim = Store(tmp_path).claim(key)
    told = json.loads(claim.path.read_text())
    claim.path.write_text(json.dumps({**told, **dict.fromkeys(("worker", "host", "title"), EVIL)}))
    state = WorkerState(plan.folder, "one", EVIL)
    state.begin(key, EVIL)
    state.say(EVIL)
    resealed(state.path, host=EVIL, doing=EVIL)
    ended = WorkerState(plan.folder, "two", "all")
    ended.over(2, EVIL)
    (tmp_path / "cells/no\x1b[2Jcell").mkdir(parents=True)
    capsys.readouterr()
    for words in (["watch", "some", "--once", "--workers"], ["watch", "some", "--json"],
                  ["doctor", "--store"], ["show", EVIL], ["report", "--sweep", EVIL]):  # fmt: skip
        main([*words, "--results", str(tmp_path)])
        said = capsys.readouterr()
        assert said.out + said.err
        assert steered(said.out + said.err) == set()
        assert "\nlra: all is well" not in said.out
        if "--json" in words:
            json.loads(said.out)


@pytest.mark.parametrize("name", ["../../x", "a/b", "", ".", "..", "-x", "a\nb", "a" * 300])
@pytest.mark.parametrize("words", [("work", "some", "--name={}"), ("run", *TINY, "sweep={}"),
                                   ("submit", *TINY, "sweep={}")], ids=lambda w: w[0])  # fmt: skip
def test_a_name_on_the_command_line_leads_nowhere(
    words: tuple[str, ...], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "a/b")
    before = sorted(tmp_path.rglob("*"))
    if words[0] == "work":
        with pytest.raises(SystemExit, match="2"):
            main([word.format(name) for word in words])
    else:
        assert main([word.format(name) for word in words]) == 2
    assert sorted(tmp_path.rglob("*")) == before


def test_names_in_a_plan_lead_nowhere(plan: StoredPlan, tmp_path: Path) -> None:
    head, index = plan.folder / HEAD, plan.folder / plan.head["index"]
    whole, content = head.read_bytes(), json.loads(index.read_bytes())
    resealed(head, sweep="../../x")
    with pytest.raises(BadPlan, match="cannot be the name of a sweep"):
        StoredPlan(plan.folder)
    head.write_bytes(whole)
    for change in ({"fingerprints": ["../x"]},
                   {"entries": [["../../x", *content["entries"][0][1:]]]}):  # fmt: skip
        raw = json.dumps({**content, **change}).encode()
        index.write_bytes(raw)
        resealed(head, index_digest=digest_of(raw))
        with pytest.raises(BadPlan, match="is no key of a run"):
            StoredPlan(plan.folder)


def test_a_worker_that_ends_on_a_full_disk_says_so_in_the_blocks_it_has(
    plan: StoredPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    worker = Worker(plan, WorkerOptions(name="one"))
    worker.state.say("preparing")
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(tmp_path))

    def refuse(*_: object) -> None:
        raise full

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", refuse)
        patch.setattr(Store, "check_writable", refuse)
        assert worker.run() == 2
    state = read_states(plan.folder)["one"]
    assert state["doing"] == "ended with 2"
    capsys.readouterr()
    assert main(["watch", "some", "--results", str(tmp_path)]) == 3
    assert "1 worker ended: " in (out := capsys.readouterr().out)
    assert "No space left on device" in out


def test_the_end_of_a_worker_without_a_state_is_told_from_what_it_printed(
    plan: StoredPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    for name in ("logs/start-1.log", "slurm/7_0_log.out"):
        (plan.folder / name).parent.mkdir(exist_ok=True)
        (plan.folder / name).write_text("2 workers begin\nlra: cannot write x: No space left\n")
    (plan.folder / "logs/two.log").write_text("12:00 stopped: the quota is full\n12:01 ends\n")
    said = {
        name: {"doing": f"ended with {code}", "at": at}
        for name, code, at in (
            ("two", 2, 1e12),
            ("three", 1, 1e12),
            ("four", 143, 1e12),
            ("old", 2, 0),
        )
    }
    found = early_endings(plan, said)
    assert found == {"cannot write x: No space left": 1, "the quota is full": 1, "with 1": 1}
    usage = type("Usage", (), {"free": 5})
    monkeypatch.setattr("lra.cluster.progress_of.shutil.disk_usage", lambda _: usage)
    assert main(["watch", "some", "--results", str(tmp_path)]) == 3
    assert "(5 bytes free), so that workers end; free some space" in capsys.readouterr().out


def test_a_pipe_in_the_place_of_a_log_is_not_waited_for(plan: StoredPlan) -> None:
    (plan.folder / "logs").mkdir(exist_ok=True)
    os.mkfifo(plan.folder / "logs/start-1.log")
    assert early_endings(plan, {}) == {}
