"""What a writer that died has left: removed by the next one, and nothing of the living."""

import os
import subprocess
import sys
from pathlib import Path

from runners.storage import writers
from runners.storage.atomic import write_whole

KILLED = (
    "import os, signal, sys; from pathlib import Path; from runners.storage import writers;"
    "writers.temporary(Path(sys.argv[1])).touch(); os.kill(os.getpid(), signal.SIGKILL)"
)


def test_the_next_writer_removes_what_a_dead_one_left_at_once(tmp_path: Path) -> None:
    path = tmp_path / "rows-abc.jsonl"
    subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False)
    (left,) = tmp_path.iterdir()
    assert writers.has_died(left)
    own = writers.temporary(path)
    elsewhere = left.with_name(left.name.replace(writers.place(), "another-host"))
    other = left.with_name(left.name.replace(writers.place(), writers.place()[:-1] + "."))
    for living in (own, elsewhere, other):
        living.touch()
        assert not writers.has_died(living)
    write_whole(path, b"rows\n")
    assert {*tmp_path.iterdir()} == {path, own, elsewhere, other}
    assert str(os.getpid()) in own.name
