"""`import lra`: what it loads, what it refuses and how, and that it is what the shell runs."""

import os
import re
import signal
import subprocess
import sys
import traceback
from enum import Enum
from pathlib import Path

import pandas as pd
import pytest
import torch
from hydra import compose, initialize_config_module, version
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser

import lra
from lra.api.drawing import CLASSES, COSTS, LOSS, QUANTITIES, SCORES
from lra.api.plain_errors import in_python
from lra.api.running import given_words
from lra.api.searching import _write_range
from lra.api.tabling import KINDS, ResultTable
from lra.api.verifying import finding_lines
from lra.composition.compose import build_model, typed
from lra.composition.hydra_entry import entries
from lra.composition.python_words import model_words, value_text, words_of
from lra.errors import ConfigError
from lra.models.mixer import Family, Traits
from lra.reports.rows import prepare
from lra.reports.style import TableStyle
from lra.reports.tables.table import Column, Entry, Table, TableRow
from lra.runners.metrics import JUDGED_BY
from lra.runners.store import BadStore
from lra.tasks.diagnostics.mqar import MQAR
from lra.tuning.space import dimension
from tests.lra_process import python

ROOT = Path(__file__).resolve().parents[3]
PUBLISHED = ROOT / "reports/published"
RANGES = {
    "optim.clip": (0.1, 1),
    "optim.steps": [2, 4],
    "seed": range(2),
    "optim.power": "choice(1,2)",
}
"""As mypy takes them: a mapping to sequences."""
ROWS = PUBLISHED / "families-epyc-2026-11-21.jsonl"


@pytest.fixture(scope="module")
def rows() -> pd.DataFrame:
    return lra.rows(ROWS)


def test_no_function_has_the_name_of_a_module() -> None:
    """Importing `lra.run` would put the module in the place of the function."""
    assert set(lra.__all__) == set(lra._MODULES)
    assert {*lra.__all__} <= {*dir(lra)}
    for name in lra.__all__:
        assert not (ROOT / "lra" / name).exists()
        assert not (ROOT / "lra" / f"{name}.py").exists()
        assert callable(getattr(lra, name))
    with pytest.raises(AttributeError, match=r"no attribute 'modle'; it has .*model"):
        getattr(lra, "modle")  # noqa: B009


def test_what_is_loaded_and_when() -> None:
    code = (
        "import sys, lra\n"
        "heavy = {'torch', 'pandas', 'numpy', 'matplotlib', 'hydra', 'omegaconf', 'rich'}\n"
        "assert 'model' in dir(lra)\n"
        "print(*heavy & {*sys.modules}, sep=',')\n"
        "from lra.cli import main\n"
        "try: main(['report', '--help'])\n"
        "except SystemExit: pass\n"
        "print('loaded', *heavy & {*sys.modules}, sep=',')\n"
        f"rows = lra.rows({str(ROWS)!r})\n"
        "lra.table(rows, 'growth'), lra.figure(rows, 'time')\n"
        "print(*{'torch', 'hydra'} & {*sys.modules}, sep=',')\n"
    )
    done = python("-c", code)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == ""
    assert "loaded" in lines
    assert lines[-1] == ""


class Colour(Enum):
    red = 1


@pytest.mark.parametrize(
    "value",
    [None, True, 3, 1e-5, "plain", "null", "3", "it's {a}, [b]=c\\", "", "é ü", [1, "x, y", None],
     {"a": [True], "b": "c:d"}, [[1], []]],
)  # fmt: skip
def test_values_are_read_as_they_were_given(value: object) -> None:
    (word,) = OverridesParser.create().parse_overrides([f"key={value_text(value, 'key')}"])
    assert word.value() == value
    assert type(word.value()) is type(value)


def test_other_values_are_converted_or_refused() -> None:
    assert value_text(Colour.red, "k") == "red"
    assert value_text(Path("a b"), "k") == "'a b'"
    assert value_text(pd.Series([3]).max(), "k") == "3"
    with pytest.raises(ConfigError, match=r"^k: got .*\(Tensor\); wanted a number, a text"):
        value_text(torch.ones(1), "k")
    assert words_of({"optim": {"steps": 5}, "seed": (0, 1), "model.layer_options": {"a": 1}}) == [
        "optim.steps=5",
        "seed=0,1",
        "model.layer_options={a:1}",
    ]
    options = {"features": 4, "backbone": {"depth": 1}, "task.max_length": 9, "layers": ["fnet"]}
    assert model_words("performer", options, []) == [
        "model.mixer.features=4",
        "model.backbone.depth=1",
        "task.max_length=9",
        "model.layers=[fnet]",
    ]
    assert model_words("tlb", {"chunk": 4}, []) == ["model.stack.chunk=4"]


@pytest.mark.parametrize(
    ("given", "ends"),
    [
        ((1, 8), (1, 8, False, True)),
        ((0, 0.5), (0, 0.5, False, False)),
        (("log", 1e-5, 1e-2), (1e-5, 1e-2, True, False)),
        ("tag(log, interval(1, 8))", (1, 8, True, True)),
    ],
)
def test_a_range_of_python_is_one_of_a_search(given, ends) -> None:
    found = dimension("optim.clip", _write_range("optim.clip", given))
    assert (found.low, found.high, found.log, found.whole) == ends


@pytest.mark.parametrize("given", [["adamw", 0.5, True], range(2, 9, 3)])
def test_values_of_python_are_those_of_a_search(given) -> None:
    assert [*dimension("optim.clip", _write_range("optim.clip", given)).values] == [*given]


@pytest.mark.parametrize("given", [(1,), (1, 2, 3), ("lin", 1, 2), (True, 2), 7, None, {}])
def test_what_is_no_range_is_refused(given) -> None:
    with pytest.raises(ConfigError, match=r"optim.clip: got .*wanted \(low, high\), \('log'"):
        lra.search("model=linear task=mqar", params={"optim.clip": given})


def test_the_example_is_compared_as_it_is_read(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert lra.compare("example", "linear", "sdpa").verdicts[0].startswith("linear − sdpa at ")


def test_a_model_is_that_of_a_run_and_hydra_stays_its_callers() -> None:
    words = ["model=performer", "task=mqar", "seed=3", "model.mixer.features=8"]
    words += ["model.backbone.depth=1"]
    (entry,) = entries(words)
    wanted = build_model(typed(entry.config)).state_dict()
    with initialize_config_module("lra.conf", version_base="1.2"):
        before = GlobalHydra.instance().hydra
        made = lra.model("performer", task="mqar", seed=3, features=8, backbone={"depth": 1})
        assert GlobalHydra.instance().hydra is before
        assert str(version.getbase()) == "1.2"
        assert compose("task/listops") is not None
    found = made.state_dict()
    assert isinstance(made, torch.nn.Module)
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


class Blind(Family):
    """No token sees another."""

    def __init__(self, site, *, scale: float = 1.0) -> None:
        super().__init__()
        self.traits = Traits(causal=site.causal, sees_order=False)
        self.scale = torch.nn.Parameter(torch.full((site.width,), scale))

    def forward(self, x, layout):
        return x * self.scale


class Peeping(Blind):
    """Sees all, though it says that it looks only at the past: a <fault>."""

    def forward(self, x, layout):
        return x * self.scale + x.mean(1, keepdim=True)


@pytest.mark.usefixtures("short_counts")
def test_a_class_is_verified_as_it_stands() -> None:
    found = lra.verify(Blind, scale=2.0, max_length=32)
    assert found.passed, found.failed
    idle = sum(not finding.applies for finding in found)
    passed = f"{len(found) - idle} checks passed, 0 failed, {idle} not applicable"
    assert idle
    assert str(found).endswith(f"Blind: {passed}")
    bad = lra.verify(Peeping, max_length=32)
    assert not bad.passed
    assert "causal.no_lookahead" in {finding.check for finding in bad.failed}
    html = bad._repr_html_()
    assert "causal.no_lookahead" in html
    assert html.count("<tr>") == len(finding_lines(bad)) < len(bad)
    assert set(bad.to_pandas()["passed"]) == {True, False}


REFUSED = {
    "a misspelt model": (lambda: lra.model("perfomer"), "did you mean 'performer'"),
    "a model of one's own": (
        lambda: lra.run(model="qqqqqq"),
        r'If the name is in a YAML file of yours, add config_dir="DIR"\.',
    ),
    "a class for a name": (lambda: lra.model(Blind), "wanted the name of a model"),
    "a misspelt option": (
        lambda: lra.model("performer", featurs=3),
        r"unknown key 'model\.mixer\.featurs': did you mean 'model\.mixer\.features'",
    ),
    "a value of another type": (
        lambda: lra.model("performer", features="many"),
        r"features: got 'many'; wanted a whole number",
    ),
    "a misspelt task": (lambda: lra.task("listop"), "did you mean 'listops'"),
    "data that are not here": (
        lambda: lra.task("text", path="nowhere.tar.gz"),
        r"nowhere\.tar\.gz",
    ),
    "no such folder": (lambda: lra.rows("nowhere"), r"the path nowhere does not exist\. Give"),
    "another file": (lambda: lra.rows(ROOT / "Makefile"), r"a name that ends with \.jsonl"),
    "a folder without rows": (lambda: lra.rows(ROOT / "conf"), "there are no results in"),
    "a sweep of a file": (lambda: lra.rows(ROWS, "mine"), "remove the sweep"),
    "no mixer": (lambda: lra.verify(dict), "dict has no parameter `site`; wanted a class"),
    "an instance": (lambda: lra.verify(torch.nn.Linear(2, 2)), "wanted a class, as in lra.verify"),
    "an unknown option of a class": (lambda: lra.verify(Blind, scal=1), "did you mean 'scale'"),
    "several values without -m": (
        lambda: lra.run("model=linear,sdpa"),
        "several values need a sweep",
    ),
    "a misspelt key": (
        lambda: lra.run({"optim": {"step": 5}}),
        r"unknown key 'optim\.step': did you mean 'optim\.steps'",
    ),
    "words that only print": (
        lambda: lra.run(["--cfg", "job"]),
        "type it after `lra run` in a shell",
    ),
    "flags alone": (
        lambda: lra.run("-q"),
        "got only the flags -q; add a model and a task, .* runs the defaults",
    ),
    "a protocol": (lambda: lra.run(protocol="s4"), r'wanted \*\*\{"\+protocol": "s4"\}$'),
    "too long a warm-up": (
        lambda: lra.run(optim={"steps": 10, "warmup_steps": 50}),
        r"lower optim.warmup_steps",
    ),
    "no text": (lambda: lra.task("corpus"), "must name your text: got null"),
    "no words": (lambda: lra.run(3), "wanted the arguments of `lra run`"),
    "plugins as a text": (lambda: lra.run("", plugins="mine"), r"wanted a list of names"),
    "a path for rows": (lambda: lra.table("results"), r"wanted the frame that lra\.rows\(path\)"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_mistake_is_answered_in_one_sentence(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LRA_DEBUG", raising=False)
    call, answer = REFUSED[case]
    with pytest.raises((ValueError, OSError, RuntimeError), match=answer) as caught:
        call()
    # This test, the case, and the one frame that raises.
    assert len(traceback.extract_tb(caught.value.__traceback__)) == 3
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__
    assert not list(tmp_path.iterdir())


def test_a_mistake_of_python_is_answered_in_its_words(tmp_path: Path) -> None:
    example = lra.rows("example")
    for said, call in {
        "a list is one value; wanted a tuple, which makes a sweep": lambda: lra.run(
            model=["linear"]
        ),
        "got linear in the text and sdpa as": lambda: lra.run("model=linear", model="sdpa"),
        "unknown argument of lra.search 'trial': did you mean 'trials'": lambda: lra.search(
            params=RANGES, trial=2
        ),
        "unknown argument of lra.table 'model': did you mean 'models'": lambda: lra.table(
            example,
            model=["linear"],  # type: ignore[call-arg]
        ),
        "optim.peak_learning_rate=tag(log, interval(0.01, 0.0001)): got 0.01": lambda: lra.search(
            "model=linear task.source=sample",
            params={"optim.peak_learning_rate": ("log", 1e-2, 1e-4)},
        ),
        "unknown model 'lineer'": lambda: lra.search(model="lineer", params=RANGES),
        "got Family, a class or module; wanted a name": lambda: lra.run(model=Family),
        "got no name; wanted two or more names; the results have": lambda: lra.compare("example"),
        "got 1 name, 'linear'": lambda: lra.compare(example, "linear"),
        "wanted two or more names, for example a b; the": lambda: lra.compare(example, "a,b"),
        "got a DataFrame; wanted a path": lambda: lra.report(example),  # type: ignore[arg-type]
        "sweep='s' selects runs of a results folder, but": lambda: lra.report("example", "s"),
        "in a list; give one results folder alone, or a list of files": lambda: lra.compare(
            [ROWS, ROOT / "conf"], "a", "b"
        ),
        "sweep='s' selects runs of a results folder": lambda: lra.compare(
            example, "linear", "sdpa", sweep="s"
        ),
        "no scores on the other split": lambda: lra.figure(example, "scores", split="other"),
        "wanted a path, rows, what lra.run returned": lambda: lra.compare([example, 3], "a", "b"),
        "wanted text such as 'linear'. To compare several results, give": lambda: lra.compare(
            example, example
        ),
    }.items():
        with pytest.raises(ValueError, match=re.escape(said)):
            call()
    for call in (lambda: lra.compare("linear", "sdpa"), lambda: lra.report(tmp_path / "no")):
        with pytest.raises(FileNotFoundError, match="does not exist"):
            call()


def test_commands_stay_commands_and_words_become_keywords() -> None:
    for text, wanted in {
        "`lra run task.length=64`; lra plan optim.steps=3, hardware=cpu":
            "`lra run task.length=64`; lra plan optim.steps=3, hardware=\"cpu\"",
        "runner.retry=[a]; model=a,b or model.mixer.features=4.":
            "runner.retry=[a]; model=a,b or features=4.",
        "model=linear,sdpa; optim.clip=tag(log, interval(2, 1)): got 2":
            "model=linear,sdpa; optim.clip=tag(log, interval(2, 1)): got 2",
        "optim.clip=null, model.backbone.depth=…":
            'optim={"clip": None}, model={"backbone.depth": …}',
    }.items():  # fmt: skip
        assert in_python(text, "model") == wanted


def test_a_task_without_a_name_says_so() -> None:
    class Nameless(MQAR):
        pass

    name = MQAR.name
    del MQAR.name
    try:
        with pytest.raises(ValueError, match="the class Nameless needs an attribute `name`"):
            Nameless(length=16, pairs=2)
    finally:
        MQAR.name = name


def test_results_are_compared_wherever_they_are() -> None:
    example = lra.rows("example")
    of_rows = lra.compare(example, "linear", "sdpa")
    parts = [example[example["family"] == name] for name in ("linear", "sdpa")]
    assert lra.compare(parts, "linear", "sdpa").verdicts[0].split(";")[0] in of_rows.verdicts[0]
    assert of_rows.verdicts == lra.compare("example", "linear", "sdpa").verdicts
    figure = lra.figure(example, "scores")
    assert figure.axes[0].get_xlabel() == "accuracy (%)"
    steps = lra.compare("example", "linear", "sdpa", where=["optim.steps=750"])
    assert steps.verdicts == lra.compare("example", "linear", "sdpa").verdicts


def test_rows_say_their_split_and_come_back_from_files(tmp_path: Path) -> None:
    example = lra.rows("example")
    scores = example[example["metric"] == "accuracy"]
    assert {*scores["split"]} == {"test", "validation"}
    assert {*example["split"][example["metric"] == "time"]} == {""}
    file = tmp_path / "rows.jsonl"
    example.to_json(file, orient="records", lines=True, date_format="iso", double_precision=15)
    again = pd.read_json(file, lines=True, precise_float=True)
    assert [*again["samples"]] == [*example["samples"]]
    back = lra.table(again).to_pandas(intervals=True)
    pd.testing.assert_frame_equal(back, lra.table(example).to_pandas(intervals=True))
    with pytest.raises(
        BadStore, match=r"line 1: .*read_json\(path, .*precise_float=True"
    ) as caught:
        lra.rows(file)
    assert "anew" not in str(caught.value)
    named = example.assign(options=[{"a": "1"} if i % 2 else {} for i in range(len(example))])
    named.to_parquet(tmp_path / "rows.parquet")
    back = pd.read_parquet(tmp_path / "rows.parquet")
    assert {*prepare(back)["name"]} == {*prepare(named)["name"]}
    example.to_csv(tmp_path / "rows.csv", index=False)
    with pytest.raises(lra.ConfigError, match=r"a CSV file stores it; .* to_json\(FILE"):
        lra.table(pd.read_csv(tmp_path / "rows.csv"))


def test_kinds_that_an_editor_offers_are_all() -> None:
    assert {*KINDS} == {*JUDGED_BY, "efficiency", "crossover", "growth", "metrics"}
    page = (ROOT / "docs/python.md").read_text(encoding="utf-8")
    listed = page.partition("`kind` of `lra.table` is one of ")[2].partition(";")[0]
    assert re.findall("`(.*?)`", listed) == [*KINDS]
    assert {*QUANTITIES} == {*COSTS, SCORES, LOSS, *CLASSES}


def test_what_failed_is_told_by_later_calls_too(tmp_path: Path) -> None:
    words = f"task.source=sample logger=none report=false results={tmp_path}"
    steps = {"steps": 20, "warmup_steps": 2, "peak_learning_rate": 2e6}
    first, second = (lra.run(words, model="linear", task="listops", optim=steps) for _ in range(2))
    assert first.failed == second.failed == dict.fromkeys(first.cells, "diverged")


def test_a_range_is_a_sweep() -> None:
    words = given_words({"seed": range(2), "optim": {"steps": 3}})
    assert words == ["-m", "seed=0,1", "optim.steps=3"]


def test_the_whole_way_is_shown_where_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LRA_DEBUG", "1")
    with pytest.raises(ConfigError) as caught:
        lra.model("perfomer")
    assert len(traceback.extract_tb(caught.value.__traceback__)) > 5


def test_tables_and_figures_say_what_they_lack(rows: pd.DataFrame) -> None:
    for call, answer in (
        (lambda: lra.table(rows, "acuracy"), "unknown table 'acuracy': did you mean 'accuracy'"),
        (
            lambda: lra.table(rows),
            "the rows have no numbers for 'accuracy'; they contain results of runner",
        ),
        (lambda: lra.table(rows, "growth", mode="step"), "mode='step' has no effect on 'growth'"),
        (lambda: lra.table(rows, "growth", models=["sdp"]), "did you mean 'sdpa'"),
        (lambda: lra.table(rows, "growth", models="sdpa"), r"wanted a list, as in \['sdpa'\]"),
        (lambda: lra.figure(rows, "tme"), "did you mean 'time'"),
        (lambda: lra.figure(rows, mode="forwards"), "unknown mode 'forwards'"),
        (lambda: lra.figure(rows, "loss"), "no numbers for 'loss'"),
        (lambda: lra.figure(rows[:0]), "there are no rows to report"),
        (lambda: lra.figure(rows, style="paper"), "unknown style 'paper': did you mean 'paper_"),
    ):
        with pytest.raises(ValueError, match=answer):
            call()
    other = rows.assign(hardware="h100", cell="x" + rows["cell"])
    with pytest.raises(
        ValueError, match=r"differ in hardware \(cpu, h100\), .* Select rows, for example by rows\["
    ):
        lra.table(pd.concat([rows, other]), "growth")


def test_a_table_has_five_forms(rows: pd.DataFrame) -> None:
    table = lra.table(rows, "efficiency", models=["linear", "sdpa"])
    numbers, texts = table.to_pandas(), table.to_pandas(text=True)
    assert numbers.index.names == ["section", "model, by length"]
    assert numbers.dtypes.eq("float64").all()
    place = (("sequences per second", "sdpa"), "256")
    assert float(texts.loc[place]) == pytest.approx(numbers.loc[place], rel=0.01)
    ends = table.to_pandas(intervals=True)
    low, high = (ends.loc[place[0], f"256, {end}"] for end in ("low", "high"))
    assert low < numbers.loc[place] < high
    assert len(ends.columns) == 3 * len(numbers.columns)
    assert table._repr_html_().startswith("<table>")
    assert repr(table) == table.to_markdown()
    assert table.to_csv().startswith("section,")
    assert r"\toprule" in table.to_latex()


def test_what_a_notebook_shows_is_escaped() -> None:
    entry = Entry(text="<b>1</b> & more", value=1.0, notes=("because <i>",))
    table = Table(
        title="<script>",
        caption="a & b",
        stub="50%_$x",
        columns=(Column(title="<u>"),),
        rows=(TableRow(title="<s>", entries=(entry,), section="<p>"),),
    )
    html = ResultTable(table, TableStyle())._repr_html_()
    assert {*re.findall(r"<(\w+)", html)} <= {
        *("table", "caption", "b", "thead", "tr", "th", "tbody", "td", "i", "sup", "ol", "li")
    }
    assert "&lt;script&gt;" in html
    assert "because &lt;i&gt;" in html


PROGRAM = """\
import lra
from lra.tasks.data.workers import in_order

assert [*in_order(abs, iter([-1, -2]), 2)] == [1, 2]  # as data are made
small = "task.source=sample model=identity model.backbone.width=16 logger=none report=false "
small += "optim.warmup_steps=0 "
done = lra.run("-m " + small + "seed=0,1 optim.steps=2 runner.baselines=false")
assert done.exit_code == 0 and len(done.rows["seed"].unique()) == 2, done
try:
    lra.run(small + "optim.steps=100000")
except KeyboardInterrupt:
    print("stopped by hand", flush=True)
"""


def test_a_script_needs_no_guard_and_can_be_interrupted(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(PROGRAM)
    with subprocess.Popen(
        [sys.executable, str(script)],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        said = []
        for line in process.stdout or ():
            said.append(line)
            if "[1/1]" in line and "begun" in line:
                process.send_signal(signal.SIGINT)
    text = "".join(said)
    assert process.returncode == 0, text
    assert text.count("sweep adhoc: 2 runs to do") == 1, text
    assert "2 runs in" in text
    assert "interrupted: 1 of 1 runs are left" in text
    assert said[-1] == "stopped by hand\n"
