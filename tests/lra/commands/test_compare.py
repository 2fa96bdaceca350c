"""`lra compare` and `lra.compare` on a store, a sweep and published files."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import lra
from lra.cli import main
from lra.reports.rows import prepare
from lra.reports.sections.tuning_tables import tuned_table
from lra.reports.statistics.paired_tests import mean_difference
from lra.reports.tables.searches import Searches
from lra.runners.records import Measurement, Outcomes
from lra.runners.storage.archives import pack_outcomes
from lra.runners.store import Store, read_outcomes
from tests.reports.conftest import accuracy, frame
from tests.reports.sections.search_rows import search
from tests.runners.storage.stored_cells import make_cell

EXAMPLES = 40
RATES = {"1e-3": 0.001, "3e-3": 0.003}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a store: two models at two tasks, three seeds, two rates; better by 0.1 and 0.2."""
    store = Store(tmp_path_factory.mktemp("compare") / "results")
    for model, gain in (("linear", 8), ("sdpa", 0)):
        for task in ("listops", "text"):
            for seed in (0, 1, 2):
                for rate in RATES.values():
                    right = 15 + gain + seed + 4 * (rate > 0.002) + (gain > 0) * seed
                    identity = {
                        "model": model, "seed": seed, "runner": {"name": "train"},
                        "mixer": {"features": 4} if model == "linear" else {},
                        "task": {"name": task, "options": {"classes": 2}},
                        "optim": {"peak_learning_rate": rate},
                    }  # fmt: skip
                    cell = make_cell(seed, identity=identity, model=model, task=task)
                    labels = {"split": "test", "examples": str(EXAMPLES)}
                    row = Measurement(metric="accuracy", value=right / EXAMPLES, labels=labels)
                    index = np.arange(EXAMPLES)
                    outcomes = Outcomes(
                        split="test", index=index, hit=index < right,
                        nll=np.zeros(EXAMPLES, dtype=np.float32),
                    )  # fmt: skip
                    store.write(cell, [row], [outcomes], {"torch": "2"})
                    store.record_in_sweep("mine", cell.key)
    return store.root


def printed(capsys: pytest.CaptureFixture[str], *words: str | Path, code: int = 0) -> str:
    assert main(["compare", *map(str, words)]) == code
    out, err = capsys.readouterr()
    return err if code else out


def test_models_over_tasks(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, "linear", "sdpa", "--results", results, "--sweep", "mine")
    first, *_ = text.splitlines()
    assert first.startswith("linear − sdpa at all 2 tasks: +22.5 [+16.3, +28.7] over 3 seeds, p =")
    assert ". The t test assumes that differences are normal" in first
    assert first.endswith("are normally distributed, linear is better.")
    assert "each number is a mean over 2 settings of optim.peak_learning_rate" in text
    assert "**+22.5** [+16.3, +28.7]" in text


def test_any_setting_chooses(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rates = [f"optim.peak_learning_rate={rate}" for rate in RATES]
    where = ("--where", "task=listops", "--where", "seed=0")
    text = printed(capsys, *reversed(rates), "--results", results, *where)
    assert f"{rates[1]} − {rates[0]} at listops: +10.0 over 2 settings" in text
    one = printed(capsys, f"linear {rates[1]}", f"sdpa {rates[1]}", "--results", results, *where)
    assert "listops: +20.0 [+7.0, +33.0] over 40 examples; there is only one seed" in one
    assert "it treats their answers as paired. 8 examples are answered correctly only by" in one
    assert "(McNemar's exact test of these two trained models: p = 0.0078)" in one
    assert "further" not in one
    crossed = printed(capsys, f"linear {rates[1]}", f"sdpa {rates[0]}", "--results", results)
    assert "further" not in crossed  # what the words are about is no further setting
    for key in ("features=4", "model.mixer.features=4", "mixer.features=4", "linear",
                "model=linear task.classes=2"):  # fmt: skip
        assert "+22.5" in printed(capsys, key, "model=sdpa", "--results", results).splitlines()[0]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "got no name; wanted two or more"),
        (
            ["linear"],
            "got 1 name, 'linear'; wanted two or more names; the results have linear (optim",
        ),
        (["linaer", "sdpa"], "no results of 'linaer' in /"),
        (
            ["linaer", "sdpa", "--sweep", "mine"],
            "no results of 'linaer' in sweep mine: did you mean 'linear'? Known models: linear, ",
        ),
        (["linear", "sdpa linear"], "no stored run meets all of 'sdpa linear': remove"),
        (["linear", "linear"], "'linear' and 'linear' share 12 results"),
        (["seed=0", "seed=1"], "seed=0 has seed 0, model linear and sdpa, optim"),
        (["linear", "peak_learning_rat=1"], "unknown setting 'peak_learning_rat': did you mean"),
        (
            ["linear", "name=train"],
            "setting 'name' is ambiguous: type runner.name or task.name",
        ),
        (["linear", "seed=7"], "unknown value of seed '7'. Known values of seed: 0, 1, 2."),
        (["linear", "sdpa", "--metric", "acuracy"], "did you mean 'accuracy'?"),
        (["linear", "sdpa", "--split", "train"], "unknown split of accuracy 'train'"),
        (["linear", "sdpa", "--where", "listops"], "got 'listops'; wanted KEY=VALUE"),
        (["linear", "sdpa", "--sweep", "mien"], "unknown sweep 'mien': did you mean 'mine'?"),
        (
            ["linear", "sdpa seed=0", "--where", "seed=1"],
            "no stored run meets all of 'sdpa seed=0 seed=1'",
        ),
    ],
)
def test_what_cannot_be_compared_says_why(
    words: list[str], message: str, results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in printed(capsys, *words, "--results", results, code=2)


def test_answers_to_other_test_examples_are_not_paired(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "results"
    shutil.copytree(results, root)
    store = Store(root)
    rows = lra.rows(root)
    cells = {*rows["cell"][rows["model"].str.startswith("linear")]}
    assert len(cells) == 12
    for key in cells:
        (file,) = store.cell_folder(key).glob("outcomes-*.npz")
        (answers,) = read_outcomes(root, key)
        file.write_bytes(pack_outcomes([replace(answers, index=answers.index + 1)]))
    for where, reason in (("seed=1", "independent (Newcombe's interval); "), ("seed=seed", "")):
        extra = ["--where", where] if reason else []
        text = printed(capsys, "linear optim.peak_learning_rate=1e-3",
                       "sdpa optim.peak_learning_rate=1e-3", "--results", root, *extra)  # fmt: skip
        assert f"{reason}the two sides were tested on different examples" in text
        assert "seeds and examples" not in text


TUNED = "reports/published/tuned_recall-xeon-2026-11-27.jsonl"


def test_after_a_search_names_stand_for_its_final_trainings(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Of linear and sdpa the same trial is chosen, and the untuned options are no second half."""
    rows = ("--rows", TUNED)
    text = printed(capsys, "sdpa", "delta_net", *rows)
    assert text.startswith("sdpa − delta_net at mqar, both tuned: +1.1 [−3.2, +5.5] over 3 seeds")
    assert "the options that the search chose (tuned) are compared; they are paired by seed" in text
    text = printed(capsys, "sdpa", "delta_net", *rows, "--untuned")
    assert "mqar, both untuned: +35.8 [+5.4, +66.1] over 3 seeds" in text
    assert "(untuned) are compared; they are paired by seed." in text
    text = printed(capsys, "sdpa", "linear", *rows)
    assert "+4.4 [−3.7, +12.6] over 3 seeds" in text
    assert "further settings" not in text
    text = printed(capsys, "linear", "sdpa", "delta_net", *rows, "--best")
    assert text.startswith("sdpa − linear at mqar, both tuned: +4.4")
    text = printed(capsys, "sdpa", "delta_net", *rows, "--split", "validation")
    assert "both tuned: +1.1" in text  # not the trials, which are scored there as well
    asked = [f"sdpa optim.peak_learning_rate={rate}" for rate in (0.0127, 0.0183)]
    text = printed(capsys, *asked, *rows, "--split", "validation")
    assert "tuned" not in text
    found = lra.compare(TUNED, "sdpa", "delta_net", untuned=True)
    stored = json.loads(printed(capsys, "sdpa", "delta_net", *rows, "--untuned", "--json"))
    assert json.loads(json.dumps(found.numbers)) == stored
    assert "before the search (untuned)" in stored["trainings"]
    assert "before the search (untuned)" in found.to_markdown()


def rows_file(path: Path, rows: list[dict[str, Any]]) -> Path:
    """Write rows as `lra report --publish` does, in which a model has its family's name."""
    named = [
        {k: v for k, v in row.items() if k not in {"family", "options"}}
        | {"model": row.get("family", row["model"]), "cell": row["cell"].encode().hex()[-64:]}
        for row in rows
    ]
    table = frame(*named)
    table.to_json(path, orient="records", lines=True, date_format="iso", double_precision=15)
    return path


def test_from_three_studies_on_pairs_share_the_study(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = search(("sdpa", "linear"), studies=3)
    three = rows_file(tmp_path / "three.jsonl", made)
    table = tuned_table(Searches(prepare(frame(*made))), "accuracy")
    by_family = {line.title: line.entries[0].by_seed for line in table.rows}
    wanted = mean_difference([*by_family["sdpa"].values()], [*by_family["linear"].values()])
    found = lra.compare(three, "sdpa", "linear")
    (line,) = found.numbers["comparisons"][0]["lines"]
    assert line["difference"]["mean"] == pytest.approx(wanted.mean)
    assert line["difference"]["p"] == pytest.approx(wanted.p)
    assert (line["over"], line["difference"]["interval"]["source"]) == ("3 studies", "studies")
    assert "paired by study" in repr(found)
    named = lra.compare(three, "sdpa (tuned: demo)", "sdpa (untuned)")
    assert " over 9 seeds, " in named.verdicts[0]
    two = rows_file(tmp_path / "two.jsonl", search(("sdpa", "linear"), studies=2))
    assert " over 6 seeds, " in lra.compare(two, "sdpa", "linear").verdicts[0]
    # a model that was not searched has seeds alone, and one whose search failed nothing
    others = [accuracy("local", seed, 0.9, length=512) for seed in (1, 2, 3)]
    mixed = rows_file(tmp_path / "mixed.jsonl", [*search(("sdpa",)), *others])
    assert (
        lra.compare(mixed, "sdpa", "local")
        .verdicts[0]
        .startswith("sdpa − local at listops, sdpa tuned, local not tuned: ")
    )
    mixed = rows_file(tmp_path / "mixed.jsonl", [*search(("sdpa",), studies=3), *others])
    with pytest.raises(ValueError, match="sdpa has studies 0 and 1 and 2; local has seeds 1 and 2"):
        lra.compare(mixed, "sdpa", "local")
    # two that have one study each
    one = [row for row in made if row["seed"] < 1000 or row["family"] == "sdpa"]
    one += [row for row in search(("lstm",)) if row["labels"].get("trial") != "0"]
    text = lra.compare(rows_file(tmp_path / "one.jsonl", one), "lstm", "linear").verdicts[0]
    assert text.endswith("so nothing is known about the variation between studies.")
    # options that a search in another sweep chose, of which there is no row here
    led = rows_file(tmp_path / "led.jsonl", [r for r in made if r["cell"].startswith("final-")])
    for untuned in (False, True):
        assert lra.compare(led, "sdpa", "linear", untuned=untuned).verdicts == (
            lra.compare(three, "sdpa", "linear", untuned=untuned).verdicts
        )
    lost = [row for row in made if row["family"] == "sdpa" or row["labels"].get("trial") == "0"]
    lost = rows_file(tmp_path / "lost.jsonl", lost)
    assert "'linear' has no final training with tuned options" in printed(
        capsys, "sdpa", "linear", "--rows", lost, code=2
    )
    plain = rows_file(tmp_path / "plain.jsonl", [*others, accuracy("sdpa", 1, 0.5)])
    assert "untuned: these results contain no search" in printed(
        capsys, "sdpa", "local", "--rows", plain, "--untuned", code=2
    )


def test_published_files_json_and_python_agree(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "kept.jsonl"
    words = ["report", "--results", str(results), "--sweep", "mine", "--publish", str(kept)]
    assert main(words) == 0
    capsys.readouterr()
    stored = json.loads(printed(capsys, "linear", "sdpa", "--results", results, "--json"))
    text_of_rows = printed(capsys, "linear", "sdpa", "--rows", kept, "--json")
    public = json.loads(text_of_rows)
    widths = [line.pop("with_examples") for line in stored["comparisons"][0]["lines"]]
    assert all(line.pop("with_examples") is None for line in public["comparisons"][0]["lines"])
    assert stored == public  # but for answers to single examples, which no file of rows has
    assert widths[0]["source"] == "seeds and examples"
    (comparison,) = stored["comparisons"]
    assert [line["task"] for line in comparison["lines"]] == ["listops", "text", "all 2 tasks"]
    assert comparison["lines"][2]["difference"]["mean"] == pytest.approx(0.225)
    for found in (lra.compare(results, "linear", "sdpa"), lra.compare([kept], "linear", "sdpa")):
        numbers = json.loads(json.dumps(found.numbers))
        for line in numbers["comparisons"][0]["lines"]:
            line.pop("with_examples")
        assert numbers == stored
        assert found.matrix.to_pandas().loc["linear", "sdpa"] == pytest.approx(0.225)
        assert found.to_pandas()["first − second"].iloc[2] == pytest.approx(0.225)
        assert repr(found).startswith(found.verdicts[0])
    lines = kept.read_text().splitlines(keepends=True)
    halves = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    for number, half in enumerate(halves):
        half.write_text("".join(lines[number::2]))
        half.with_suffix(".json").write_text(kept.with_suffix(".json").read_text())
    split = printed(capsys, "linear", "sdpa", "--json", *(w for h in halves for w in ("--rows", h)))
    assert split == text_of_rows
    with pytest.raises(ValueError, match=r"no results of .spda. in .*: did you mean 'sdpa'"):
        lra.compare(results, "linear", "spda")


def test_a_damaged_cell_is_left_out_and_named(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "results"
    shutil.copytree(results, copy)
    next(copy.glob("cells/*/*/rows-*.jsonl")).write_text("{")
    assert "excluded: " in printed(capsys, "linear", "sdpa", "--results", copy, code=1)


def test_names_in_one_word_are_told_apart(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "linear,sdpa", "--rows", "example"]) == 2
    assert capsys.readouterr().err.startswith(
        "lra: got 1 name, 'linear,sdpa'; wanted two or more names, for example linear sdpa; the"
    )


def test_a_wrong_flag_is_refused_in_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["compare", "linear", "sdpa", "--sweeep", "mine"])
    assert capsys.readouterr().err == (
        "lra compare: unrecognized arguments: --sweeep mine (did you mean --sweep?); run `lra "
        "compare --help` to see its arguments\n"
    )


@pytest.mark.parametrize("untuned", [False, True])
def test_a_baseline_stands_beside_the_final_trainings_of_a_search(untuned: bool) -> None:
    rows = lra.rows(TUNED)
    test = rows["labels"].map(lambda labels: labels.get("split") == "test")
    one = rows[(rows["metric"] == "accuracy") & test].iloc[[0]]
    baseline = one.assign(
        cell="b", runner="certify", model="baseline/last_value", value=0.25,
        labels=[{"split": "test"}], options=[{}], family="",
    )  # fmt: skip
    found = lra.compare(
        pd.concat([rows, baseline], ignore_index=True), "linear", "last_value", untuned=untuned
    )
    assert "over 3 seeds" in found.verdicts[0]


def test_a_baseline_may_stand_on_either_side(capsys: pytest.CaptureFixture[str]) -> None:
    """It has one score at every seed, so the test is of the seeds of the model."""
    for name in ("last_value", "baseline/last_value", "last value"):
        text = printed(capsys, "linear", name, "--rows", "example", "--json")
        (line,) = json.loads(text)["comparisons"][0]["lines"]
        assert line["over"] == "3 seeds"
        assert line["second"] == 0.25
        assert line["first"] - 0.25 == pytest.approx(line["difference"]["mean"])
    verdict = printed(capsys, "last_value", "identity", "--rows", "example")
    assert verdict.startswith("last_value − identity at mqar: +18.5 ")
    assert "last_value is better." in verdict
    error = printed(capsys, "linear", "gla", "--rows", "example", code=2)
    assert (
        "no results of 'gla' in example. Known models: gated_delta_net, identity, linear" in error
    )
    assert "sliding_window. Baselines: last_token, last_value, majority." in error
    error = printed(capsys, "linear", "lst_value", "--rows", "example", code=2)
    assert "did you mean 'last_value'?" in error
