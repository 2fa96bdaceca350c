"""What is kept of counts between commands: the same answer, and nothing counted twice."""

from pathlib import Path

import pytest

from lra.composition.hydra_entry import entries
from lra.models.contract.trace import Tracer
from lra.runners.runner import OWN, Passes
from lra.sweep import kept_counts
from lra.sweep.cell_list import build
from lra.sweep.costs import Costs
from lra.sweep.kept_counts import KeptCounts, _list_modules

STEP = Passes(1, 2, 64, True, measured=True)


@pytest.fixture
def traced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The passes that are counted, with a cache of the test's own."""
    monkeypatch.setenv("LRA_DATA", str(tmp_path / "cache"))
    seen: list[object] = []
    trace = Tracer.trace
    monkeypatch.setattr(
        Tracer, "trace", lambda *args, **how: (seen.append(args), trace(*args, **how))[1]
    )
    return seen


def run_of(*words: str):
    return build(entries(["model=linear", *words]), elsewhere=True).planned[0].run


def command(*passes: Passes, quick: bool = False) -> list[object]:
    """What a new command finds."""
    costs, run = Costs(kept=KeptCounts(), quick=quick), run_of()
    found = [costs.of(run, each) for each in passes]
    costs.keep()
    return found


def test_no_pass_is_counted_by_a_second_command(traced: list[object]) -> None:
    passes = (STEP, STEP._replace(step=False), STEP._replace(name="sdpa"))
    first, count = command(*passes), len(traced)
    assert count >= len(passes)
    assert command(*passes) == first
    assert len(traced) == count
    assert Costs().of(run_of(), STEP) == first[0], "to the last digit"


def test_a_quick_count_is_not_taken_for_a_whole_one(traced: list[object]) -> None:
    command(STEP, quick=True)
    count = len(traced)
    command(STEP)
    assert len(traced) > count


@pytest.mark.parametrize("part", ["sources", "version"])
def test_other_sources_or_another_pytorch_are_counted_anew(
    part: str, traced: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    command(STEP)
    count = len(traced)
    if part == "sources":
        digests = kept_counts.digests
        monkeypatch.setattr(
            kept_counts, "digests", lambda *args: {**digests(*args), "models.mixer": "changed"}
        )
    else:
        monkeypatch.setattr(kept_counts, "version", lambda _: "99.0")
    command(STEP)
    assert len(traced) > count


def test_a_damaged_file_counts_for_nothing(traced: list[object]) -> None:
    first, count = command(STEP), len(traced)
    file = KeptCounts().file
    content = file.read_bytes()
    file.write_bytes(content.replace(b"0", b"1"))
    assert command(STEP) == first
    assert len(traced) == 2 * count


def test_two_commands_keep_what_both_counted(traced: list[object]) -> None:
    one, other = (Costs(kept=KeptCounts()) for _ in range(2))
    one.of(run_of(), STEP)
    other.of(run_of(), STEP._replace(step=False))
    one.keep()
    other.keep()
    count = len(traced)
    command(STEP, STEP._replace(step=False))
    assert len(traced) == count


def test_the_classes_of_all_layers_and_of_a_reference_are_followed() -> None:
    mixed = run_of("model.backbone.depth=2", "model.layers=[linear,softmax]")
    families = {"models.families.linear", "models.families.softmax"}
    assert {*_list_modules(mixed, OWN)} == families
    assert {*_list_modules(mixed, "fnet")} == {"models.families.fnet"}


def test_a_class_without_sources_is_counted_each_time(
    traced: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_counts, "_list_modules", lambda *_: ["no_such_module"])
    command(STEP)
    count = len(traced)
    command(STEP)
    assert len(traced) == 2 * count
