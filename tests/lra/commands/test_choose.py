"""`lra choose`: counts as of `lra plan` and `lra show --cost`, numbers on record with sources."""

import json
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import lra
from lra.api.results import DamagedCell
from lra.cli import main
from lra.composition import catalogue
from lra.composition.binding import plain
from lra.models.contract.trace import Tracer
from lra.results import evidence
from lra.runners.records import Measurement
from lra.runners.runner import Passes
from lra.runners.store import Store
from lra.sweep.costs import Costs
from lra.sweep.family_costs import runs_of
from tests.lra.results.published_digest import PUBLISHED, digest_of
from tests.runners.storage.stored_cells import make_cell

ROW = {
    "schema": 2, "fingerprint": "a", "created": "2026-01-01T00:00:00.000Z", "task": "listops",
    "task_version": 1, "source": "generated", "length": 512, "seed": 0, "causal": False,
    "hardware": "cpu", "device": "Small CPU", "precision": "float32", "threads": 1,
    "status": "ok", "reason": "", "samples": [], "step": None,
}  # fmt: skip
DIGEST = evidence.DIGEST


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Be in an empty folder, where nothing is published."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(evidence, "DIGEST", tmp_path / "digest.json")
    publish(tmp_path, "none.jsonl")
    return tmp_path


def cost_rows(model: str, ratio: float, cell: str, **columns: object) -> list[dict[str, object]]:
    """Return the rows of one timing."""
    common = {**ROW, "runner": "scaling", "mode": "step", "model": model, "cell": cell, **columns}
    time = {"metric": "time", "value": 0.5, "unit": "s", "labels": {}}
    compared = {"metric": "time_ratio", "value": ratio, "unit": "ratio"}
    return [{**common, **time}, {**common, **compared, "labels": {"reference": "sdpa"}}]


def score_rows(model: str, accuracy: float, cell: str) -> list[dict[str, object]]:
    """Return the rows of one training."""
    common = {**ROW, "runner": "train", "mode": "train", "model": model, "cell": cell}
    labels = {"split": "test", "examples": "100"}
    seen = {"metric": "examples_seen", "value": 640.0, "unit": "1", "labels": {}}
    judged = {"metric": "accuracy", "value": accuracy, "unit": "fraction", "labels": labels}
    return [{**common, **seen}, {**common, **judged}]


def publish(folder: Path, name: str, *rows: list[dict[str, object]]) -> None:
    lines = [json.dumps(row, separators=(",", ":")) for part in rows for row in part]
    (folder / "published").mkdir(exist_ok=True)
    (folder / "published" / name).write_text("\n".join(lines) + "\n")
    (folder / "digest.json").write_text(digest_of(folder / "published"))


def test_a_screen_as_it_is_printed(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(folder, "one.jsonl", cost_rows("linear", 0.25, "a"), score_rows("linear", 0.5, "b"))
    models = "model=softmax,sdpa,linear,fnet,reformer"
    limit = "hardware.memory_limit_bytes=100000000"
    words = ["length=1024", "hardware=a100", "task=listops", models, limit]
    monkeypatch.setattr("lra.terminal.progress.PATIENCE_S", 0.0)
    assert main(["choose", *words]) == 0
    text, progress = capsys.readouterr()
    assert "counting families: 1 of 5\n" in progress
    assert text.startswith(
        "1,024 tokens, bidirectional, batch 1; 2 layers of width 64, 2 heads, networks of 128 "
        "(this is size=tiny, the default; another size may change the order); task=listops, "
        "hardware=a100 (bfloat16, 0.1 GiB)\nranked by the time of a training"
    )
    table = text.split("\n\n")[1].splitlines()
    assert (
        " ".join(table[0].split()) == "model params kMAC reach GiB step prefill x sdpa rows paper"
    )
    assert max(map(len, table)) < 80
    linear = next(line.split() for line in table if line.startswith("linear"))
    assert re.fullmatch(r"\(0\.25\)\[\w\] 50\[\w\] 16\.1\[\w\]", " ".join(linear[7:]))
    assert "512 tokens, bidirectional, Small CPU, float32: reports/published/one.jsonl" in text
    assert "accuracy after 640 training examples, generated, version 1: reports/pub" in text
    assert "] accuracy, arXiv:2011.04006, table 1" in text
    assert "Forecasts and measured times are those of our PyTorch operations" in text
    assert "does not fit" not in text

    limit = "hardware.memory_limit_bytes=20000000"
    words = ["length=1024", "hardware=a100", "task=text8", models, limit, "size=tiny"]
    assert main(["choose", *words, "--by", "state"]) == 0
    text = capsys.readouterr().out
    assert "default" not in text
    table = text.split("\n\n")[1].splitlines()
    assert "model params kMAC reach GiB step prefill token state" in " ".join(table[0].split())
    assert [line.split()[0] for line in table[1:]] == ["linear", "sdpa", "reformer", "softmax"]
    assert "each new token needs a pass over the whole text: reformer" in text
    assert text.endswith("are excluded, as they have no causal form: fnet\n")
    assert (
        "than the machine has, so try a smaller batch=N: softmax" in text
    )  # so that it is last, whatever it is ranked by
    assert re.search(r"softmax.* 0\.\d\d! ", text)
    assert {path.name for path in folder.iterdir()} == {"digest.json", "published"}


def test_scores_are_those_of_what_was_asked(capsys: pytest.CaptureFixture[str]) -> None:
    models = "model=linear,s5"
    for words, said in (
        (["length=256"], "scores are missing because you named no task"),
        (
            ["length=256", "causal", "task=listops"],
            "only bidirectional models have scores on listops",
        ),
    ):
        assert main(["choose", *words, models]) == 0
        text = capsys.readouterr().out
        assert said in text
        assert "kernels" not in text
        assert not {"rows", "paper"} & {*text.split("\n\n")[1].splitlines()[0].split()}
        assert main(["choose", *words, models, "--by", "quality"]) == 2
        assert said in capsys.readouterr().err
    with pytest.raises(
        ValueError, match="by=token ranks causal models only; add the argument causal"
    ):
        lra.choose(256, model="linear", by="token")


def test_an_interrupted_command_goes_on_where_it_was(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("LRA_DATA", str(tmp_path / "cache"))
    monkeypatch.setattr("lra.terminal.progress.PATIENCE_S", 0.0)
    monkeypatch.setattr("lra.sweep.family_costs.MANY", 3)
    trace, left, begun = Tracer.trace, [2], list[object]()

    def interrupted(*args: Any, **how: Any) -> object:
        begun.append(args)
        if len(begun) > left[0]:
            raise KeyboardInterrupt
        return trace(*args, **how)

    monkeypatch.setattr(Tracer, "trace", interrupted)
    words = ["choose", "length=64", "model=linear,fnet,light_conv", "--json"]
    assert main(words) == 130
    out, said = capsys.readouterr()
    assert out == ""
    assert "counting families (to count only two, set model=linear,s4): 1 of 3\n" in said
    begun.clear()
    left[0] = 4
    assert main(words) == 0
    assert len(begun) == 4, "two passes of each family that was not through"


def test_reach_and_the_time_of_a_token() -> None:
    models = ("light_conv", "sdpa", "reformer", "cosformer")
    frame = lra.choose(512, model=models, causal=True, by="token").set_index("model")
    assert [*frame["reach"][[*models]]] == [2 * 30, 512, 512, 512]
    whole = frame["token_s"] / frame["prefill_s"]
    assert whole["reformer"] == 1  # which has no state
    assert whole.drop("reformer").max() < 1
    longer = lra.choose(4096, model=models[:2], causal=True).set_index("model")["token_s"]
    grown = longer / frame["token_s"][longer.index]
    assert grown["light_conv"] == pytest.approx(1, rel=0.02)  # its state is as large
    assert grown["sdpa"] > 1.05


@pytest.mark.parametrize("hardware", ["cpu", "a100"])
def test_fused_kernels_skip_what_lies_above_the_diagonal(hardware: str) -> None:
    both, causal = (
        lra.choose(65536, model="sdpa", hardware=hardware, causal=one).iloc[0]
        for one in (False, True)
    )
    assert causal["multiply_adds"] == pytest.approx(both["multiply_adds"], rel=0.02)
    assert causal["step_s"] == pytest.approx(both["step_s"] / 2, rel=0.1)


@pytest.mark.parametrize("hardware", ["cpu", "a100"])
def test_to_read_a_text_takes_less_than_to_train_on_it(hardware: str) -> None:
    """Also where a word is one of thousands, the best of which an evaluation looks for."""
    words: dict[str, Any] = {"task": "mqar", "model": ("linear", "sdpa"), "hardware": hardware}
    frame = lra.choose(2048, **words)
    assert (frame["prefill_s"] < 0.7 * frame["step_s"]).all()


def test_the_memory_of_ones_own_card_is_one_word(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["choose", "length=4096", "hardware=laptop_gpu", "model=softmax", "batch=128", "--json"]
    for gib, fits in ((1, False), (1000, True)):
        assert main([*words, f"gib={gib}"]) == 0
        found = json.loads(capsys.readouterr().out)
        (line,) = found["families"]
        assert (line["room_bytes"], line["fits"]) == (gib * 2**30, fits)
        assert f"{gib}.0 GiB)" in found["setting"]


def test_numbers_are_those_of_plan_and_of_show_cost(capsys: pytest.CaptureFixture[str]) -> None:
    common = ["task=listops", "hardware=a100"]
    words = ["choose", "length=2048", *common, "model=linear,s4,local", "batch=4", "--json"]
    assert main(words) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["schema"], found["by"]) == (1, "forecast")
    lines = {line["model"]: line for line in found["families"]}
    runner = "runner=scaling runner.lengths=[2048] runner.modes=[step] runner.batch=fixed"
    scaling = [*runner.split(), "runner.batch_size=4", "runner.references=[]"]
    assert main(["plan", "-m", "model=linear,s4,local", *common, *scaling, "--json"]) == 0
    for cell in json.loads(capsys.readouterr().out)["cells"]:
        line = lines[cell["model"]]
        assert (line["step_s"], line["fits"]) == (cell["step_s"], True)
        assert line["parameters"] == cell["parameters"]
        assert (line["memory_bytes"], line["room_bytes"]) == (
            cell["need_bytes"],
            cell["room_bytes"],
        )
    words = ["show", "--cost", "model=linear,s4,local", *common, "--lengths", "2048", "--json"]
    assert main(words) == 0
    for model in json.loads(capsys.readouterr().out)["models"]:
        each = lines[model["model"]]["multiply_adds"]
        assert each * 2048 == pytest.approx(model["multiply_adds"], rel=1e-6)
        assert lines[model["model"]]["parameters"] == model["parameters"]


def test_states_are_those_that_were_measured() -> None:
    frame = lra.choose(4096, model=("linear", "sliding_window"), causal=True).set_index("model")
    rows = lra.rows(PUBLISHED / "decode-epyc-2026-11-22.jsonl")
    measured = rows[(rows["metric"] == "state_bytes") & (rows["length"] == 4096)]
    for model in frame.index:
        assert {frame["state_bytes"][model]} == set(measured["value"][measured["family"] == model])


@pytest.mark.parametrize("model", ["lstm", "slstm", "ttt"])
def test_what_goes_token_by_token_is_counted_at_short_lengths(model: str) -> None:
    (run,) = runs_of(["length=1536", f"model={model}", "causal", "depth=1"])
    step = Passes(1, 1, 1536, step=True, measured=True)
    quick, whole = Costs(quick=True).of(run, step), Costs().of(run, step)
    assert quick != whole
    assert quick.work.products == pytest.approx(whole.work.products, rel=1e-6)
    assert quick.work.operators == pytest.approx(whole.work.operators, rel=1e-3)
    assert quick.peak_bytes == pytest.approx(whole.peak_bytes, rel=0.14)
    assert quick.resident_bytes == whole.resident_bytes


FORMS = (
    ("mamba", 16384, "size=base hardware=a100 causal"),  # scans of about 3 sqrt(n) operators
    ("delta_net", 2048, "size=base"),  # cut into blocks by what a CPU holds
    ("mesa_net", 2048, "size=base"),
    ("mamba3", 2048, "size=base"),  # sums of angles are cut into blocks
    ("linear", 2048, ""),
    ("softmax", 2048, ""),
)


@pytest.mark.parametrize(("model", "length", "words"), FORMS)
def test_a_screen_counts_what_a_plan_counts(model: str, length: int, words: str) -> None:
    (run,) = runs_of([f"length={length}", f"model={model}", "depth=1", *words.split()])
    step = Passes(1, 1, length, step=True, measured=True)
    assert Costs(quick=True).of(run, step) == Costs().of(run, step)


def test_the_nearest_rows_count(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = {"hardware": "h100", "device": "Large GPU", "causal": True}
    publish(
        folder,
        "two.jsonl",
        cost_rows("linear", 0.4, "a", length=2048),
        cost_rows("linear", 0.3, "b", length=1024),
        cost_rows("linear", 0.2, "c", length=1024, causal=True),
        cost_rows("linear", 0.1, "d", length=1024, **gpu),
        score_rows("linear", 0.5, "e"),
        score_rows("fnet", 0.7, "f"),
    )
    words: dict[str, Any] = {"model": ("linear", "fnet", "sdpa", "identity"), "task": "listops"}
    frame = lra.choose(1024, **words, by="quality").set_index("model")
    assert [*frame.index] == ["sdpa", "linear", "fnet", "identity"]  # papers, rows, nothing
    assert frame["time_ratio"]["linear"] == 0.3
    assert frame["time_ratio_source"]["sdpa"] == "exact attention itself"
    assert frame["score"]["fnet"] == pytest.approx(70.0)
    assert pd.isna(frame["time_ratio"]["identity"])
    assert frame["time_ratio_source"]["identity"] == frame["paper_score_source"]["fnet"] == ""
    on_gpu = lra.choose(1024, hardware="a100", causal=True, by="time", **words)
    assert on_gpu.set_index("model")["time_ratio"]["linear"] == 0.1  # of a GPU, whatever direction
    assert [*on_gpu["model"]] == ["linear", "sdpa", "identity", "fnet"]
    alike = on_gpu.set_index("model")["time_ratio_alike"]
    assert [alike["linear"], alike["sdpa"], alike["fnet"]] == [True, True, False]
    both_ways = lra.choose(1024, hardware="a100", by="time", **words)
    assert [*both_ways["model"]][:2] == ["sdpa", "linear"]  # 0.1 is of the other direction

    own = pd.DataFrame(
        [*cost_rows("linear", 0.9, "g", length=256), *score_rows("linear", 0.2, "h")]
    ).assign(family="linear", options=[{}] * 4)
    (folder / "results/cells").mkdir(parents=True)
    monkeypatch.setattr(evidence, "stored_rows", lambda *_: (own, {}, []))
    frame = lra.choose(1024, **words).set_index("model")
    assert (frame["time_ratio"]["linear"], frame["score"]["linear"]) == (0.9, 20.0)
    assert frame["score_source"]["linear"].endswith(": results")


def test_a_step_measured_at_this_very_setting_wins_over_the_forecast(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run,) = runs_of(["length=1024", "hardware=h100", "model=linear"])
    gpu: dict[str, Any] = {"hardware": "h100", "device": "Large GPU", "precision": "bfloat16"}
    names = {"linear": "a", "softmax": "b"}
    rows = [cost_rows(name, 0.5, cell, length=1024, **gpu) for name, cell in names.items()]
    rows[1][0] |= {"value": None, "status": "out_of_memory", "reason": "no room"}
    described = {
        "device": "cuda", "backbone": plain(run.backbone), "runner": {"batch_size": None},
        "machine": {"token_budget": 2048},
    }  # fmt: skip
    cell = {"identity": {"mixer": {"version": 1}}, "described": described}
    (folder / "published").mkdir(exist_ok=True)
    about = json.dumps({"a": cell, "b": cell})
    (folder / "published/gpu.json").write_text(about)
    publish(folder, "gpu.jsonl", rows[0], rows[1][:1])
    words: dict[str, Any] = {"hardware": "h100", "model": ("softmax", "linear")}
    frame = lra.choose(1024, batch=2, **words).set_index("model")
    assert [*frame.index] == ["linear", "softmax"]
    assert (frame["step_s"]["linear"], frame["fits"]["linear"]) == (0.5, True)
    assert frame["step_source"]["linear"].startswith("1,024 tokens, bidirectional, Large GPU")
    assert not frame["fits"]["softmax"]
    assert frame["step_source"]["softmax"].startswith("out of memory: 1,024 tokens")
    for other in ({"batch": 1}, {"batch": 2, "depth": 3}, {"batch": 2, "causal": True}):
        frame = lra.choose(1024, **other, **words)
        assert [*frame["step_source"]] == ["", ""]
        assert frame["fits"].all()
    assert main(["choose", "length=1024", "hardware=h100", "batch=2", "model=softmax,linear"]) == 0
    text = capsys.readouterr().out
    assert re.search(r"linear .* 500ms\[a\]", text)
    assert re.search(r"softmax .* OOM\[\w\]", text)
    assert main(["choose", "length=1024", "hardware=h100", "causal", "model=linear"]) == 0
    assert re.search(r"\(0.5\)\[a\]\n", capsys.readouterr().out)


def test_scores_of_a_smaller_scale_say_so(folder: Path) -> None:
    rows = score_rows("linear", 0.5, "a")
    for row in rows:
        row["labels"] = {**dict(row["labels"]), "scale": "tiny"}  # type: ignore[call-overload]
    publish(folder, "tiny.jsonl", rows)
    frame = lra.choose(256, task="listops", model="linear")
    assert ", scale tiny (length 512)" in frame["score_source"][0]


def test_words_that_decide_costs_are_read(folder: Path) -> None:
    (plain_cost,) = lra.choose(64, model="linear").to_dict("records")
    read: list[dict[str, Any]] = [
        {"optim": "sgd"}, {"optim.ema_decay": 0.9}, {"hardware.precision": "bfloat16"}
    ]  # fmt: skip
    for words in read:
        (cost,) = lra.choose(64, model="linear", **words).to_dict("records")
        assert cost["memory_bytes"] != plain_cost["memory_bytes"], words
    (folder / "mine/model").mkdir(parents=True)
    text = (catalogue.ours() / "model/linear.yaml").read_text()
    (folder / "mine/model/mine.yaml").write_text(text.replace("name: linear", "name: mine"))
    assert [*lra.choose(64, model="mine", config_dir=folder / "mine")["model"]] == ["mine"]


def test_groups_of_one_head_each_are_said_to_be_exact_attention() -> None:
    frame = lra.choose(256, model="grouped_query")
    assert frame["reason"][0].startswith(
        "model.mixer.key_value_heads=2 with 2 heads gives each head separate keys"
    )
    assert lra.choose(256, model="grouped_query", width=128, heads=4)["reason"][0] == ""


def test_damaged_cells_of_the_store_are_left_out_and_named(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = Store(folder / "results")
    for seed in range(2):
        rows = [Measurement(metric="train_time", value=1.0)]
        path = store.write(make_cell(seed, fingerprint="abc123"), rows, [], {})
    path.write_text("{")
    assert main(["choose", "length=64", "hardware=cpu", "model=linear"]) == 1
    assert f"excluded: {path.relative_to(folder)}" in capsys.readouterr().err
    with pytest.warns(DamagedCell, match="excluded: "):
        lra.choose(64, model="linear")
    assert main(["plan", "--against", "results"]) == 1
    assert f"excluded: {path.relative_to(folder)}" in capsys.readouterr().err


def test_scores_of_papers_and_of_language(monkeypatch: pytest.MonkeyPatch) -> None:
    frame = lra.choose(256, task="pathx", model=("linear", "s5", "fnet"), by="quality")
    assert [*frame["model"]] == ["s5", "linear", "fnet"]
    assert frame["paper_score"][0] == 98.58
    assert pd.isna(frame["paper_score"][1])
    assert "arXiv:2011.04006" in frame["paper_score_source"][1]  # a failure is known
    monkeypatch.setattr(evidence, "DIGEST", DIGEST)
    frame = lra.choose(256, task="text8", model=("linear", "softmax"), by="quality")
    assert frame["serves"].all()
    assert frame["score"].is_monotonic_increasing  # bits: the fewest first
    assert frame["score_source"].str.startswith("bits per character").all()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("hardware=a100", "set how long the sequences are: length=16384"),
        ("lenght=5", "unknown word 'lenght': did you mean 'length'"),
        ("length=5 causl", "unknown word 'causl': did you mean 'causal'"),
        ("length=5 causal=true", "got 'causal=true'; wanted the single argument causal"),
        ("--length 5", "type this argument without dashes: length=VALUE"),
        ("length=0", "length: got '0'; wanted a whole number from 1 to"),
        ("length=long", "length: got 'long'; wanted a whole number"),
        ("length=16 width=1.5", "width: got '1.5'; wanted a whole number"),
        ("length=16 gib=24GB", "gib: got '24GB'; wanted a whole number"),
        (
            "length=16 optim.batch_size=8",
            "optim.batch_size: this option does not change the time and memory of a family: "
            "batch=8 sets how many sequences a step has",
        ),
        ("length=16 ++optim.steps=8", "optim.steps: this option does not change"),
        ("length=16 runner=decode", "runner: this option does not change"),
        ("length=16 hardware.token_budget=8", "hardware.token_budget: this option does not change"),
        (
            "length=16 results=mine",
            "results: this option does not change the time and memory of a family: --results sets "
            "the results folder",
        ),
        ("length=16 seed=1", "seed: this option does not change"),
        ("length=16 hardware=a10", "unknown hardware 'a10': did you mean 'a100'?"),
        ("length=16 task=lisstops", "unknown task 'lisstops': did you mean 'listops'?"),
        ("length=16 task=recall", "unknown task 'recall': lra calls it 'mqar'."),
        ("length=16 hardware=laptop", "unknown hardware 'laptop': lra calls it 'cpu'."),
        ("length=16 --by tim", "unknown rank 'tim': did you mean 'time'?"),
        ("length=16 model=linear size=tiny,base", "2 versions of linear. Give each key one value"),
    ],
)
def test_bad_words_are_refused(words: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["choose", *words.split()]) == 2
    assert said in capsys.readouterr().err
