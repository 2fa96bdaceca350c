"""What docs/cluster.md gives to copy."""

import os
import re
import subprocess
import time
from pathlib import Path

import yaml

from lra.cluster.engine import engine_of
from lra.composition.catalogue import names

PAGE = Path(__file__).resolve().parents[3] / "docs" / "cluster.md"


def test_the_kubernetes_job_is_one_that_lets_workers_save_and_come_back() -> None:
    (block,) = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    job = yaml.safe_load(block)
    assert (job["apiVersion"], job["kind"]) == ("batch/v1", "Job")
    spec, pod = job["spec"], job["spec"]["template"]["spec"]
    assert spec["completionMode"] == "Indexed"
    assert spec["completions"] == spec["parallelism"] > 1
    # Kubernetes takes a policy of failures for pods that are never restarted in place alone.
    assert "podFailurePolicy" in spec
    assert pod["restartPolicy"] == "Never"
    assert pod["terminationGracePeriodSeconds"] >= 60
    (worker,) = pod["containers"]
    assert worker["command"][:2] == ["lra", "work"], "no shell between SIGTERM and the worker"
    mounts, volumes = worker["volumeMounts"], pod["volumes"]
    assert [each["name"] for each in mounts] == [each["name"] for each in volumes]


def test_ssh_starts_workers_without_waiting_for_them_and_stops_them(tmp_path: Path) -> None:
    (block,) = re.findall(r"```bash\n(for host in .*?)```", PAGE.read_text(), re.DOTALL)
    waits = "for _ in {1..1200}; do [ -e ../end ] && break; sleep 0.05; done"
    programs = {
        "bin/ssh": "shift; exec bash -c \"$*\"",  # it gives the words to a shell, joined
        "bin/pkill": "printf '%s\\n' \"$@\" > stopped; touch end",
        "lra/.venv/bin/lra": f"{waits}; echo $LRA_DATA $@ >> ../said",
    }  # fmt: skip
    for name, text in programs.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/bash\n{text}\n")
        path.chmod(0o755)
    start, stop = block.replace("/shared", str(tmp_path)).split("done\n")
    found = {**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}

    def shell(text: str) -> None:  # whose end comes when nobody holds its output any more
        done = subprocess.run(
            ["bash", "-c", text], cwd=tmp_path, env=found, capture_output=True, timeout=30,
            text=True, check=True,
        )  # fmt: skip
        assert (done.stdout, done.stderr) == ("", "")

    shell(f"{start}done")
    assert not (tmp_path / "said").exists()
    shell(stop)
    assert (tmp_path / "stopped").read_text() == "-TERM\n-f\n[l]ra work quickstart\n"
    told = f"{tmp_path}/lra-data work quickstart --results {tmp_path}/results\n"
    until = time.monotonic() + 60
    while not (tmp_path / "said").exists() or (tmp_path / "said").read_text() != 2 * told:
        assert time.monotonic() < until
        time.sleep(0.05)


def test_every_option_of_the_page_is_one_of_the_engine() -> None:
    assert {"local", "slurm"} <= {*names("cluster")}
    known = engine_of(["cluster=slurm"]).options
    used = {*re.findall(r"\bcluster\.(\w+)", PAGE.read_text())}
    assert used - {"md"} <= known.keys()
    table = "\n".join(re.findall(r"^- `cluster\.(.*?):", PAGE.read_text(), re.MULTILINE))
    described = {*re.findall(r"\w+", table)}
    assert known.keys() - {"name", "about", "class_path", "wait_s"} <= described
