"""What docs/cluster.md gives to copy."""

import re
from pathlib import Path

import yaml

from lra.catalogue import names
from lra.cluster.engine import chosen

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


def test_every_option_of_the_page_is_one_of_the_engine() -> None:
    assert {"local", "slurm"} <= {*names("cluster")}
    known = chosen(["cluster=slurm"]).options
    used = {*re.findall(r"\bcluster\.(\w+)", PAGE.read_text())}
    assert used - {"md"} <= known.keys()
    table = "\n".join(re.findall(r"^\| `cluster\.(.*?) \|", PAGE.read_text(), re.MULTILINE))
    described = {*re.findall(r"\w+", table)}
    assert known.keys() - {"name", "about", "class_path", "wait_s"} <= described
