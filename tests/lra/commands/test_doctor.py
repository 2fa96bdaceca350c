import json
import os

import pytest

from lra.commands import doctor
from lra.machine import probes
from lra.machine.probes import ProbeResult
from lra.runners.isolation import isolate
from lra.runners.isolation.isolate import Ending
from lra.runners.records import Status
from tests.reports.dashboard.wandb_server import KEY, wandb_server


def fine():
    return ProbeResult(True, "as it should be")


def broken():
    """Something that breaks."""
    raise OSError(28, "No space left on device")


@pytest.fixture
def only(monkeypatch):
    """Let the doctor try these checks and no others."""

    def choose(*checks):
        monkeypatch.setattr(doctor, "checks", lambda results: list(checks))

    return choose


def test_what_fails_is_told_with_its_way_out_and_costs_the_exit_code_only_where_essential(
    only, capsys
):
    only(
        doctor.Check("first", fine, essential=True),
        doctor.Check("second", lambda: ProbeResult(False, "not here", "go there")),
    )
    assert doctor.main([]) == 0
    text = capsys.readouterr().out
    assert "ok   first" in text
    assert "no   second" in text
    assert "remedy: go there" in text
    assert text.endswith("ready\n")

    only(doctor.Check("first", broken, essential=True), doctor.Check("second", fine))
    assert doctor.main([]) == 1
    text = capsys.readouterr().out
    assert "FAIL first" in text
    assert "No space left on device" in text
    assert text.endswith("not ready: first\n")


def test_json(only, capsys):
    only(doctor.Check("first", broken, essential=True), doctor.Check("second", fine))
    assert doctor.main(["--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert [check["mark"] for check in found["checks"]] == ["FAIL", "ok"]
    assert found["failed"] == ["first"]
    assert found["facts"]["torch"].startswith("2.")


def test_facts_name_processor_memory_and_the_variables_that_change_speed(monkeypatch):
    for name in list(os.environ):
        if name.startswith(doctor.SPEED_VARIABLES):
            monkeypatch.delenv(name)
    assert doctor.machine_facts()["environment"] == "no speed variables"
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Haswell")
    facts = doctor.machine_facts()
    assert facts["environment"] == "OPENBLAS_CORETYPE=Haswell"
    assert "GiB" in facts["memory"]
    assert "vectors" in facts["processor"]
    assert doctor.package_version("no-such-package-here").startswith("missing")


def test_a_folder_that_takes_files_and_one_that_cannot_be_made(tmp_path):
    good = probes.writable(tmp_path / "not" / "yet")
    assert good.works
    assert "lra will make it" in good.detail
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    bad = probes.writable(tmp_path / "file")
    assert not bad.works
    assert "Not a directory" in bad.detail
    assert bad.way_out


@pytest.mark.parametrize(
    "probe",
    [probes.cell_process, probes.memory_limit, probes.memory_trace, probes.half_precision,
     probes.wandb_offline, pytest.param(probes.compiler, marks=pytest.mark.compile)],
)  # fmt: skip
def test_what_is_tried_works_here(probe):
    report = probe()
    assert report.works, report.detail
    assert str(os.getpid()) not in report.detail.split()  # of a cell: it has a process of its own


def crashed(monkeypatch, reason):
    """Let every child of a probe end so."""
    ending = Ending(Status.crashed, reason)
    monkeypatch.setattr(isolate, "run", lambda *args, **options: ending)


def test_a_missing_compiler_is_told(monkeypatch):
    crashed(monkeypatch, "InvalidCxxCompiler: no working compiler")
    monkeypatch.setenv("CXX", "no-such-compiler")
    report = probes.compiler()
    assert not report.works
    assert "there is no program no-such-compiler on PATH" in report.detail
    assert "g++" in report.way_out


def test_a_child_that_dies_is_a_failure_of_the_essential_check(monkeypatch):
    crashed(monkeypatch, "killed by signal 9")
    report = probes.cell_process()
    assert not report.works
    assert "killed by signal 9" in report.detail


def test_the_key_of_an_account_is_tried_and_never_printed(monkeypatch, tmp_path):
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    absent = probes.wandb_account()
    assert not absent.works
    assert "wandb login" in absent.way_out
    with wandb_server() as server:
        monkeypatch.setenv("WANDB_BASE_URL", server.url)
        monkeypatch.setenv("WANDB_API_KEY", KEY)
        assert probes.wandb_account().works
        server.known_key = False
        unknown = probes.wandb_account()
    assert not unknown.works
    assert "did not recognize an account" in unknown.detail
    assert KEY not in str(unknown)


def test_the_hub_is_not_asked_where_it_is_switched_off(monkeypatch):
    monkeypatch.setattr(probes.urllib.request, "urlopen", None)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    report = probes.hub()
    assert not report.works
    assert "HF_HUB_OFFLINE" in report.detail


def test_a_hub_that_does_not_answer_is_told(monkeypatch):
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    report = probes.hub()
    assert not report.works
    assert "http://127.0.0.1:9 does not answer" in report.detail
    assert "--from PATH" in report.way_out


def test_the_checks_try_the_folder_that_was_named(tmp_path):
    by_name = {check.name: check for check in doctor.checks(tmp_path / "here")}
    assert str(tmp_path / "here") in by_name["results folder"].probe().detail
    essential = {name for name, check in by_name.items() if check.essential}
    assert essential == {
        "installed files",
        "separate process",
        "results folder",
        "data folder",
    }
