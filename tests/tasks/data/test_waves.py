"""WAV files: their samples, and a sentence for each file that is no recording of this form."""

import io
import tarfile
import wave
import zipfile
from pathlib import PurePosixPath

import numpy as np
import pytest

from lra.tasks.data.waves import packed_files, read_wave
from lra.tasks.errors import BadData, NotPrepared

SAMPLES = np.array([0, 1, -1, 32_767, -32_768, 250], np.int16)


def wav(samples=SAMPLES, *, rate=8000, channels=1, width=2):
    file = io.BytesIO()
    with wave.open(file, "wb") as written:
        written.setnchannels(channels)
        written.setsampwidth(width)
        written.setframerate(rate)
        written.writeframes(np.asarray(samples).tobytes())
    return file.getvalue()


def test_samples_are_read_exactly():
    samples = read_wave(wav(), "a.wav", rate=8000)
    assert samples.dtype == np.int16
    assert samples.tolist() == SAMPLES.tolist()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (wav(rate=16_000), "a.wav: the recording has 16,000 samples a second; wanted 8,000"),
        (wav(width=1), "a.wav: a sample has 8 bits; wanted 16"),
        (wav(channels=2), r"a.wav: the recording has 2 channels; wanted 1 \(mono\)"),
        (wav(SAMPLES[:0]), "a.wav: the recording is empty; wanted at least 1 sample"),
        (wav()[:-5], "has 3 of the 6 samples that its header states; the file is truncated"),
        (wav()[:20], "lra cannot read this WAV file"),
        (b"", "lra cannot read this WAV file"),
        (b"OggS" + bytes(90), "lra cannot read this WAV file"),
    ],
)
def test_other_files_are_refused(content, message):
    with pytest.raises(BadData, match=message):
        read_wave(content, "a.wav", rate=8000)


def packed(place, names):
    """Write a folder, a tar or a zip with a recording for each name."""
    if place.suffix == ".zip":
        with zipfile.ZipFile(place, "w") as archive:
            for name in names:
                archive.writestr(name, wav())
    elif place.suffix == ".xz":
        with tarfile.open(place, "w:xz") as archive:
            for name in names:
                member = tarfile.TarInfo(name)
                member.size = len(wav())
                archive.addfile(member, io.BytesIO(wav()))
    else:
        for name in names:
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_bytes(wav())
    return place


@pytest.mark.parametrize("name", ["folder", "archive.tar.xz", "archive.zip"])
def test_folders_and_archives_have_the_same_files(tmp_path, name):
    place = packed(tmp_path / name, ["x/b.wav", "x/notes.txt", "a.wav"])
    found = dict(packed_files(place, lambda path: path.suffix == ".wav"))
    assert found == {PurePosixPath("a.wav"): wav(), PurePosixPath("x/b.wav"): wav()}


@pytest.mark.parametrize("name", ["archive.tar.xz", "archive.zip"])
@pytest.mark.parametrize("outside", ["../a.wav", "/tmp/a.wav", "x/../../a.wav"])
def test_a_file_outside_of_an_archive_is_refused(tmp_path, name, outside):
    place = packed(tmp_path / name, [outside])
    with pytest.raises(BadData, match="has a file outside of the archive"):
        list(packed_files(place, lambda path: True))


def test_a_damaged_or_missing_archive_is_refused(tmp_path):
    place = packed(tmp_path / "archive.tar.xz", ["a.wav"])
    place.write_bytes(place.read_bytes()[:-40])
    with pytest.raises(BadData, match="damaged"):
        list(packed_files(place, lambda path: True))
    with pytest.raises(NotPrepared, match=r"nowhere is missing; wanted a folder or an archive"):
        list(packed_files(tmp_path / "nowhere", lambda path: True))
