"""The library that makes the disk of a program faulty: see `faulty_disk.c`."""

import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.campaign.part import LeftOut

KINDS = {
    "read": 1, "list": 2, "stat": 4, "write": 8, "lock": 16, "flush of a folder": 32, "removal": 64,
}  # fmt: skip
"""Of calls, with their numbers in the library."""
_LETTERS = dict(zip("rlswkfxd", (*KINDS, "delay"), strict=True))
SOURCE = Path(__file__).with_name("faulty_disk.c")


def preload(folder: Path) -> None:
    """Have every program that is started from now on load the library, where it can be made."""
    compiler = os.environ.get("CC") or "cc"
    library = folder.resolve() / "faulty_disk.so"
    if shutil.which(compiler) is None:
        return
    words = [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(SOURCE), "-ldl"]
    if subprocess.run(words, capture_output=True, check=False).returncode == 0:
        os.environ["LD_PRELOAD"] = str(library)


class Faults:
    """The faults of the programs that are started with `variables`; none at first."""

    def __init__(self, folder: Path, below: Path) -> None:
        if "faulty_disk" not in os.environ.get("LD_PRELOAD", ""):
            raise LeftOut("needs a C compiler (cc) for the library that makes the disk faulty")
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder.resolve()
        self.variables = {"LRA_FAULTS": str(self.folder), "LRA_FAULTS_BELOW": str(below.resolve())}

    def disk(self, error: int = 0, permille: int = 0, delay_us: int = 0) -> None:
        """Let a share of the calls that write fail with `error`, and all take longer."""
        self._say("disk", f"{error} {permille} {delay_us}")

    def calls(self, permille: int = 0, error: int = 0, kinds: Sequence[str] = ()) -> None:
        """Let a share of calls, also of those that read and list, fail as on a file server.

        Args:
            permille: the share.
            error: 0: one of a file server's, drawn for each call.
            kinds: keys of `KINDS`; none: all of them.
        """
        self._say("calls", f"{permille} {error} {sum(KINDS[kind] for kind in kinds)}")

    def applied(self) -> int:
        """Return how many calls failed or were slow since this was asked last."""
        return self.by_kind().total()

    def by_kind(self) -> Counter[str]:
        """Return the same by what the calls were to do."""
        file = self.folder / "applied"
        letters = Counter(file.read_text() if file.exists() else "")
        file.unlink(missing_ok=True)
        return Counter({_LETTERS[letter]: count for letter, count in letters.items()})

    def _say(self, name: str, text: str) -> None:
        new = self.folder / f".{name}"
        new.write_text(text)
        new.replace(self.folder / name)
