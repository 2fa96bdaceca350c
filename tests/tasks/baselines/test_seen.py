"""Baselines read what a model sees, for every task, generated length, encoding and regime."""

import random
from dataclasses import replace

import numpy as np
import pytest
import torch

from lra.composition.compose import group_file
from lra.composition.lookup import named_task
from lra.tasks.baselines import image_windows, n_grams
from lra.tasks.baselines.certificate import certified_baselines, path_of
from lra.tasks.baselines.seen_examples import Pictures
from lra.tasks.classification import gray
from lra.tasks.classification.base import ClassificationTask
from lra.tasks.classification.listops import oracle as listops_oracle
from lra.tasks.classification.pixels import Dataset, Pixels, PixelSource
from lra.tasks.classification.table import TableTask
from lra.tasks.data.batching import Draw, random_words
from lra.tasks.diagnostics.base import DiagnosticTask, Loss
from lra.tasks.language.base import LanguageTask
from lra.tasks.proteins.task import Proteins
from lra.tasks.sequences.text_pairs import TextPairs
from lra.tasks.task import AcceptsSeveral
from tests.contracts.choices_of_configs import TASKS
from tests.fuzz import cases

FEW = {"train_examples": 60, "validation_examples": 20, "test_examples": 20}
SPLITS = ("train", "validation", "test")


def chance(*choices):
    return lambda source: source.choice(choices)


def whole(least, most):
    return lambda source: source.randint(least, most)


GRAY = {
    "encoding": chance("symbols", "scalars"),
    "black_is_padding": chance(False, True),
    "mean": chance(0.0, 0.4, -3.5),
    "deviation": chance(0.07, 1.0, 40.0),
}
CUT_GRAY = {**GRAY, "source": chance("sample"), "max_length": chance(None, 1, 5, 300, 783)}
STREAM = {
    "source": chance("sample"),
    "length": whole(3, 90),
    "evaluation_length": chance(None, 7, 41),
    "contiguous": chance(False, True),
}
ROWS = {name: chance(value) for name, value in FEW.items()}
PLAIN_PATHS = {
    **GRAY,
    **{name: chance(2) for name in FEW},
    "contour": chance(3), "distractor": chance(1), "distractors": chance(0),
}  # fmt: skip
VARIED = {
    "listops": {**ROWS, "min_length": chance(5), "max_length": whole(30, 60),
                "max_depth": chance(3), "max_args": chance(4), "filler": chance(0, 30)},
    "text": {"source": chance("sample"), "max_length": whole(1, 260)},
    "retrieval": {"source": chance("sample"), "max_length": whole(1, 400)},
    "table": {"max_length": whole(1, 40), "second_text": chance(None, "other")},
    "image": CUT_GRAY,
    "mnist": CUT_GRAY,
    "permuted_mnist": CUT_GRAY,
    "pathfinder": {**{name: chance(9) for name in FEW}, **GRAY, "canvas": chance(None, 40)},
    **dict.fromkeys(("pathfinder64", "pathx", "path256"), PLAIN_PATHS),
    "proteins": {"source": chance("sample"), "max_length": whole(1, 70),
                 "form": chance("single", "concatenated")},
    "proteins_masked": {"source": chance("sample"), "max_length": whole(1, 70)},
    **dict.fromkeys(("enwik8", "text8", "wikitext2", "wikitext103", "pg19"), STREAM),
    "corpus": {**{name: STREAM[name] for name in ("length", "evaluation_length", "contiguous")},
               "units": chance("bytes", "characters", "words")},
    "mqar": {**ROWS, "length": whole(16, 40), "test_length": chance(None, 50),
             "vocabulary": chance(40)},
    "selective_copy": {**ROWS, "length": whole(32, 40), "test_length": chance(None, 50)},
    "induction": {**ROWS, "length": whole(20, 30), "test_length": chance(None, 50)},
    "duplicate": {**ROWS, "length": chance(20, 30), "test_length": chance(None, 50)},
    "permutations": {**ROWS, "length": whole(5, 9), "test_length": chance(None, 12)},
    "reversal": {**ROWS, "length": whole(5, 9), "test_length": chance(None, 12)},
    "sorting": {**ROWS, "length": whole(8, 12), "test_length": chance(None, 14)},
    "text_pairs": {"source_length": whole(1, 40), "target_length": whole(1, 12)},
}  # fmt: skip
"""By task: options, each with what draws its value."""
VARIED |= {
    name: ROWS
    for name, kind in TASKS.items()
    if name not in VARIED
    and issubclass(kind, ClassificationTask | DiagnosticTask)
    and group_file("task", name).keys() >= ROWS.keys()
}


def own_table(folder):
    lines = ["text\tother\tlabel"]
    lines += [f"{'ab'[i % 2] * (i % 37)}x{i}\ty{i}{'z' * (i % 11)}\t{i % 2}" for i in range(60)]
    (folder / "own.tsv").write_text("\n".join(lines) + "\n")
    return [f"train={folder / 'own.tsv'}", "labels=['0','1']"]


def drawn(name, source, folder):
    """Return a prepared task with options that were drawn."""
    options = {option: draw(source) for option, draw in VARIED[name].items()}
    if options.get("encoding") == "scalars":
        options["black_is_padding"] = False
    if options.get("form") == "concatenated":
        options["max_length"] += 5
    words = [f"{option}={'null' if x is None else x}" for option, x in options.items()]
    own = own_table(folder) if name in {"table", "text_pairs", "corpus"} else []
    if name == "corpus":
        own = own[:1]
    if name == "text_pairs":
        own = [own[0], "source_text=text", "target_text=other"]
    task = named_task(name, words + own)
    task.prepare()
    return task


def generated(number):
    return [(name, seed) for name in sorted(VARIED) for seed in range(cases(number))]


def delivered(task, split):
    """Return by example what batches deliver under the padding mask: its sequences, its class."""
    found = {}
    for batch in task.batches(split, batch_size=1, seed=5):
        keep = (
            torch.ones(batch.tokens.shape, dtype=torch.bool) if batch.keep is None else batch.keep
        )
        rows = [row[there] for row, there in zip(batch.tokens[0], keep[0], strict=True)]
        places = [there.nonzero()[:, 0].tolist() for there in keep[0]]
        found[int(batch.index)] = (rows, places, int(batch.target))
    return found


def encoded(task, stored):
    """Return stored tokens as a model gets them, written down here anew."""
    tokens = torch.from_numpy(np.ascontiguousarray(stored)).long()
    if not task.spec.scalars:
        return tokens + task.shift
    return (tokens.float() / 255 - task.mean) / task.deviation


def same(task, seen, split):
    wanted = delivered(task, split)
    assert sorted(wanted) == list(range(len(seen.targets)))
    for example, (rows, places, target) in wanted.items():
        assert int(seen.targets[example]) == target
        found = list(seen.rows(np.array([example])))
        assert len(found) == len(rows) == seen.parts
        assert max(map(len, rows)) <= seen.lengths[example] <= task.max_length
        for own, row in zip(found, rows, strict=True):
            assert torch.equal(encoded(task, own), row)
        kept = seen.read(np.array([example]))
        assert kept.position.tolist() == [place for row in places for place in row]


def same_pictures(task, pictures, split):
    for example, (rows, places, target) in delivered(task, split).items():
        flat = pictures.read(np.array([example])).ravel()
        assert int(pictures.targets[example]) == target
        assert torch.equal(encoded(task, flat[places[0]]), rows[0])
        assert not np.delete(flat, places[0]).any()


@pytest.fixture
def views(monkeypatch):
    """Record what tasks give out to be read, with its split, and what estimators are handed."""
    made, handed = [], []

    def recorded(kind, method):
        real = getattr(kind, method)

        def give(task, split):
            made.append((split, real(task, split)))
            return made[-1][1]

        monkeypatch.setattr(kind, method, give)

    def estimate(train, data, **_):
        handed.extend((train, data))
        return np.zeros(len(data.targets), bool)

    def oracle(data, *_):
        handed.append(data)
        return np.zeros(len(data.targets), bool)

    recorded(ClassificationTask, "seen")
    recorded(gray.GrayTask, "pictures")
    monkeypatch.setattr(n_grams, "n_gram_answers", estimate)
    monkeypatch.setattr(image_windows, "window_answers", estimate)
    monkeypatch.setattr(listops_oracle, "oracle_answers", oracle)
    return made, handed


@pytest.mark.share(4)
@pytest.mark.fuzz
@pytest.mark.parametrize(("name", "seed"), generated(1))
def test_baselines_read_what_batches_deliver(name, seed, views, tmp_path):
    source = random.Random(f"{name} {seed}")
    task = drawn(name, source, tmp_path)
    split = source.choice(SPLITS)
    baselines = {baseline.name: baseline for baseline in task.baselines(split)}
    if isinstance(task, ClassificationTask):
        made, handed = views
        assert handed
        assert {id(data) for data in handed} <= {id(data) for _, data in made}
        for part, data in made:
            (same_pictures if isinstance(data, Pictures) else same)(task, data, part)
    elif isinstance(task, AcceptsSeveral):  # their own tests compute what their baselines reach
        assert baselines.keys().isdisjoint({"majority"})
        assert all(0 <= baseline.accuracy <= 1 for baseline in baselines.values())
    elif isinstance(task, DiagnosticTask):
        asking = task
        if task.loss is Loss.all:  # training asks for more than the answers
            asking = replace(task, loss=Loss.answers)
            asking.prepare()
        guess = torch.cat([batch.target[batch.weight > 0] for batch in one_by_one(asking, "train")])
        often = torch.bincount(guess).argmax()
        judged = torch.cat([batch.target[batch.weight > 0] for batch in one_by_one(task, split)])
        assert baselines["majority"].accuracy == pytest.approx(
            float((judged == often).double().mean())
        )
    else:
        assert isinstance(task, LanguageTask | TextPairs)
        known = torch.bincount(trained_on(task), minlength=task.spec.vocabulary)
        judged = torch.cat([answers_of(batch) for batch in one_by_one(task, split)])
        if split == "train" and isinstance(task, LanguageTask) and not rows_alone(task):
            judged = torch.from_numpy(np.asarray(task.split("train").tokens[1:], np.int64))
        first = 4 if isinstance(task, Proteins) else 0
        share = (1 + known).double()[first:]
        surprise = -(share / share.sum()).log()
        counts = torch.bincount(judged, minlength=task.spec.vocabulary)[first:]
        wanted = float((counts * surprise).sum() / counts.sum())
        assert baselines["unigram"].measures["loss"] == pytest.approx(wanted)


def one_by_one(task, split):
    return task.batches(split, batch_size=1, seed=0)


def rows_alone(task):
    return isinstance(task, Proteins) and task.form == "single"


def answers_of(batch):
    return (batch.target if batch.weight is None else batch.target[batch.weight > 0]).flatten()


def trained_on(task):
    """Return the tokens of train that a model sees: what rows show, or all of a stream."""
    if isinstance(task, TextPairs):
        return torch.cat([answers_of(batch) for batch in one_by_one(task, "train")])
    if not rows_alone(task):
        return torch.from_numpy(np.asarray(task.split("train").tokens, np.int64))
    shown = [
        batch.target if batch.keep is None else batch.target[batch.keep[:, 0]]
        for batch in one_by_one(task, "train")
    ]
    return torch.cat([residues.flatten() for residues in shown])


def telling(number, place, seed):
    """Return texts of 40 letters, and labels that the letter at one place tells."""
    words = random_words(Draw.sample, seed, number * 40) % np.uint64(26)
    letters = (words.astype(np.uint8) + ord("a")).reshape(number, 40)
    letters[:, place] = np.where(np.arange(number) % 2, ord("A"), ord("B"))
    return [row.tobytes().decode() for row in letters], np.arange(number) % 2


@pytest.mark.fuzz
@pytest.mark.parametrize("seed", range(cases(2)))
def test_a_cut_by_an_option_is_a_cut_in_the_file(seed, tmp_path, monkeypatch):
    """Whatever lies behind `max_length`, baselines are those of files that end there."""
    monkeypatch.setattr("lra.tasks.baselines.n_grams.EPOCHS", 1)
    source, second = random.Random(seed), "other" if seed % 2 else None
    cut, place = source.randint(1, 39), source.randint(0, 39)
    for part, split in enumerate(SPLITS):
        texts, labels = telling(160, place, 3 * seed + part)
        for stem, end in (("whole", 40), ("short", cut)):
            rows = [f"{t[:end]}\t{t[::-1][:end]}\t{k}" for t, k in zip(texts, labels, strict=True)]
            lines = "\n".join(["text\tother\tlabel", *rows])
            (tmp_path / f"{stem}-{split}.tsv").write_text(lines + "\n")

    def baselines(stem, longest):
        files = {split: str(tmp_path / f"{stem}-{split}.tsv") for split in SPLITS}
        task = TableTask(labels=["0", "1"], second_text=second, max_length=longest, **files)
        task.prepare()
        return [(baseline.name, baseline.outcomes.tolist()) for baseline in task.baselines("test")]

    assert baselines("whole", cut) == baselines("short", cut) == baselines("short", 1000)


def test_an_encoding_tells_no_more(monkeypatch):
    """Levels are what baselines read, however a model gets them; padding joins no neighbours."""
    tell_what_is_read(monkeypatch)

    def outcomes(**options):
        task = Pixels(source=PixelSource.sample, dataset=Dataset.mnist, **options)
        task.prepare()
        return {baseline.name: baseline.outcomes.tolist() for baseline in task.baselines("test")}

    plain, padded = outcomes(), outcomes(black_is_padding=True)
    assert outcomes(encoding="scalars") == plain
    assert [padded[name] == plain[name] for name in ("majority", "windows")] == [True, True]


@pytest.mark.fuzz
@pytest.mark.parametrize("name", ["text", "table", "mnist", "proteins"])
@pytest.mark.parametrize("seed", range(cases(1)))
def test_each_regime_has_a_certificate_of_its_own(name, seed, tmp_path, monkeypatch):
    """What is kept for some options is never served for others, and stays when those come."""
    tell_what_is_read(monkeypatch)
    source = random.Random(f"{name} {seed}")
    tasks = [drawn(name, source, tmp_path) for _ in range(4)]
    computed = []
    for kind in {type(task) for task in tasks}:
        real = kind.baselines
        monkeypatch.setattr(
            kind,
            "baselines",
            lambda task, split, real=real: computed.append(1) or real(task, split),
        )
    for task in [*tasks, *source.sample(tasks, 3)]:
        known, before = certified_baselines(task, "test"), len(computed)
        fresh = task.baselines("test")
        assert [(f.name, f.accuracy, f.measures) for f in known] == [
            (f.name, f.accuracy, f.measures) for f in fresh
        ]
        assert len(computed) == before + 1
    files = {path_of(task, "test") for task in tasks}
    assert all(file.is_file() for file in files)
    assert len(computed) == 7 + len(files)


def tell_what_is_read(monkeypatch):
    monkeypatch.setattr(image_windows, "window_answers", lambda train, data, **_: digits(data))
    monkeypatch.setattr(
        n_grams, "n_gram_answers", lambda train, data, **_: digits(data, data.lengths)
    )


def digits(data, lengths=()):
    """Return outcomes that tell what was read."""
    kept = data.read(np.arange(min(32, len(data.targets))))
    code = int(sum(np.sum(part, dtype=np.int64) for part in kept) + np.sum(lengths))
    return np.arange(len(data.targets)) < code % len(data.targets)
