"""A command line leads to the same cells as ever: by their keys stored results are found."""

import hashlib

import pytest

import lra.cells
from lra.cli import main

RECORDED = {
    "model=linear":
        "1 432ddc18526bf4ce fe5629ea20d1285c",
    "-m model=linear,performer,fnet task=listops,text seed=range(0,3) task.source=sample":
        "18 2d2e067f4712d42a ef0fc24d2e3a8453",
    "-m +experiment=quickstart hardware.threads=2":
        "49 f8a7e31e380a8eb7 270dff15f53046f8",
    "-m +experiment=transfer task.source=sample task.path=null":
        "9 df8fc84a3f062168 8cbfc5b059a105e9",
    "+protocol=nystrom task=listops model=nystromformer":
        "1 c6bd9a775f112d67 43d20541d50647f0",
    "+protocol=lra_paper task=text model=reformer task.source=sample":
        "1 ce8b247c4b81456f a736052dee0a5787",
    "-m +experiment=span task.source=sample":
        "20 c8c1621e563b8631 38ef682e1b03b426",
    "-m +experiment=approximation hardware.threads=2":
        "67 7fbfc22b75c185e5 a5a3cdb406bb079d",
    "model=softmax model.layers=[fnet,softmax] model.backbone.depth=2 hardware.device=cpu "
    "++runner.keep=last":
        "1 7c2fc85986a9b0bc b27977647e5552b5",
    "-m model=sliding_window model.mixer.window=[8],[16],[4,8] seed=3,1":
        "6 dca7f05481ad4da3 42b1e8ace08fa276",
    "-m model=luna,tlb task=enwik8,text8 task.source=sample":
        "4 0d64d9a03a38f0bd b5c0f45f0554b234",
}  # fmt: skip
"""By the words: the number of cells, the first key, and a hash of all keys in order."""


@pytest.mark.parametrize("line", RECORDED)
def test_keys_stay(
    line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Recorded before combinations were composed in one go. Machine and torch belong to a key."""
    monkeypatch.setattr(lra.cells, "device_name", lambda device: "a processor")
    monkeypatch.setattr(lra.cells, "version", lambda package: "2.6.0")
    words = ("runner.dry_run=true", "results=nowhere", "logger=none")
    assert main(["run", *line.split(), *words]) == 0
    keys = [listed.split()[0] for listed in capsys.readouterr().out.splitlines()[:-1]]
    every = hashlib.sha256("\n".join(keys).encode()).hexdigest()[:16]
    assert f"{len(keys)} {keys[0]} {every}" == RECORDED[line]
