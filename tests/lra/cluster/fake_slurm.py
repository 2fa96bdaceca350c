"""Programs named as those of SLURM, which answer from files and note what they were asked."""

import os
import socket
from dataclasses import dataclass
from pathlib import Path

import pytest

PROGRAM = """#!/bin/sh
cat > {folder}/stdin.$$
echo "{name} $*" >> {folder}/asked
{body}
"""
SBATCH = """
case "$*" in *--test-only*)
  if grep -q -e '=refused' -e forbidden {folder}/stdin.$$; then
    echo "allocation failure: Invalid feature specification" >&2; exit 1; fi
  exit 0;;
esac
cat "$1" >> {folder}/scripts
n=$(cat {folder}/jobs); n=$((n + 1)); echo $n > {folder}/jobs
if [ $n = "$(cat {folder}/full)" ]; then echo "sbatch: error: Job violates a limit" >&2; exit 1; fi
echo "Submitted batch job $n"
"""
SINFO = """\
main*|infinite|3|8|16000|(null)|{hosts}
main*|infinite|1|32|64000|gpu:a100:2(S:0-1)|{hosts}
gpu-long|2-00:00:00|4|16|128000|gpu:a100:4,nvme:1|{hosts}
short|2:00|1|8|16000|(null)|{hosts}
empty|1:00:00|0|0|0|(null)|
"""


@dataclass(frozen=True)
class FakeSlurm:
    """Where the programs lie, and what they were asked."""

    folder: Path

    def answer(self, name: str, text: str) -> None:
        (self.folder / f"{name}.txt").write_text(text)

    def asked(self, name: str) -> list[str]:
        lines = (self.folder / "asked").read_text().splitlines()
        return [line for line in lines if line.split()[0] == name]

    def submitted(self) -> list[str]:
        """The arrays of what was submitted; "" for a job that is no array."""
        file = self.folder / "scripts"
        scripts = file.read_text().split("#!/bin/bash")[1:] if file.exists() else []
        arrays = [
            [line.partition("=")[2] for line in each.splitlines() if "--array=" in line]
            for each in scripts
        ]
        return ["".join(found) for found in arrays]


def fake_slurm(folder: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    """Put the programs first on PATH; all nodes are this machine."""
    programs = folder / "bin"
    programs.mkdir(parents=True)
    plain = "cat {folder}/{name}.txt"
    bodies = dict.fromkeys(("sinfo", "squeue", "scontrol", "sacctmgr"), plain)
    for name, body in {**bodies, "sbatch": SBATCH, "scancel": "", "srun": ""}.items():
        file = programs / name
        text = PROGRAM.format(folder=folder, name=name, body=body.format(folder=folder, name=name))
        file.write_text(text)
        file.chmod(0o755)
    (folder / "jobs").write_text("0")
    (folder / "full").write_text("none")
    (folder / "asked").touch()
    fake = FakeSlurm(folder)
    fake.answer("sinfo", SINFO.format(hosts=socket.gethostname()))
    sizes = "MaxArraySize            = 3\nMaxJobCount = 10000\n"
    fake.answer("scontrol", f"ClusterName = near\nPrivateData = none\n{sizes}")
    fake.answer("squeue", "")
    fake.answer("sacctmgr", "")
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    return fake
