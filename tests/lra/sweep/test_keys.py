"""A command line leads to the same cells as ever: by their keys stored results are found."""

import hashlib

import pytest

import lra.sweep.cells
from lra.composition.hydra_entry import entries
from lra.sweep.cell_list import build

RECORDED = {
    "model=linear":
        "1 019ff216bc3ef88a 4b89c7b52007b276",
    "-m model=linear,performer,fnet task=listops,text seed=range(0,3) task.source=sample":
        "18 4d0edf2efd16ee72 b7b688d662935241",
    "-m +experiment=quickstart hardware.threads=2":
        "64 0e2759de83e7c2fa 97b9a7c720c0fb2e",
    "-m +experiment=transfer task.source=sample task.path=null":
        "9 d3bc5ee7a15d9f35 f1fe1d1b850fa20a",
    "+protocol=nystrom task=listops model=nystromformer":
        "1 adb9a6e36e7840b1 54f84c5f54a350be",
    "+protocol=lra_paper task=text model=reformer task.source=sample":
        "1 32f6dbee19931637 5e9c7e4ee71d03fe",
    "-m +experiment=span task.source=sample":
        "20 de61f0be64ce1672 363fb6d6e6448ef2",
    "-m +experiment=approximation hardware.threads=2":
        "73 62e48fe1fa991727 38e62ea508754560",
    "model=softmax model.layers=[fnet,softmax] model.backbone.depth=2 hardware.device=cpu "
    "++runner.keep=last":
        "1 a8040d7d85a148a7 86d17db04a226cb3",
    "-m model=sliding_window model.mixer.window=[8],[16],[4,8] seed=3,1":
        "6 9bb8d57b45a9015a cc0215db47a4b6d9",
    "-m model=luna,tlb task=enwik8,text8 task.source=sample":
        "4 3ecc354ef214ab19 ec11d0b1766f2bc3",
}  # fmt: skip
"""By the words: the number of cells, the first key, and a hash of all keys in order."""


@pytest.mark.parametrize("line", RECORDED)
def test_keys_stay(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Machine and torch belong to a key."""
    monkeypatch.setattr(lra.sweep.cells, "device_name", lambda device: "a processor")
    monkeypatch.setattr(lra.sweep.identity, "version", lambda package: "2.6.0")
    sweep = build(entries([*line.split(), "results=nowhere", "logger=none"]), elsewhere=True)
    keys = [cell.key for cell in sweep.cells]
    every = hashlib.sha256("\n".join(keys).encode()).hexdigest()[:16]
    assert f"{len(keys)} {keys[0]} {every}" == RECORDED[line]
