"""The plug-in `peers`: its runner, and the way to it from the command line."""

import json
import os
from dataclasses import fields, replace
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from lra.cli import main
from lra.composition.hydra_entry import entries
from lra.composition.run import Control
from lra.composition.yaml_text import load
from lra.errors import ConfigError
from lra.models.families.sdpa import SDPA
from lra.models.mixer import Unsupported
from lra.runners.measurement.disturbance import Shares
from lra.runners.measurement.hardware import HardwareProfile
from lra.runners.measurement.watch import Sample
from lra.runners.measures.bench import CostMode
from lra.runners.records import Measurement, Status
from lra.runners.runner import Direction
from peers.catalogue import PEERS
from peers.peer import (
    Missing,
    Peer,
    PeerCase,
    PeerPair,
    core_of,
    disagreement,
    package,
    twins,
)
from peers.runner import Peers, compare
from tests import lra_process

CONF = Path(__file__).with_name("peers") / "conf"
PLUG_IN = (f"--config-dir={CONF}", "plugins=peers", "logger=none")
QUICK = Peers(lengths=[32], heads=2, head_width=8, timed_steps=3, long_timed_steps=3)


def literal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v


def beside(theirs: Any) -> Any:
    return lambda case: PeerPair(core_of(SDPA(case.site()), case), theirs, case.heads_of_inputs())


PEER = Peer(
    name="a literal form",
    distribution="torch",
    family="sdpa",
    setting="softmax",
    make=beside(literal),
)


def test_the_preset_has_every_family_with_a_peer() -> None:
    found = entries(("-m", "+experiment=peers", *PLUG_IN))
    models = {entry.config["model"]["name"] for entry in found}
    assert models == {peer.family for peer in PEERS}


def test_its_file_has_every_option_at_its_default() -> None:
    steering = {option.name for option in fields(Control)}
    named = {"name", "about", "class_path", "section", *steering}
    options = {key: value for key, value in load(CONF / "runner/peers.yaml").items()
               if key not in named}  # fmt: skip
    assert options == vars(Peers())


def test_without_the_plug_in_its_name_is_none() -> None:
    with pytest.raises(ConfigError, match="peers"):
        entries(("runner=peers", "logger=none"))


def dry_run(tmp_path: Path, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    small = ("runner=peers", "runner.lengths=[64]", "runner.modes=[forward]", "task=listops")
    steering = (f"results={tmp_path}", "runner.dry_run=true")
    assert main(["run", *PLUG_IN, *small, *steering, *words]) == 0
    return capsys.readouterr().out.splitlines()[0]


def test_a_dry_run_names_packages_that_are_not_installed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("peers.peer.version", missing)
    line = dry_run(tmp_path, capsys, "model=performer")
    assert "performer-pytorch is not installed; pip install 'lra[parity]'" in line
    assert "  refused  " in dry_run(tmp_path, capsys, "model=identity")
    monkeypatch.setattr("peers.peer.version", lambda _: "1.0")
    assert "not installed" not in dry_run(tmp_path, capsys, "model=performer")


def measured(
    monkeypatch: pytest.MonkeyPatch,
    peer: Peer,
    mode: CostMode = CostMode.step,
    config: Peers = QUICK,
    length: int = 32,
) -> list[Measurement]:
    monkeypatch.setattr("peers.runner.of_family", lambda family: [peer])
    found = compare(
        "sdpa", length=length, mode=mode, config=config, hardware=HardwareProfile(name="t"), seed=0
    )
    return [item for item in found if isinstance(item, Measurement)]


@pytest.mark.parametrize("mode", CostMode)
def test_equal_functions_get_a_ratio_of_paired_samples(
    monkeypatch: pytest.MonkeyPatch, mode: CostMode
) -> None:
    rows = measured(monkeypatch, PEER, mode)
    by = {(row.metric, row.labels.get("side", "")): row for row in rows}
    assert len([row for row in rows if row.metric == "peer_error"]) == 1
    assert by["peer_error", ""].value is not None
    assert by["peer_error", ""].value < 1e-5
    ours, theirs = by["peer_time", "ours"], by["peer_time", "peer"]
    speedup = by["peer_speedup", ""]
    assert speedup.samples == tuple(
        b / a for a, b in zip(ours.samples, theirs.samples, strict=True)
    )
    bytes_of = [by["peer_peak_tensor_bytes", side].value for side in ("ours", "peer")]
    assert by["peer_bytes_ratio", ""].value == bytes_of[0] / bytes_of[1]  # type: ignore[operator]
    assert {row.labels["peer"] for row in rows} == {"a literal form"}


def test_peak_bytes_are_those_of_the_whole_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """The literal form holds a matrix of length x length for each head."""
    rows = measured(monkeypatch, PEER, CostMode.forward, length=256)
    (peak,) = (
        row.value
        for row in rows
        if row.metric == "peer_peak_tensor_bytes" and row.labels["side"] == "peer"
    )
    assert peak is not None
    assert peak >= 2 * 256 * 256 * 4


@pytest.mark.parametrize("declared", [True, False])
def test_another_function_gets_times_and_no_ratio(
    monkeypatch: pytest.MonkeyPatch, declared: bool
) -> None:
    other = replace(PEER, make=beside(lambda q, k, v: 1.01 * literal(q, k, v)), same=declared)
    rows = measured(monkeypatch, other)
    (ratio,) = (row for row in rows if row.metric == "peer_speedup")
    assert ratio.status is Status.unsupported
    assert "another function: largest relative error" in ratio.reason
    assert not [row for row in rows if row.metric == "peer_bytes_ratio"]
    assert len([row for row in rows if row.metric == "peer_time"]) == 2


def test_rounding_is_told_from_another_function(monkeypatch: pytest.MonkeyPatch) -> None:
    def rounded(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        o = literal(q, k, v)
        return o if o.dtype == torch.float64 else o * 1.01

    rows = measured(monkeypatch, replace(PEER, make=beside(rounded)))
    errors = {r.labels["compared_in"]: r.value for r in rows if r.metric == "peer_error"}
    assert errors["float32"] == pytest.approx(0.01, rel=0.1)
    assert errors["float64"] is not None
    assert errors["float64"] < 1e-12
    (ratio,) = (row for row in rows if row.metric == "peer_speedup")
    assert ratio.status is Status.ok


def test_a_forward_pass_compares_outputs_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def halved(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return literal(q, (k + k.detach()) / 2, v)

    peer = replace(PEER, make=beside(halved))
    status = {
        mode: [r.status for r in measured(monkeypatch, peer, mode) if r.metric == "peer_speedup"]
        for mode in CostMode
    }
    assert status == {CostMode.forward: [Status.ok], CostMode.step: [Status.unsupported]}


def test_an_error_in_a_gradient_alone_is_seen() -> None:
    def halved(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return literal(q, (k + k.detach()) / 2, v)

    case = PeerCase(32, heads=2, head_width=8, dtype=torch.float64)
    right, wrong = replace(PEER, make=beside(literal)), replace(PEER, make=beside(halved))
    assert disagreement(right.pair(case)) < 1e-12
    assert disagreement(wrong.pair(case)) > 0.1


def test_a_missing_package_is_a_row_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    (row,) = measured(monkeypatch, replace(PEER, distribution="no-such-package"))
    assert row.status is Status.skipped
    assert "pip install 'lra[parity]'" in row.reason


def test_a_missing_module_is_told_too() -> None:
    with pytest.raises(Missing, match="pip install"):
        package("no_such_module_anywhere")


def test_a_length_that_a_peer_does_not_take_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    (row,) = measured(monkeypatch, replace(PEER, multiple=128))
    assert row.status is Status.unsupported
    assert "multiples of 128 tokens: got 32" in row.reason


def test_a_peer_that_is_too_slow_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    for why in ("", "load of other processes"):
        shares = Shares(seconds=9.0, processor=1.0, thread=1.0)
        found = Sample(seconds=9.0, shares=shares, reason=why)
        monkeypatch.setattr("peers.runner.try_call", lambda *_, found=found: found)
        (row,) = measured(monkeypatch, PEER, config=replace(QUICK, step_limit_s=3.0))
        assert row.status is Status.skipped
        assert "one step of ours took 9.0 s" in row.reason
        assert "peer" in row.labels


def test_a_peer_without_memory_costs_its_own_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def greedy(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        raise MemoryError("not enough memory for the matrix")

    rows = measured(monkeypatch, replace(PEER, make=beside(greedy)))
    assert [row.status for row in rows] == [Status.out_of_memory]
    assert rows[0].reason.startswith("in the first step of the peer: not enough memory")


def test_a_mistake_in_a_peer_is_no_lack_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        raise RuntimeError("shapes do not fit")

    with pytest.raises(RuntimeError, match="shapes"):
        measured(monkeypatch, replace(PEER, make=beside(broken)))


def test_a_family_without_a_peer_is_refused() -> None:
    found = compare(
        "luna",
        length=32,
        mode=CostMode.step,
        config=QUICK,
        hardware=HardwareProfile(name="t"),
        seed=0,
    )
    with pytest.raises(Unsupported, match="no other implementation of luna"):
        list(found)


def test_weights_are_copied_into_a_view_of_theirs() -> None:
    ours, theirs = torch.nn.Parameter(torch.ones(2, 3)), torch.nn.Parameter(torch.zeros(3, 4))
    twins(ours, theirs, lambda weight: weight.T[1:3])
    assert theirs.sum() == 6
    with pytest.raises(ValueError, match="differ in shape"):
        twins(ours, theirs)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lengths": []}, "lengths"),
        ({"modes": []}, "modes is empty"),
        ({"direction": Direction.task}, "bidirectional or causal"),
        ({"tolerance": 0.0}, "tolerance must be positive"),
        ({"timed_steps": 2}, "timed_steps must be at least 3: got 2"),
        ({"step_limit_s": 0}, "step_limit_s"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Peers(**options)


ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_documented_way_from_a_clone(tmp_path: Path) -> None:
    """Measure, report on the store, and on published rows: in a process of its own, as written."""

    def lra(*words: str) -> str:
        environment = os.environ | {"PYTHONPATH": "tests/parity", "OMP_NUM_THREADS": "1"}
        done = lra_process.run(words, cwd=ROOT, env=environment)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    conf = ("--config-dir", "tests/parity/peers/conf")
    store = tmp_path / "results"
    lra(
        "run", *conf, "plugins=peers", "runner=peers", "model=sdpa", "runner.modes=[step]",
        "runner.lengths=[32]", "runner.heads=2", "runner.head_width=8", "runner.timed_steps=3",
        "runner.warmup_steps=1", "runner.repeat_limit_s=0", "logger=none", f"results={store}",
    )  # fmt: skip
    (file,) = store.glob("cells/*/*/rows-*.jsonl")
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    # transformers, the other peer of sdpa, is an extra: without it, its rows are skipped.
    statuses = {row["status"] for row in rows if row["labels"]["peer"].startswith("torch ")}
    assert statuses == {"ok"}
    assert "peer_speedup" in {row["metric"] for row in rows}
    assert "peers-step.md" in lra("report", "--results", str(store), "--plugin", "peers")
    shown = lra("show", file.parent.name, "--results", str(store))
    assert "plugins=peers" in shown
    assert "--config-dir=tests/parity/peers/conf" in shown
    published = "reports/published/peers_convbert-epyc-2026-11-23.jsonl"
    out = ("--out", str(tmp_path / "report"))
    assert "peers-step.md" in lra("report", "--rows", published, *conf, "--plugin", "peers", *out)
