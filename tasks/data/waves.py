"""Recordings in WAV files, in a folder or in an archive, read by the standard library alone."""

import io
import wave
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

import numpy as np
from jaxtyping import Int16

from lra.conf.short_values import short_repr
from lra.tasks.data.archives import open_member, opened_zip, tar_members
from lra.tasks.errors import BadData, NotPrepared

LARGEST_BYTES = 1 << 33
"""Most unpacked bytes of all files that are read together; Speech Commands have 3.8e9."""
WIDTH = 2
"""Bytes of a sample."""


def read_wave(content: bytes, where: str, *, rate: int) -> Int16[np.ndarray, " n"]:
    """Return the samples of a mono recording of 16 bits; `where` opens messages.

    Raises:
        BadData: The recording has another form or rate (in Hz), no samples, or fewer than it says.
    """
    try:
        with wave.open(io.BytesIO(content)) as file:
            facts = file.getparams()
            if facts.nchannels != 1:
                raise BadData(
                    f"{where}: the recording has {facts.nchannels} channels; wanted 1 (mono)"
                )
            if facts.sampwidth != WIDTH:
                raise BadData(
                    f"{where}: a sample has {8 * facts.sampwidth} bits; wanted {8 * WIDTH}"
                )
            if facts.framerate != rate:
                raise BadData(
                    f"{where}: the recording has {facts.framerate:,} samples a second; wanted "
                    f"{rate:,}; resample it, or choose the right data"
                )
            samples = file.readframes(facts.nframes)
    except (wave.Error, EOFError) as error:
        raise BadData(
            f"{where}: lra cannot read this WAV file ({error or 'it ends too early'}); fetch it "
            "again"
        ) from error
    if not facts.nframes:
        raise BadData(f"{where}: the recording is empty; wanted at least 1 sample")
    if len(samples) != WIDTH * facts.nframes:
        raise BadData(
            f"{where}: the recording has {len(samples) // WIDTH:,} of the {facts.nframes:,} "
            "samples that its header states; the file is truncated: fetch it again"
        )
    return np.frombuffer(samples, "<i2").astype(np.int16)


def packed_files(
    place: Path, wanted: Callable[[PurePosixPath], bool]
) -> Iterator[tuple[PurePosixPath, bytes]]:
    """Yield name and content of the wanted files of a folder, a tar (also packed) or a zip.

    Raises:
        NotPrepared: `place` is missing.
        BadData: The archive is damaged, or has a name outside of it.
    """

    def inside(name: PurePosixPath) -> bool:
        """Return whether a file is wanted; refuse a name that leads out of the archive."""
        if name.is_absolute() or ".." in name.parts:
            raise BadData(
                f"{place} has a file outside of the archive: {short_repr(str(name))}; fetch the "
                "archive from its publisher"
            )
        return wanted(name)

    if place.is_dir():
        for file in sorted(path for path in place.rglob("*") if path.is_file()):
            if wanted(name := PurePosixPath(file.relative_to(place).as_posix())):
                yield name, file.read_bytes()
    elif not place.is_file():
        raise NotPrepared(f"task.path={place} is missing; wanted a folder or an archive")
    elif place.suffix.lower() == ".zip":
        with opened_zip(place, LARGEST_BYTES) as packed:
            for text in sorted(packed.namelist()):
                if inside(PurePosixPath(text)) and not text.endswith("/"):
                    with open_member(packed, text) as member:
                        yield PurePosixPath(text), member.read()
    else:
        yield from tar_members(place, inside, most=LARGEST_BYTES)
