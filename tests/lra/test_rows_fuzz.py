"""Files of rows that anybody may have written: a report, or a message that names file and line."""

import html.parser
import json
import random
import re
import xml.dom.minidom
from pathlib import Path

import damage
import pytest
from fuzz import cases
from matplotlib.figure import Figure

from lra.results.rows import published_rows
from lra.runners.metrics import METRICS
from lra.runners.records import COLUMNS

PUBLISHED = Path(__file__).parents[2] / "reports" / "published"
PEERS = ("--plugin", "peers", "--config-dir", Path(__file__).parents[1] / "parity/peers/conf")
BASE = {
    "schema": 1, "cell": "3fa9c1e07b2d4c58", "fingerprint": "f00d", "runner": "train",
    "created": "2026-01-02T03:04:05.000006Z", "mode": "train", "model": "linear",
    "task": "listops", "task_version": 1, "source": "generated", "length": 512, "seed": 0,
    "causal": False, "hardware": "cpu", "device": "some CPU", "precision": "float32", "threads": 2,
    "status": "ok", "reason": "", "samples": [], "step": None, "labels": {},
}  # fmt: skip
TEXTS = ("runner", "mode", "model", "task", "source", "hardware", "device", "precision", "reason")
LABELS = ("split", "variant", "layers", "start", "regime", "tokenizer", "reference", "sentence",
          "peer", "setting", "option", "target", "kernel")  # fmt: skip
NAMES = (
    "<script>alert(1)</script>", 'x"><img src=x onerror=alert(1)>', "' onload='alert(1)", "--!><b>",
    "-->", "]]><b>", "&lt;b&gt;", "$", "$\\frac{", "_{", "\\frac", "a$b$c", "{title}", "%s", "{0}",
    "=1+cmd|'/C calc'!A0", "@SUM(1)", "+a", "-a", "../../escaped", "..", ".", "/escaped", "a/b",
    "a\\b", "~", "con", "_underscore", "[x](javascript:alert(1))", "| pipe |", "`code`", "*", "# h",
    "https://example.org", "\\", '"', "'", " ", "漢字", "é", "\u202e", "x" * 200, "baseline/<b>",
    "nan", "-0.5", "a b", "a-b", "A-B",
)  # fmt: skip


def row(metric, value, **columns):
    return {**BASE, "metric": metric, "value": value, "unit": METRICS[metric].unit} | columns


def write(path, rows):
    path.write_text("".join(json.dumps({c: r[c] for c in COLUMNS}) + "\n" for r in rows))


def scores():
    """Rows that need no figure."""
    told = {"split": "test", "examples": "100"}
    return [
        row("accuracy", 0.5, labels=told),
        row("accuracy", 0.25, labels=told, model="performer", cell="a" * 16),
        row("accuracy", None, status="diverged", reason="loss was nan", labels=told, cell="b" * 16,
            model="luna"),
        row("accuracy", 0.125, model="baseline/majority", cell="c" * 16,
            labels={**told, "sentence": "The commonest"}),
        row("perplexity", 20.5, labels=told, task="words", cell="d" * 16),
        row("train_step_time", 0.5, samples=[0.25, 0.5, 0.75]),
    ]  # fmt: skip


def sample_of(name):
    """The first row of each metric, length and model of a published file; three models."""
    (path,) = PUBLISHED.glob(f"{name}-epyc-*.jsonl")
    lines = map(json.loads, path.read_text().splitlines())
    models, found = set(), {}
    for known in lines:
        if (
            len(models | {known["model"]}) <= 3
            and len({k[3] for k in found} | {known["length"]}) <= 2
        ):
            models.add(known["model"])
            key = (known["metric"], known["model"], known["status"], known["length"], known["mode"],
                   known["step"] is None, known["labels"].get("start"))  # fmt: skip
            found.setdefault(key, known)
    return list(found.values())


class Seen(html.parser.HTMLParser):
    """Tags with the names of their attributes, and the targets of links."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.links = set(), set()
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.add((tag, tuple(name for name, _ in attrs)))
        self.links |= {value for name, value in attrs if "href" in name}


def check_report(out, plain):
    """No tag, attribute, link or file that the data brought."""
    page = Seen((out / "report.html").read_text())
    assert {tag for tag, _ in page.tags} <= {tag for tag, _ in plain.tags} | DRAWN
    assert not [names for _, names in page.tags for name in names if name.startswith("on")]
    names = {path.name for path in out.iterdir()}
    brought = page.links - plain.links - names
    assert not [link for link in brought if not link.startswith("#")]
    assert all(re.fullmatch(r"\.?[A-Za-z0-9_+.-]{1,200}", name) for name in names)
    for path in out.glob("*.svg"):
        xml.dom.minidom.parse(str(path))


DRAWN = {"figure", "svg", "defs", "style", "g", "path", "use", "clippath", "rect", "metadata",
         "rdf:rdf", "cc:work", "dc:type", "dc:format", "dc:creator", "cc:agent", "dc:title",
         "image"}  # fmt: skip


@pytest.fixture
def plain(tmp_path, lra, monkeypatch):
    """The page of sound rows."""
    monkeypatch.setattr("lra.results.reporting.kinds", lambda _: {})  # which reads fifty files
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "sound.jsonl", scores())
    assert lra("report", "--rows", "sound.jsonl", "--out", "plain")[0] == 0
    return Seen((tmp_path / "plain" / "report.html").read_text())


@pytest.mark.fuzz
def test_malformed_files(plain, tmp_path, lra):
    generator = random.Random(20)
    kinds = [
        *damage.ANY, *damage.JSON, damage.cut_at_a_line, damage.blank_line, damage.newer,
        *[damage.a_value, damage.a_constant, damage.lacking, damage.besides] * 10,
    ]  # fmt: skip
    path, out = tmp_path / "rows.jsonl", tmp_path / "out"
    refused = 0
    for _ in range(cases(20)):
        if path.is_dir():
            path.rmdir()
        path.unlink(missing_ok=True)
        write(path, scores())
        kind = generator.choice(kinds)
        for _ in range(generator.choice([1, 1, 2])):
            if path.is_file() and path.read_bytes():
                kind(path, generator)
        try:
            code, err = lra("report", "--rows", path, "--out", out)
            if code:
                refused += 1
                assert code == 2
                assert str(path) in err
                assert len(err) < 700
                assert len(err.splitlines()) == 1
                assert "line " in err or not path.is_file()
            else:
                check_report(out, plain)
        except BaseException as error:
            error.add_note(f"{kind.__name__}: {path.read_bytes()[:3000] if path.is_file() else ''}")
            raise
    assert refused > cases(20) / 2


@pytest.mark.fuzz
def test_hostile_names(plain, tmp_path, lra):
    """In tables and pages, of all columns that hold text."""
    generator = random.Random(21)
    shown = 0
    for number in range(cases(3)):
        rows = scores()
        for _ in range(generator.randrange(1, 4)):
            name, column = generator.choice(NAMES), generator.choice((*TEXTS, *LABELS))
            for each in rows if generator.random() < 0.5 else [generator.choice(rows)]:
                if column in LABELS:
                    each["labels"] = {**each["labels"], column: name}
                else:
                    each[column] = name
        shown += report_of(rows, tmp_path / f"{number}", plain, lra)
    assert shown > cases(3) / 2


def report_of(rows, folder, plain, lra):
    folder.mkdir()
    write(folder / "rows.jsonl", rows)
    try:
        code, err = lra(
            "report", "--rows", folder / "rows.jsonl", "--out", folder / "out",
            f"--title={NAMES[len(rows) % len(NAMES)]}", *PEERS,
        )  # fmt: skip
        assert {path.name for path in folder.iterdir()} <= {"rows.jsonl", "out"}
        if code:
            assert code == 2
            assert re.search(r"rows\.jsonl, line \d+: ", err)
            return False
        check_report(folder / "out", plain)
    except BaseException as error:
        error.add_note(str(folder))
        raise
    return True


FIGURES = ("quickstart", "decode", "approximation", "extrapolate", "span_text8", "peers",
           "transfer", "language_train")  # fmt: skip
ALL_FORMATS = "quickstart"
REPORTED = FIGURES if cases(1) > 1 else FIGURES[::4]
"""All in a campaign, one in four besides."""


def svg_alone(figure, path, savefig=Figure.savefig, **options):
    """Draw the format that the page holds; files of the others are empty."""
    if options["format"] == "svg":
        savefig(figure, path, **options)
    else:
        path.touch()


@pytest.mark.every_format  # to which the page has links
@pytest.mark.fuzz
@pytest.mark.parametrize("name", REPORTED)
def test_hostile_names_and_extreme_numbers_in_figures(name, plain, tmp_path, lra, monkeypatch):
    if name != ALL_FORMATS:
        monkeypatch.setattr(Figure, "savefig", svg_alone)
    generator = random.Random(name)
    for number in range(cases(1)):
        rows = sample_of(name)
        for _ in range(3):
            text, column = generator.choice(NAMES), generator.choice((*TEXTS, *LABELS))
            old = generator.choice(rows)[column] if column in TEXTS else None
            for each in rows:
                if column in each["labels"]:
                    each["labels"] = {**each["labels"], column: text}
                elif old is not None and each[column] == old and column != "runner":
                    each[column] = text
        for each in generator.sample(rows, len(rows) // 3):
            known = METRICS[each["metric"]]
            if each["status"] == "ok":
                bound = generator.choice([known.least, known.most, max(known.least, 0.0)])
                each["value"] = bound
                each["samples"] = [bound] * len(each["samples"])
        for each in generator.sample(rows, len(rows) // 10):
            change = generator.choice(
                [{"labels": {}}, {"samples": []}, {"length": 1}, {"seed": 9}, {"task_version": 0},
                 {"causal": True}, {"threads": 0}, {"step": 3},
                 {"status": "crashed", "value": None, "reason": "x" * 5000, "samples": []}]
            )  # fmt: skip
            each |= change
        report_of(rows, tmp_path / f"{name}-{number}", plain, lra)


# -- one by one ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": 3}, "this row has schema 3, but this version of lra reads schemas up to 2"),
        ({"schema": True}, "schema: got True; wanted `int`"),
        ({"cell": "../x"}, "cell: got '../x'; wanted `str` matching regex"),
        ({"created": "yesterday"}, "created: got 'yesterday'; wanted a time in ISO 8601"),
        ({"model": ""}, "model: got ''; wanted `str` of length >= 1"),
        ({"task": "a\x1b[31m"}, r"task: got 'a\x1b[31m'; wanted printable text"),
        ({"length": 0}, "length: got 0; wanted `int` >= 1"),
        ({"length": 512.0}, "length: got 512.0; wanted `int`"),
        ({"seed": False}, "seed: got False; wanted `int`"),
        ({"seed": 2**63}, "seed: got 9223372036854775808; wanted `int` <= 9223372036854775807"),
        ({"causal": 1}, "causal: got 1; wanted `bool`"),
        ({"metric": "acuracy"}, "unknown metric 'acuracy'; wanted a metric of this version"),
        ({"unit": "percent"}, "unknown unit 'percent'; wanted a unit of this version"),
        ({"value": 7}, "accuracy: got the value 7.0 with status ok; wanted a number from 0 to 1"),
        ({"value": None}, "accuracy: got the value None with status ok"),
        ({"value": True}, "value: got True; wanted `float | null`"),
        ({"value": "0.5"}, "value: got '0.5'; wanted `float | null`"),
        ({"status": "fine"}, "unknown status 'fine'; wanted a status of this version"),
        ({"status": "crashed"}, "accuracy: got the value 0.5 with status crashed; wanted null"),
        ({"status": "crashed", "value": None}, "accuracy: a row with status crashed needs"),
        ({"reason": None}, "reason: got None; wanted `str`"),
        ({"reason": "\ud800"}, "the line is damaged, because it is not JSON"),
        ({"samples": None}, "samples: got None; wanted `array`"),
        ({"samples": [0.5, -1.0]}, "accuracy: got the sample -1.0; wanted a number from 0 to 1"),
        ({"step": -1}, "step: got -1; wanted `int` >= 0"),
        ({"labels": None}, "labels: got None; wanted `object`"),
        ({"labels": {"split": 1}}, "labels: got {'split': 1}; wanted `str`"),
        ({"labels": {"examples": "many"}}, "label examples: got 'many'; wanted a text of the form"),
        ({"labels": {"factor": "2"}}, "labels: got {'factor': '2'}; wanted a label 'tokens', too"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(change, message, tmp_path, lra):
    path = tmp_path / "rows.jsonl"
    write(path, [*scores(), {**scores()[0], **change}])
    code, err = lra("report", "--rows", path, "--out", tmp_path / "out")
    assert code == 2
    assert f"{path}, line 7: {message}" in err
    assert not (tmp_path / "out").exists()


def test_published_rows_pass():
    files = [path for path in PUBLISHED.glob("*.jsonl") if path.with_suffix(".json").is_file()]
    assert len(files) > 15
    for path in files:
        assert len(published_rows(path)) == len(path.read_text().splitlines())
