"""Raw speech: splits of recordings, what a model reads of them, and refusals."""

import math

import numpy as np
import pytest
import torch

from lra.tasks.classification import speech_commands, spoken_digits
from lra.tasks.classification.speech import FULL_SCALE, GLOBAL, Normalise, Sound, mu_law
from lra.tasks.classification.speech_commands import CommandWords, SpeechCommands
from lra.tasks.classification.spoken_digits import DigitSource, DigitSplit, SpokenDigits
from lra.tasks.contract import check_task
from lra.tasks.errors import BadData, NotPrepared
from tests.tasks.data.test_waves import wav

LONG = 40
"""Samples of the longest written recording."""


@pytest.fixture(autouse=True)
def data(tmp_path, monkeypatch):
    monkeypatch.setenv("LRA_DATA", str(tmp_path / "data"))


@pytest.fixture
def digits(tmp_path, monkeypatch):
    """Recordings of 12 takes by name, each a few samples that tell digit, speaker and take."""
    monkeypatch.setattr(spoken_digits, "TAKES", 12)
    folder = tmp_path / "recordings"
    folder.mkdir()
    for digit in range(10):
        for number, speaker in enumerate(spoken_digits.SPEAKERS):
            for take in range(12):
                samples = np.array([digit, number, take, 1000] * (1 + (take % 10)), np.int16)
                (folder / f"{digit}_{speaker}_{take}.wav").write_bytes(wav(samples))
    return folder


def read(folder, **options):
    task = SpokenDigits(path=str(folder), max_length=LONG, **options)
    task.prepare()
    return task


def told(task, split):
    """Digit, speaker, take and class of each recording of a split."""
    data = task.split(split)
    rows = data.rows(np.arange(len(data.targets)))
    return {
        (*row[:3].tolist(), int(target)) for row, target in zip(rows, data.targets, strict=True)
    }


def test_takes_divide_the_recordings(digits):
    task = read(digits)
    for split, takes in (
        ("test", range(5)),
        ("validation", range(5, 10)),
        ("train", range(10, 12)),
    ):
        wanted = {(d, s, t, d) for d in range(10) for s in range(6) for t in takes}
        assert told(task, split) == wanted
    assert [f for f in check_task(task) if not f.passed] == []


def test_one_speaker_may_be_the_test(digits):
    task = read(digits, split=DigitSplit.speaker, speaker="lucas")
    assert {row[1] for row in told(task, "test")} == {2}
    assert task.examples("test") == 120
    assert {row[1] for row in told(task, "train") | told(task, "validation")} == {0, 1, 3, 4, 5}
    assert (task.examples("train"), task.examples("validation")) == (350, 250)
    assert task.spec.source == "files: recordings, test speaker lucas"
    assert task.folder != read(digits).folder


def test_recordings_are_padded_with_silence_or_cut(digits):
    task = read(digits)
    (batch,) = task.batches("validation", batch_size=300, seed=0)
    assert batch.tokens.shape == (300, 1, LONG)
    assert batch.keep is None
    for row, index in zip(batch.tokens[:, 0], batch.index.tolist(), strict=True):
        (samples,), _ = task.example("validation", index)
        wanted = torch.zeros(LONG)
        wanted[: len(samples)] = torch.from_numpy(samples / 32768.0).float()
        assert torch.equal(row, wanted)
    short = SpokenDigits(path=str(digits), max_length=3)
    assert next(short.batches("validation", batch_size=9, seed=0)).tokens.shape == (9, 1, 3)


def padded(task, split="train"):
    rows = np.zeros((task.examples(split), task.max_length))
    for row, samples in zip(rows, task.split(split).rows(np.arange(len(rows))), strict=True):
        row[: len(samples)] = samples / FULL_SCALE
    return rows


@pytest.mark.parametrize("by_step", [False, True])
def test_normalisation_is_that_of_its_name(digits, by_step, monkeypatch):
    monkeypatch.setattr(SpokenDigits, "by_step", by_step)
    train = padded(read(digits))
    (plain,) = read(digits).batches("test", batch_size=300, seed=0)
    (common,) = read(digits, normalise=GLOBAL).batches("test", batch_size=300, seed=0)
    wanted = (plain.tokens - train.mean()) / train.std()
    torch.testing.assert_close(common.tokens, wanted.float())
    (s4,) = read(digits, normalise=Normalise.s4).batches("test", batch_size=300, seed=0)
    axis = 0 if by_step else None
    again, mean, deviation = (
        torch.from_numpy(np.asarray(part)) / 32_768
        for part in (plain.tokens.numpy(), train.mean(axis), train.std(axis))
    )
    torch.testing.assert_close(s4.tokens, ((again - mean) / (deviation + 1e-5)).float())


def test_tests_at_half_the_rate_read_every_second_sample(digits):
    half, whole = read(digits, test_rate=2), read(digits)
    for split, step in (("test", 2), ("validation", 1), ("train", 1)):
        ours, theirs = (next(t.batches(split, batch_size=8, seed=0)) for t in (half, whole))
        assert torch.equal(ours.tokens, theirs.tokens[..., ::step])
    assert half.spec.source.endswith(", 1 of 2 samples in tests")
    assert half.folder == whole.folder


def test_mu_law_is_literal(digits):
    values = torch.tensor([[[-32_768, -300, -1, 0, 1, 300, 32_767]]])
    wanted = []
    for sample in values.flatten().tolist():
        x = sample / 32_768
        curved = math.copysign(math.log(1 + 255 * abs(x)) / math.log(256), x)
        wanted.append(math.floor((curved + 1) / 2 * 255 + 0.5))
    assert mu_law(values).flatten().tolist() == wanted
    assert (wanted[0], wanted[3], wanted[-1]) == (0, 128, 255)
    task = read(digits, encoding=Sound.mu_law)
    assert (task.spec.vocabulary, task.spec.scalars) == (256, False)
    assert next(task.batches("test", batch_size=4, seed=0)).tokens.dtype == torch.int64


def test_the_sample_is_heard_by_its_spectrum():
    task = SpokenDigits(source=DigitSource.sample, max_length=2048)
    task.prepare()
    found = {baseline.name: baseline.accuracy for baseline in task.baselines("test")}
    assert found["majority"] == pytest.approx(0.1)
    assert found["band_energies"] > 0.8
    assert {split: task.examples(split) for split in ("train", "validation", "test")} == {
        "train": 300, "validation": 300, "test": 300,
    }  # fmt: skip


def test_missing_and_faulty_recordings_are_refused(digits):
    with pytest.raises(NotPrepared, match="needs files: download the Free Spoken Digit Dataset"):
        SpokenDigits().prepare()
    (digits / "3_theo_7.wav").unlink()
    with pytest.raises(BadData, match="validation has 299 recordings; wanted 300"):
        read(digits)
    assert read(digits, partial=True).spec.source == "files: recordings (a part)"
    (digits / "3_theo_7.wav").write_bytes(wav(rate=16_000))
    with pytest.raises(BadData, match=r"3_theo_7\.wav: the recording has 16,000 samples a second"):
        read(digits)
    (digits / "3_anna_7.wav").write_bytes(wav())
    with pytest.raises(BadData, match=r"3_anna_7\.wav is none of DIGIT_SPEAKER_TAKE\.wav"):
        read(digits)


@pytest.fixture
def commands(tmp_path, monkeypatch):
    """An unpacked archive: 20 recordings of each word, every fifth of which is shorter."""
    monkeypatch.setattr(speech_commands, "RATE", LONG)
    folder = tmp_path / "speech_commands"
    lists = {"validation_list.txt": [], "testing_list.txt": []}
    for number, word in enumerate(speech_commands.SC35):
        (folder / word).mkdir(parents=True)
        for take in range(20):
            name = f"{word}/ab{take:02}_nohash_0.wav"
            samples = np.full(LONG - (take % 5 == 0), 100 * number + take, np.int16)
            (folder / name).write_bytes(wav(samples, rate=LONG))
            if take < 6:
                lists["validation_list.txt" if take < 3 else "testing_list.txt"].append(name)
    for name, lines in lists.items():
        (folder / name).write_text("\n".join(lines) + "\n")
    (folder / "_background_noise_").mkdir()
    (folder / "_background_noise_" / "hum.wav").write_bytes(wav(rate=48_000))
    return folder


def spoken(folder, **options):
    task = SpeechCommands(path=str(folder), max_length=LONG, **options)
    task.prepare()
    return task


def firsts(task, split):
    return {
        (int(row[0]), int(target), len(row))
        for row, target in zip(
            task.split(split).rows(np.arange(task.examples(split))),
            task.split(split).targets,
            strict=True,
        )
    }


def test_the_lists_name_validation_and_test_of_sc35(commands):
    task = spoken(commands)
    for split, takes in (("validation", range(3)), ("test", range(3, 6)), ("train", range(6, 20))):
        assert firsts(task, split) == {
            (100 * word + take, word, LONG - (take % 5 == 0))
            for word in range(35)
            for take in takes
        }
    assert task.spec.classes == 35
    assert task.spec.source == "files: speech_commands, sc35"


def test_sc10_has_whole_seconds_of_ten_words(commands):
    task = spoken(commands, words=CommandWords.sc10)
    seen = {split: firsts(task, split) for split in ("train", "validation", "test")}
    assert {split: len(rows) for split, rows in seen.items()} == {
        "train": 120, "validation": 20, "test": 20,
    }  # fmt: skip
    for rows in seen.values():
        assert {length for _, _, length in rows} == {LONG}
        counts = np.bincount([word for _, word, _ in rows])
        assert len({*counts.tolist()}) == 1  # as many of each word
    assert len(set.union(*seen.values())) == 160
    assert task.names[0] == "yes"
    other = spoken(commands, words=CommandWords.sc10, data_seed=1)
    assert firsts(other, "test") != seen["test"]


def test_gaps_in_speech_commands_are_refused(commands):
    with pytest.raises(NotPrepared, match="needs files: download"):
        SpeechCommands().prepare()
    (commands / "bed" / "ab00_nohash_0.wav").unlink()
    with pytest.raises(BadData, match="lacks 1 recordings of its lists and 0 of the words"):
        spoken(commands)
    assert spoken(commands, partial=True).examples("validation") == 3 * 35 - 1
    (commands / "testing_list.txt").unlink()
    with pytest.raises(BadData, match=r"has no testing_list\.txt"):
        spoken(commands, partial=True)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SpokenDigits(speaker="anna"), "wanted one of george, jackson"),
        (lambda: SpokenDigits(max_length=0), "max_length must be at least 1"),
        (lambda: SpokenDigits(test_rate=0), r"task\.test_rate=0: tests read every sample with 1"),
        (lambda: SpokenDigits(source=DigitSource.sample, path="x"), "reads no files"),
        (lambda: SpokenDigits(partial=True), r"task\.partial=true needs task\.path"),
        (
            lambda: SpeechCommands(encoding=Sound.mu_law, normalise=Normalise.s4),
            r"got task\.normalise=s4; set task\.normalise=none",
        ),
        (lambda: SpeechCommands(data_seed=1), r"task\.data_seed splits words=sc10"),
    ],
)
def test_options_without_sense_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
