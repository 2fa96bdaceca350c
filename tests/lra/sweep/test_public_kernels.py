"""From hardware.kernels on the command line to rows, keys and tables, with kernels of a plug-in."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from small_sweeps import BRIEF, run, settled

import lra.models.kernels.providers
import lra.models.kernels.session
from lra.composition.hydra_entry import entries
from lra.execution.executor import _describe
from lra.models.kernels.door import kernel_labels, session_is_open
from lra.runners.records import Cell
from lra.runners.store import read_rows
from lra.sweep.cell_list import build
from lra.sweep.cells import run_cell
from lra.sweep.sweep import Sweep
from tests.lra_process import python

PLUGIN = """\
from lra.models.families.gla import GLA
from lra.models.families.sdpa import SDPA
from lra.models.kernels import providers, session
from tests.models.kernels.fake_kernels import DECAYED, planted, table

KERNELS = table({kernel})
session.all_kernels = providers.all_kernels = lambda: KERNELS
"""
"""A module that a cell's process imports with its mixer; it puts other kernels into the table."""
TRAINED = ("runner=train", "model=gla", "runner.evaluate_splits=[test]")
TIMED = (*BRIEF, "runner.lengths=[32]", "runner.modes=[step]", "model=gla", "runner=scaling")

Plug = Callable[..., tuple[str, str]]


@pytest.fixture
def plug(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plug:
    """Return a function that writes a plug-in with a kernel, and returns the words that use it."""
    for module in (lra.models.kernels.session, lra.models.kernels.providers):  # undone at the end
        monkeypatch.setattr(module, "all_kernels", lra.models.kernels.providers.all_kernels)
    monkeypatch.syspath_prepend(tmp_path)

    def write(name: str, kernel: str = "DECAYED", family: str = "GLA") -> tuple[str, str]:
        (tmp_path / f"{name}.py").write_text(PLUGIN.format(kernel=kernel))
        return f"plugins=[{name}]", f"model.mixer.class_path={name}.{family}"

    return write


def labelled(rows: pd.DataFrame, metric: str) -> dict[str, Any]:
    """Return the labels of the only row of a metric."""
    (labels,) = rows[(rows["metric"] == metric) & rows["step"].isna()]["labels"]
    return dict(labels)


def test_a_training_and_its_costs_say_which_kernel_ran(
    tmp_path: Path, plug: Plug, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (*plug("kernels_a"), "-m", "hardware.kernels=own,auto")
    assert run(tmp_path / "trained", *words, *TRAINED) == 0
    assert run(tmp_path / "timed", *words, *TIMED, "report=true") == 0
    trained, timed = (read_rows(tmp_path / name) for name in ("trained", "timed"))
    for rows in (trained, timed):
        assert set(rows["status"]) == {"ok"}
        assert rows["cell"].nunique() == 2
    for rows, metric in ((trained, "train_time"), (timed, "time")):
        found = {
            labels.get("hardware.kernels"): (labels.get("kernels", ""), labels.get("forms"))
            for labels in rows[rows["metric"] == metric]["labels"]
        }
        assert found[None] == ("", None)
        name = found["auto"][0]
        assert name.startswith("decayed_product: numpy 2.")
        assert name.endswith(" recurrence")
        assert found["auto"][1] == "public"
    chosen = trained["labels"].map(lambda labels: dict(labels).get("hardware.kernels"))
    assert (chosen.groupby(trained["cell"]).nunique(dropna=False) == 1).all()
    # Both forms count the same operations, because a kernel's own are invisible.
    assert timed[timed["metric"] == "flops"]["value"].nunique() == 1
    text = capsys.readouterr().out
    assert "gla (public kernels)" in text
    (table,) = tmp_path.glob("timed/reports/*/efficiency-step.csv")
    models = table.read_text()
    assert "gla (public kernels)" in models
    assert models.count("public kernels") < models.count("gla")


def test_other_runners_say_it_too(tmp_path: Path, plug: Plug) -> None:
    short = [word for word in BRIEF if "warmup" not in word and "timed" not in word]
    words = (*plug("kernels_b"), "hardware.kernels=public", "model=gla", "runner.lengths=[32]")
    assert run(tmp_path / "d", *words, *short, "runner=decode", "runner.modes=[state]") == 0
    assert run(
        tmp_path / "p", *words, *BRIEF, "runner=parallel", "runner.modes=[weak]"
    ) == 0  # fmt: skip
    for name, metric in (("d", "token_time"), ("p", "train_step_time")):
        labels = labelled(read_rows(tmp_path / name), metric)
        assert labels["forms"] == "public"
        assert labels["hardware.kernels"] == "public"


@pytest.mark.parametrize(
    "case",
    [
        ("DECAYED", "SDPA", "this model has no operation with a public kernel"),
        ("planted(DECAYED, 'scale')", "GLA",
         "no public kernel computes decayed_product here (recurrence: output 1 differs by "),
    ],
)  # fmt: skip
@pytest.mark.parametrize("words", [TRAINED, TIMED], ids=["train", "scaling"])
def test_what_cannot_be_public_is_a_row(
    tmp_path: Path, plug: Plug, case: tuple[str, str, str], words: tuple[str, ...]
) -> None:
    kernel, family, reason = case
    name = f"kernels_{family.lower()}_{len(words)}"
    words = tuple(f"model={family.lower()}" if word == "model=gla" else word for word in words)
    run(tmp_path / "results", *words, *plug(name, kernel, family), "hardware.kernels=public")
    rows = read_rows(tmp_path / "results")
    (row,) = rows[rows["status"] != "ok"].to_dict("records")
    assert row["status"] == "unsupported"
    assert reason in row["reason"]
    assert "kernels=auto" in row["reason"]
    assert dict(row["labels"])["hardware.kernels"] == "public"


def test_auto_falls_back_with_the_reason_and_the_numbers_of_our_form(
    tmp_path: Path, plug: Plug
) -> None:
    """A planted kernel computes nothing, so that all numbers are those of our form to the bit."""
    words = (*plug("kernels_c", "planted(DECAYED, 'order')"), "-m", "hardware.kernels=own,auto")
    assert run(tmp_path, *words, *TRAINED) == 0
    rows = read_rows(tmp_path)
    (kernels,) = {labels["kernels"] for labels in map(dict, rows["labels"]) if "kernels" in labels}
    assert kernels.startswith("decayed_product: own (recurrence: output 1 differs by ")
    assert "allowed: 0.005 and 0.001" in kernels
    same_numbers(tmp_path)


def test_our_forms_run_on_a_cpu_with_auto_as_with_own(tmp_path: Path) -> None:
    """The real table: every kernel of it refuses a CPU."""
    assert run(tmp_path, "-m", "hardware.kernels=own,auto", *TRAINED) == 0
    same_numbers(tmp_path)
    labels = read_rows(tmp_path)["labels"].map(dict)
    (kernels,) = {each["kernels"] for each in labels if "kernels" in each}
    assert "it runs on cuda only" in kernels
    assert run(tmp_path, "hardware.kernels=public", *TRAINED) == 1
    rows = read_rows(tmp_path)
    (reason,) = rows[rows["status"] == "unsupported"]["reason"]
    assert "it runs on cuda only" in reason
    assert "hardware.kernels=auto uses our PyTorch operation" in reason


def same_numbers(results: Path) -> None:
    """Check that the two cells of a sweep have the same rows apart from labels."""
    rows = settled(results)
    numbers = [
        cell.drop(columns=["cell", "labels", "fingerprint"]).sort_values(
            ["metric", "step"], ignore_index=True
        )
        for _, cell in rows.groupby("cell")
    ]
    assert len(numbers) == 2
    assert len(numbers[0]) > 3
    pd.testing.assert_frame_equal(*numbers, check_exact=True)


def sweep_of(*words: str) -> Sweep:
    return build(entries([*words, "task=listops", "task.source=sample", "logger=none"]))


def planned(*words: str) -> list[Cell]:
    return list(sweep_of(*words).cells)


def test_a_session_ends_with_its_run_also_with_an_error(tmp_path: Path, plug: Plug) -> None:
    words = (*plug("kernels_d"), "hardware.kernels=auto", f"results={tmp_path}", *TIMED)
    sweep = sweep_of(*words, "runner.references=[]")
    argument = {**_describe(sweep.planned[0], sweep.store), "probed": False, "logged": None}
    seen = []

    def stop(message: object) -> None:
        seen.append(session_is_open())
        if kernel_labels():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_cell(argument, stop)
    assert seen[-1]
    assert not session_is_open()


def test_keys_have_the_choice_and_the_versions_of_packages_where_it_is_not_own(
    plug: Plug, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugged = plug("kernels_e")
    for words in (TRAINED, TIMED):
        (own,) = planned(*words, *plugged)
        (named,) = planned(*words, *plugged, "hardware.kernels=own")
        (auto,) = planned(*words, *plugged, "hardware.kernels=auto")
        (public,) = planned(*words, *plugged, "hardware.kernels=public")
        assert own.key == named.key
        assert "kernels" not in own.identity
        assert own.described["kernels"] == "own"
        assert auto.identity["kernels"] == "auto"
        assert {*auto.identity["kernel_versions"]} == {"numpy"}
        assert len({own.key, auto.key, public.key}) == 3
        with monkeypatch.context() as newer:
            newer.setattr(
                lra.models.kernels.providers, "installed_versions", lambda: {"numpy": "9.9"}
            )
            (other,) = planned(*words, *plugged, "hardware.kernels=auto")
        assert other.key != auto.key


def test_sources_of_kernels_are_in_the_fingerprint_where_they_are_wanted() -> None:
    (own,) = planned(*TRAINED)
    (auto,) = planned(*TRAINED, "hardware.kernels=auto")
    added = {*auto.sources} - {*own.sources}
    assert {"models.kernels.session", "models.kernels.comparison"} <= added
    assert auto.fingerprint != own.fingerprint


OWN_IMPORTS = """\
import sys
from lra.composition.hydra_entry import entries
from lra.execution.executor import _describe
from lra.sweep.cell_list import build
from lra.sweep.cells import run_cell
sweep = build(entries(sys.argv[1:]))
argument = {**_describe(sweep.planned[0], sweep.store), "probed": False, "logged": None}
rows = []
run_cell(argument, rows.append)
assert any(type(row).__name__ == "Measurement" for row in rows)
loaded = {name for name in sys.modules if name.startswith("lra.models.kernels")}
assert loaded == {"lra.models.kernels", "lra.models.kernels.door"}, loaded
assert not {"fla", "triton"} & {*sys.modules}
from lra.models.kernels.providers import all_kernels
assert all_kernels()
assert not {"fla", "triton"} & {*sys.modules}
"""


def test_a_run_of_our_forms_imports_no_adapter(tmp_path: Path) -> None:
    words = [f"results={tmp_path}", *TIMED, "runner.references=[]", "logger=none"]
    words += ["task=listops", "task.source=sample"]
    done = python("-c", OWN_IMPORTS, *words)
    assert done.returncode == 0, done.stderr
