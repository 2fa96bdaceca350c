"""What a cell will take: more for more, corrected by what was stored, and unknown by name."""

import re
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from lra.composition.hydra_entry import entries
from lra.models.mixer import Unsupported
from lra.runners.measurement.hardware import Device
from lra.runners.records import Measurement, Status
from lra.runners.runner import Passes, Uncounted
from lra.runners.store import Store
from lra.runners.training.optim import OptimConfig, Optimiser
from lra.runners.training.optimisers import build as build_module
from lra.sweep import costs as costs_module
from lra.sweep.cell_list import build
from lra.sweep.costs import Costs, moments
from lra.sweep.forecast import Forecaster
from lra.sweep.overview import _expect, refusals
from lra.sweep.past import Past, past_cells
from lra.sweep.planned_cells import reference_shares
from lra.sweep.work import CellWork

TIMED = ("linear", "fnet", "softmax", "sdpa")
SMALL = ("task=listops", "task.source=sample", "optim.warmup_steps=0", "optim.steps=50")


def planned(*words: str):
    return build(entries([*SMALL, *words]), elsewhere=True).planned


def forecast(*words: str):
    return Forecaster().of(planned(*words)[0])


@pytest.mark.parametrize("hardware", ["cpu", "h100"])
def test_more_rows_longer_rows_more_layers_and_more_steps_take_longer(hardware) -> None:
    words = ("model=linear", f"hardware={hardware}", "task.source=generated", "optim.batch_size=64")
    less = forecast(*words, "task.max_length=2000")
    for more in ("optim.batch_size=512", "task.max_length=8000", "model.backbone.depth=20"):
        found = forecast(*words, "task.max_length=2000", more)
        assert found.seconds > less.seconds, more
        assert found.need_bytes > less.need_bytes, more
    longer = forecast(*words, "task.max_length=2000", "optim.steps=500")
    assert longer.step_s == less.step_s
    assert longer.seconds - less.seconds == pytest.approx(450 * less.step_s)


def test_micro_batches_need_less_and_keep_a_gpu_waiting() -> None:
    words = ("hardware=h100", "optim.batch_size=64")
    whole, parts = (forecast(*words, f"optim.micro_batch_size={rows}") for rows in (64, 8))
    assert parts.peak_bytes < whole.peak_bytes / 4
    assert parts.step_s > whole.step_s


def test_half_precision_needs_less() -> None:
    words = ("model=sdpa", "hardware=h100", "task.source=generated", "task.max_length=2000")
    half, full = (forecast(*words, f"hardware.precision={p}") for p in ("bfloat16", "float32"))
    assert half.peak_bytes < full.peak_bytes


@pytest.mark.parametrize(
    "model", ["softmax", "linear", "performer", "local", "sinkhorn", "sparse_transformer"]
)
def test_the_straight_line_through_few_rows_and_layers_is_the_count(model, monkeypatch) -> None:
    """Of operations exactly; bytes, calls and memory near, for work is cut into whole pieces."""
    ((one,)) = planned(
        f"model={model}", "model.backbone.depth=3", "runner=scaling", "runner.modes=[step]",
        "runner.lengths=[256]",
    )  # fmt: skip
    costs, many = Costs(), Passes(1, 16, 256, True, measured=True)
    monkeypatch.setattr(costs_module, "PROBE_TOKENS", {Device.cpu: 1024})
    line = costs.of(one.run, many)
    monkeypatch.setattr(costs_module, "_has_equal_layers", lambda *_: False)
    monkeypatch.setattr(costs_module, "PROBE_TOKENS", {Device.cpu: 16 * 256})
    counted = Costs().of(one.run, many)
    assert line.work.products == pytest.approx(counted.work.products, rel=1e-3)
    assert sum(line.work[1:5]) == pytest.approx(sum(counted.work[1:5]), rel=0.1)
    assert line.work.operators == pytest.approx(counted.work.operators, rel=0.4)
    assert line.peak_bytes == pytest.approx(counted.peak_bytes, rel=0.5)


def test_every_pass_of_a_loop_is_counted_and_its_parameters_once() -> None:
    words = ("model=linear", "model.backbone.loop_first=0", "model.backbone.depth=3")
    looped, shorter, plain = (
        Costs().of(planned(*options)[0].run, Passes(1, 4, 150, True))
        for options in (
            (*words, "model.backbone.loop_passes=4"),
            (*words, "model.backbone.loop_passes=4", "model.backbone.loop_back_passes=1"),
            ("model=linear", "model.backbone.depth=12"),
        )
    )
    assert looped.work.products == pytest.approx(plain.work.products, rel=1e-6)
    assert looped.resident_bytes < plain.resident_bytes / 2
    # Three passes have a forward pass alone, and store nothing for a backward one.
    assert shorter.work.products < 0.6 * looped.work.products
    assert shorter.peak_bytes < 0.6 * looped.peak_bytes


def test_attention_over_depth_is_counted_in_all_layers() -> None:
    found = [
        forecast("model=linear", "model.backbone.residual=attention", f"model.backbone.depth={n}")
        for n in (2, 4, 6)
    ]
    first, second = (b.step_s - a.step_s for a, b in pairwise(found))
    assert second > 1.02 * first  # later layers read more sources


def test_a_reference_is_no_part_of_what_a_model_needs_and_does_not_refuse_it(monkeypatch) -> None:
    cost = ("model=linear", "runner=scaling", "runner.lengths=[512]", "runner.modes=[step]")
    alone, both = forecast(*cost, "runner.references=[]"), forecast(*cost)
    assert both.need_bytes == alone.need_bytes == alone.whole_bytes
    assert both.whole_bytes == both.reference_need_bytes > both.need_bytes
    (one,) = planned(*cost, f"hardware.memory_limit_bytes={both.whole_bytes - 1}")
    said = _expect(Forecaster().of(one))[1]
    assert re.search("the reference softmax needs .* GiB of memory, but only", said)
    of = Costs.of

    def refusing(self, run, passes):
        if passes.name == "softmax":
            raise Unsupported("planted")
        return of(self, run, passes)

    monkeypatch.setattr(Costs, "of", refusing)
    found = forecast(*cost)
    assert (found.basis, found.need_bytes, found.reference) == ("counted", alone.need_bytes, "sdpa")


def test_cells_that_are_compared_take_each_reference_once() -> None:
    cost = ("runner=scaling", "runner.lengths=[64]", "runner.modes=[step]")

    def seconds(models: str, *words: str, together: bool = True) -> list[float]:
        cells = planned("-m", *cost, f"model={models}", *words)
        forecaster = Forecaster(together=cells if together else ())
        return [forecaster.of(cell).seconds for cell in cells]

    own = dict(zip(TIMED, seconds(",".join(TIMED), "runner.references=[]"), strict=True))
    assert seconds(",".join(TIMED)) == pytest.approx([*own.values()])
    two = seconds("linear,fnet")
    alone = seconds("linear,fnet", together=False)
    references = alone[0] - own["linear"]
    assert references > 0
    assert sum(alone) - sum(two) == pytest.approx(references)
    # `softmax` is a model, and `sdpa` falls to both
    of_sdpa = alone[0] - seconds("linear", "runner.references=[softmax]")[0]
    beside = seconds("linear,softmax")
    assert beside[0] == pytest.approx(own["linear"] + of_sdpa / 2)
    assert beside[1] == pytest.approx(own["softmax"] + of_sdpa / 2)
    # another backbone, another seed: no reference of theirs
    apart = seconds("linear", "seed=0,1", "model.backbone.width=16,32")
    assert apart == seconds("linear", "seed=0,1", "model.backbone.width=16,32", together=False)


def test_what_a_compared_cell_took_corrects_its_own_share(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("lra.sweep.forecast.TELLING_S", 0.0)
    store, cells = Store(tmp_path), planned(
        "-m", "runner=scaling", "runner.modes=[step]", "model=linear,fnet", "runner.lengths=[64]"
    )  # fmt: skip
    shares = reference_shares(cells)
    assert shares == {"sdpa": 0.5, "softmax": 0.5}
    counted = Forecaster(together=cells).of(cells[0])
    keep(store, cells[0].cell, 2 * counted.seconds, reference_shares=shares)
    (past,) = past_cells(cells[:1], store, "adhoc")
    assert Forecaster([past]).ratios()[0][-1] == pytest.approx(2.0)
    keep(store, cells[0].cell, 2 * counted.seconds, reference_shares={"sdpa": "half"})
    assert [*past_cells(cells[:1], store, "adhoc")] == []


def keep(store: Store, cell, took_s: float, **more: object) -> None:
    row = Measurement(metric="accuracy", value=0.5, labels={"split": "test"})
    store.write(cell, [row], (), {"took_s": took_s, **more})


def test_stored_cells_correct_the_nearest_first(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("lra.sweep.forecast.TELLING_S", 0.0)
    monkeypatch.setattr("lra.sweep.forecast.MOST_SCALED", 5.0)
    store, (wanted,) = Store(tmp_path), planned("model=linear", "optim.steps=400")
    plain = Forecaster().of(wanted)
    assert plain.basis == "counted"

    def corrected() -> float:
        found = Forecaster([*past_cells([wanted], store, "adhoc")]).of(wanted)
        assert found.basis == "corrected"
        assert found.seconds == pytest.approx(plain.seconds * found.correction)
        return found.correction

    sizes = ("depth=1", "width=8", "feed_forward_width=8", "heads=1")
    tiny = planned("model=linear", "optim.batch_size=1", "task.max_length=24",
                   *(f"model.backbone.{size}" for size in sizes))[0]  # fmt: skip
    keep(store, tiny.cell, 90 * Forecaster().of(tiny).seconds)
    assert Forecaster([*past_cells([wanted], store, "adhoc")]).of(wanted).basis == "counted"
    other = planned("model=sdpa")[0]
    keep(store, other.cell, 3 * Forecaster().of(other).seconds)
    assert corrected() == pytest.approx(3.0)
    same = planned("model=linear", "optim.steps=100")[0]
    keep(store, same.cell, 2 * Forecaster().of(same).seconds)
    assert corrected() == pytest.approx(2.0)
    alike = planned("model=linear", "optim.steps=400", "seed=7")[0]
    keep(store, alike.cell, 123.0)
    found = Forecaster([*past_cells([wanted], store, "adhoc")]).of(wanted)
    assert (found.basis, found.seconds) == ("stored", 123.0)


def test_a_cell_of_a_few_steps_on_a_busy_machine_corrects_nothing(tmp_path: Path) -> None:
    store, wanted = Store(tmp_path), planned("model=linear", "optim.steps=400")
    short, long = (planned("model=linear", f"optim.steps={n}")[0] for n in (3, 4000))
    keep(store, short.cell, 90.0)
    past = [*past_cells(wanted, store, "adhoc")]
    assert Forecaster(past).of(wanted[0]).basis == "counted"
    late = Forecaster(past, Costs(until=0.0)).of(wanted[0])
    assert late.seconds is None
    keep(store, long.cell, 90.0)
    past = [*past_cells(wanted, store, "adhoc")]
    assert Forecaster(past, Costs(until=0.0)).of(wanted[0]).seconds == pytest.approx(9.0)
    assert Forecaster(past).of(wanted[0]).basis == "corrected"


def test_cells_of_another_machine_or_that_failed_correct_nothing(tmp_path: Path) -> None:
    (wanted,) = planned("model=linear", "optim.steps=400")
    other = planned("model=linear", "optim.steps=100")[0].cell
    for name in ("device", "hardware", "threads", "precision", "runner"):
        past = Past({**other.columns, name: "another"}, other.config, 99.0)
        assert Forecaster([past]).of(wanted).basis in ("counted", "scaled"), name
    store = Store(tmp_path)
    failed = Measurement(metric="accuracy", status=Status.crashed, reason="planted")
    store.write(other, [failed], (), {"took_s": 99.0})
    assert [*past_cells([wanted], store, "adhoc")] == []


def test_what_is_not_known_says_why() -> None:
    nothing = Forecaster().of(planned("runner=span")[-1])
    assert "does not declare" in nothing.reason
    assert nothing.seconds is None
    unknown = forecast("task=text8", "task.source=files", "model=linear")
    assert "lra data prepare" in unknown.reason
    refused = forecast("model=fnet", "model.backbone.padding=masked")
    assert refused.basis == "refused"
    assert "padding" in refused.reason
    nothing = forecast("~hardware.typical")
    assert "lra doctor --rates" in nothing.reason


def test_a_batch_without_a_row_for_each_process_is_refused_before_it_runs() -> None:
    found = forecast(
        "model=linear", "runner=parallel", "hardware.processes=4", "runner.modes=[strong]",
        "runner.lengths=[64]", "hardware.token_budget=64",
    )  # fmt: skip
    assert found.basis == "refused"
    assert "only 1 of 64 tokens" in found.reason


def test_refused_cells_are_named_with_their_reasons() -> None:
    masked = "model.backbone.padding=masked"
    cells = [*planned("model=fnet", masked), *planned("model=softmax", masked)]
    found = [(cell, Forecaster(costs=Costs(until=0.0)).of(cell)) for cell in cells]
    titles = {each.cell.key: each.cell.columns["model"] for each in cells}
    (line,) = refusals(found, titles)
    assert re.match(r"refused  fnet: .*padding", line)


def test_contents_that_decide_shapes_are_named_as_unknown(monkeypatch) -> None:
    from lra.models.families.softmax import SoftmaxAttention

    def looking(q, k, v, **_):
        return v * float(q.sum().item() > 0)

    monkeypatch.setattr(SoftmaxAttention, "attend_by", staticmethod(looking))
    assert "without data" in forecast("model=softmax").reason


def test_baselines_take_as_long_as_what_they_read_up_to_their_limit(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("LRA_DATA", str(tmp_path))
    certify = ("runner=certify", "task.source=generated")
    short, long, many = (
        forecast(*certify, f"task.max_length={length}", f"task.test_examples={examples}").seconds
        for length, examples in ((1000, 2000), (2000, 2000), (1000, 20_000))
    )
    assert 10 < short < min(long, many)
    assert forecast(*certify, "runner.timeout_s=7").seconds == 7
    (diagnostic,) = build(entries(["task=mqar", "runner=certify"]), elsewhere=True).planned
    assert Forecaster().of(diagnostic).seconds < 10  # frequencies, counted at once


def test_a_runner_may_say_nothing_or_fail_without_harm() -> None:
    (one,) = planned("model=linear")
    work = CellWork.planned(one.run, one.cell.columns)
    assert [p.step for p in one.run.runner.passes(work)] == [True, False, False]
    with pytest.raises(Uncounted, match="Certify"):
        planned("runner=certify")[0].run.runner.passes(work)


def test_moments_are_what_a_checkpoint_holds(monkeypatch) -> None:
    sgd = OptimConfig(optimiser=Optimiser.sgd)
    found = [moments(OptimConfig(optimiser=name)) for name in ("adamw", "lion", "adafactor")]
    assert [*found, moments(sgd)] == [2, 1, 0, 1]
    assert moments(replace(sgd, ema_decay=0.9)) == 2
    monkeypatch.setitem(build_module.REMEMBERED, Optimiser.sgd, ("step", "one", "two", "three"))
    assert moments(sgd) == 3


def test_a_runner_may_ask_nothing_of_a_model(monkeypatch) -> None:
    (one,) = planned("model=linear")
    monkeypatch.setattr(type(one.run.runner), "passes", lambda *_: [])
    with pytest.raises(Uncounted, match="Train runs no model"):
        Forecaster().counted(one.run, one.cell.columns)


def test_a_count_that_takes_too_long_ends_in_the_middle_of_a_pass() -> None:
    run = planned("model=linear", "model.backbone.depth=4")[0].run
    passes = Passes(1, 2, 64, True)
    costs = Costs(until=time.monotonic() + 3600)
    costs.of(run, passes)
    begun = Costs(until=time.monotonic() + 0.001)
    with pytest.raises(
        Uncounted, match="counting this run would take too long here; `lra plan` counts"
    ):
        begun.of(run, passes)
    begun.until = float("inf")
    assert begun.of(run, passes) == costs.of(run, passes)


def passes_of(*words: str):
    item = build(entries([*words, "optim.steps=50"]), elsewhere=True).planned[0]
    return item.run, item.run.runner.passes(CellWork.planned(item.run, item.cell.columns))


def test_only_judged_tokens_reach_the_output_layer() -> None:
    run, (step, *evaluations) = passes_of("task=mqar", "model=linear")
    assert {part.asked for part in (step, *evaluations)} == {4.0}
    less, more = (Costs().of(run, p).work.products for p in (step, step._replace(asked=None)))
    # Forward, and backward for both factors: a multiply-add is two operations.
    saved = 3 * 2 * step.rows * (64 - 4) * run.backbone.width * run.task.spec.classes
    assert more - less == pytest.approx(saved, rel=0.01)
    _, (step, *evaluations) = passes_of("task=mqar", "task.loss=all", "model=linear")
    assert step.asked is None
    assert evaluations[0].asked == 4
    _, (step, *_) = passes_of("task=enwik8", "model=linear")
    assert step.asked is None
    _, (step, *_) = passes_of("task=hops", "model=linear")  # at most ten words of a token
    assert 3 <= step.asked <= 10
    rows = "[{length: 64, pairs: 4, examples: 300}, {length: 128, pairs: 8, examples: 100}]"
    _, (step, *_) = passes_of("task=mqar", f"task.segments={rows}", "model=linear")
    assert step.asked == 5


@pytest.mark.parametrize(("task", "further"), [("automata", 1), ("order_graph", 13)])
def test_tasks_with_several_answers_need_further_passes(task: str, further: int) -> None:
    _, (step, judged, again, *_) = passes_of(f"task={task}", "model=linear")
    assert step.step
    assert again == judged._replace(times=judged.times * further, asked=None)
