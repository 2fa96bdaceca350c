"""What a writer that died has left: removed by the next one, and nothing of the living."""

import os
import re
import subprocess
import sys
from pathlib import Path

from lra.runners.storage import writers
from lra.runners.storage.atomic import write_whole

KILLED = (
    "import os, signal, socket, sys; from pathlib import Path;"
    "socket.gethostname = lambda: 'the name that this machine had';"
    "from lra.runners.storage import writers;"
    "writers.temporary(Path(sys.argv[1])).touch(); os.kill(os.getpid(), signal.SIGKILL)"
)


def test_the_next_writer_removes_what_a_dead_one_left_at_once(tmp_path: Path) -> None:
    path = tmp_path / "rows-abc.jsonl"
    subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False)
    (left,) = tmp_path.iterdir()
    assert writers.has_died(left)
    own = writers.temporary(path)
    elsewhere = left.with_name(re.sub(r"\.[0-9a-f]{12}\.", ".0123456789ab.", left.name))
    older = left.with_name(".rows-abc.jsonl.some-host.1.0a1b2c3d.tmp")
    for other in (own, elsewhere, older):
        other.touch()
        assert not writers.has_died(other)
    again = own.with_name(re.sub(r"\.(\d+)\.(\d+)\.", r".\1.1\2.", own.name))
    again.touch()  # its number was given to this process later
    assert writers.has_died(again)
    write_whole(path, b"rows\n")
    assert {*tmp_path.iterdir()} == {path, own, elsewhere, older}
    assert f".{os.getpid()}." in own.name
