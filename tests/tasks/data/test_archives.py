"""Packed files: damage is named with its place, bombs are refused in bounded memory."""

import bz2
import gzip
import io
import json
import lzma
import random
import resource
import struct
import subprocess
import sys
import tarfile
import zipfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from lra.tasks.data.archives import open_member, open_packed, opened_zip, tar_members
from lra.tasks.errors import BadData
from tests.fuzz import cases

REPOSITORY = Path(__file__).parents[3]
PACKERS = {".gz": gzip.compress, ".xz": lzma.compress, ".bz2": bz2.compress}
NOISE = random.Random(0).randbytes(300_000)
SPARE_BYTES = 64 << 20
"""Address space that a child gets beyond what the imports took."""


def tar(path, members, form=tarfile.PAX_FORMAT):
    kind = path.suffix[1:]
    with tarfile.open(path, f"w:{'' if kind == 'tar' else kind}", format=form) as packed:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            packed.addfile(info, io.BytesIO(content))
    return path


def everything(path, most=10**7):
    return dict(tar_members(path, lambda _: True, most=most))


@pytest.mark.parametrize("ending", PACKERS)
def test_several_streams_and_padding_are_one_content(tmp_path, ending):
    pack, path = PACKERS[ending], tmp_path / f"a{ending}"
    path.write_bytes(pack(NOISE) + pack(b"") + pack(b"more") + bytes(64))
    with open_packed(path) as file:
        assert file.read() == NOISE + b"more"
    path.write_bytes(pack(b"one\ntwo"))
    with open_packed(path) as file:
        assert list(file) == [b"one\n", b"two"]


@pytest.mark.parametrize("ending", PACKERS)
def test_damage_is_named_with_its_place(tmp_path, ending):
    """Wherever a byte is lost, changed or added, the file, the place and the fault are said."""
    pack, path, drawn = PACKERS[ending], tmp_path / f"a{ending}", random.Random(1)
    whole = pack(NOISE)
    for number in range(cases(40)):
        spoilt = bytearray(whole)
        place = drawn.randrange(len(whole) if number % 8 else 30)
        if number % 3 == 0:
            del spoilt[place:]
        elif number % 3 == 1:
            spoilt[place] ^= 1 << drawn.randrange(8)
        else:
            spoilt += b"what follows"
        path.write_bytes(spoilt)
        try:
            with open_packed(path) as file:
                found = file.read()
        except BadData as error:
            said = str(error)
            assert str(path) in said
            assert f"of {len(spoilt):,} packed bytes" in said
            assert "fetch it again" in said
        else:  # the time and the name in a head of gzip are no part of the content
            assert found == NOISE
            assert ending == ".gz"


@pytest.mark.parametrize("kind", ["tar", "gz", "xz", "bz2"])
def test_a_tar_that_is_cut_anywhere_is_refused(tmp_path, kind):
    """Also between two members, where `tarfile` sees an end like any other."""
    path = tar(tmp_path / f"a.{kind}", {f"{i}.txt": NOISE[: 100 * i] for i in range(20)})
    assert len(everything(path)) == 20
    whole, drawn = path.read_bytes(), random.Random(2)
    last = len(whole.rstrip(b"\0")) if kind == "tar" else len(whole) - 1
    edges = [*range(0, last + 1, 512), *(drawn.randrange(last) for _ in range(cases(40)))]
    for place in edges:
        path.write_bytes(whole[:place])
        with pytest.raises(BadData, match="fetch it again"):
            everything(path)


def test_a_broken_header_is_no_end(tmp_path):
    path = tar(tmp_path / "a.tar", {f"{i}.txt": b"x" * 512 for i in range(6)})
    content = bytearray(path.read_bytes())
    content[4 * 1024 + 3] ^= 1
    path.write_bytes(content)
    with pytest.raises(BadData, match="bad checksum"):
        everything(path)


def test_what_follows_the_end_is_not_passed_over(tmp_path):
    first, second = (tar(tmp_path / f"{n}.tar", {f"{n}.txt": b"x"}) for n in (1, 2))
    first.write_bytes(first.read_bytes() + second.read_bytes())
    with pytest.raises(BadData, match="there are bytes after the end"):
        everything(first)


FORMS = (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ["tar", "gz", "xz", "bz2"])
def test_mutated_tars_are_read_or_refused(tmp_path, kind, form):
    path = tar(tmp_path / f"a.{kind}", {f"a/{'n' * 80}{i}": NOISE[:900] for i in range(9)}, form)
    whole, drawn = path.read_bytes(), random.Random(3)
    for _ in range(cases(60)):
        spoilt = bytearray(whole)
        for _ in range(drawn.randint(1, 4)):
            place = drawn.randrange(len(spoilt) or 1)
            match drawn.randrange(4):
                case 0 if spoilt:
                    spoilt[place] = drawn.randrange(256)
                case 1:
                    del spoilt[place : place + drawn.randrange(1, 2000)]
                case 2:
                    spoilt[place:place] = drawn.randbytes(drawn.randrange(600))
                case _:
                    spoilt[place:place] = spoilt[place : place + 512]
        path.write_bytes(spoilt)
        with suppress(BadData):
            everything(path)


def test_mutated_zips_are_read_or_refused(tmp_path):
    path, drawn = tmp_path / "a.zip", random.Random(4)
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA):
        with zipfile.ZipFile(path, "w", method) as packed:
            for name in "abc":
                packed.writestr(name, NOISE[:2000])
        whole = path.read_bytes()
        for number in range(cases(100)):
            spoilt = bytearray(whole)
            for _ in range(drawn.randint(1, 4)):
                place = drawn.randrange(len(spoilt))
                if number % 2:
                    place = len(spoilt) - 1 - place % 200  # the directory at its end
                spoilt[place] = drawn.randrange(256)
            path.write_bytes(spoilt)
            with suppress(BadData), opened_zip(path) as opened:
                for name in opened.namelist():
                    with open_member(opened, name) as file:
                        file.read()


def header(name, size, kind=tarfile.REGTYPE):
    info = tarfile.TarInfo(name)
    info.size, info.type = size, kind
    return info.tobuf(tarfile.GNU_FORMAT)


def zeros(compressor, number):
    """Pack zeros, one megabyte after another."""
    head = compressor.compress(bytes(1 << 20))
    return head + b"".join(compressor.compress(bytes(1 << 20)) for _ in range(number - 1)) + \
        compressor.flush()  # fmt: skip


def npz_that_says(shape):
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        file, {"descr": "|u1", "fortran_order": False, "shape": shape}
    )
    return file.getvalue() + bytes(10)


def bombs(folder):
    """Write small files that become more than the memory of a child."""
    (folder / "stream.xz").write_bytes(zeros(lzma.LZMACompressor(preset=0), 72))
    stream = zeros(bz2.BZ2Compressor(), 72)
    (folder / "stream.bz2").write_bytes(stream)
    size = 72 << 20
    for name, member in (
        ("member", header("aclImdb/train/pos/0_9.txt", size)),
        ("name", header("././@LongLink", size, tarfile.GNUTYPE_LONGNAME)),
    ):
        (folder / f"{name}.tar.bz2").write_bytes(bz2.compress(member) + stream)
    (folder / "seek.tar").write_bytes(header("x", 1 << 60) + bytes(4096))
    with zipfile.ZipFile(
        folder / "deflate.zip", "w", zipfile.ZIP_DEFLATED, compresslevel=1
    ) as packed:
        packed.writestr("enwik8", bytes(72 << 20))
    with zipfile.ZipFile(folder / "bzip2.zip", "w", zipfile.ZIP_BZIP2) as packed:
        packed.writestr("enwik8", bytes(72 << 20))
    for name in ("train", "test"):
        with zipfile.ZipFile(folder / f"cifar10_gray_{name}.npz", "w") as packed:
            packed.writestr("images.npy", npz_that_says((10**10, 32, 32)))
            packed.writestr("labels.npy", npz_that_says((10,)))


READERS = {
    "stream.xz": "from lra.tasks.language.characters import read_text as r; r(Path('stream.xz'))",
    "stream.bz2": "from lra.tasks.language.characters import read_text as r; r(Path('stream.bz2'))",
    "lines.bz2": "from lra.tasks.classification.pairs import read_pairs as r; "
        "[*r(Path('stream.bz2'), longest=9)]",
    "fasta.bz2": "from lra.tasks.proteins.fasta import read_fasta as r; [*r(Path('stream.bz2'))]",
    "member.tar.bz2": "from lra.tasks.classification.reviews import read_archive as r; "
        "r(Path('member.tar.bz2'))",
    "cifar.tar.bz2": "from lra.tasks.classification.images import read_cifar; "
        "read_cifar(Path('member.tar.bz2'))",
    "name.tar.bz2": "from lra.tasks.classification.reviews import read_archive; "
        "read_archive(Path('name.tar.bz2'))",
    "seek.tar": "from lra.tasks.classification.reviews import read_archive; "
        "read_archive(Path('seek.tar'))",
    "deflate.zip": "from lra.tasks.language.characters import read_text as r; "
        "r(Path('deflate.zip'))",
    "bzip2.zip": "from lra.tasks.language.characters import read_text as r; r(Path('bzip2.zip'))",
    "npz": "from lra.tasks.classification.images import read_cifar; read_cifar(Path('.'))",
    "parquet": "from lra.tasks.data.hub import check_folder; check_folder(Path('tables'))",
}  # fmt: skip

CHILD = """
import json, os, resource, sys, traceback
from pathlib import Path
import lra.tasks.language.characters
import lra.tasks.classification.pairs
import lra.tasks.proteins.fasta
import lra.tasks.classification.reviews
import lra.tasks.classification.images
import lra.tasks.data.hub, pyarrow.parquet
from lra.tasks.errors import BadData
for name, reader in json.loads(sys.argv[1]).items():
    if os.fork():
        os.wait()
        continue
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + int(sys.argv[2]),) * 2)
    resource.setrlimit(resource.RLIMIT_FSIZE, (60 << 20,) * 2)
    try:
        exec(reader)
    except BadData as error:
        print(json.dumps([name, str(error)]), flush=True)
    except BaseException:
        print(name, traceback.format_exc(), file=sys.stderr, flush=True)
    os._exit(0)
"""
"""Imports once, then forks a process for each reader."""


@pytest.fixture(scope="module")
def bomb_folder(tmp_path_factory):
    import pyarrow as pa
    from pyarrow import parquet

    folder = tmp_path_factory.mktemp("bombs")
    bombs(folder)
    (folder / "tables").mkdir()
    text = pa.DictionaryArray.from_arrays(pa.array([0] * 400, pa.int32()), ["x" * 10**6])
    parquet.write_table(pa.table({"text": text}), folder / "tables" / "train.parquet")
    assert max(p.stat().st_size for p in folder.rglob("*") if p.is_file()) < 3 << 20
    return folder


@pytest.fixture(scope="module")
def bombs_read(bomb_folder):
    return subprocess.run(
        [sys.executable, "-c", CHILD, json.dumps(READERS), str(SPARE_BYTES)],
        cwd=bomb_folder,
        env={"PYTHONPATH": str(REPOSITORY), "LRA_DATA": str(bomb_folder / "cache"),
             "OMP_NUM_THREADS": "1", "HOME": str(bomb_folder)},
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
@pytest.mark.parametrize("bomb", READERS)
def test_bombs_are_refused_in_little_memory(bomb_folder, bombs_read, bomb):
    refusals = dict(map(json.loads, bombs_read.stdout.splitlines()))
    assert bomb in refusals, bombs_read.stderr
    assert "memory" not in refusals[bomb]


def test_a_thousand_small_members_are_no_bomb(tmp_path):
    path = tar(tmp_path / "a.gz", {f"{i}.txt": NOISE[i : i + 300] for i in range(2000)})
    assert len(everything(path)) == 2000


def test_more_than_a_reader_has_a_use_for(tmp_path):
    path = tar(tmp_path / "a.tar", {"a": NOISE, "b": NOISE})
    with pytest.raises(BadData, match="more than the allowed 400,000 bytes"):
        everything(path, most=400_000)
    (tmp_path / "plain").write_bytes(NOISE)
    with pytest.raises(BadData, match="300,000 bytes, more than the allowed 1,000"):
        open_packed(tmp_path / "plain", 1000)


def test_a_zip_that_is_encrypted_is_refused(tmp_path):
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as packed:
        packed.writestr("a", b"x")
    content = bytearray(path.read_bytes())
    at = content.index(b"PK\x01\x02") + 8
    content[at : at + 2] = struct.pack("<H", 1)
    path.write_bytes(content)
    with pytest.raises(BadData, match="encrypted"), opened_zip(path):
        pass


def test_limits_of_this_process_are_as_they_were():
    assert resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY
