"""`lra list kernels`, `lra doctor` on packages of kernels, and what `lra plan` says of them."""

import json
from collections.abc import Callable
from dataclasses import replace
from importlib import metadata

import pytest

import lra.choices.kernels
from lra.choices.kernels import operations_of, packages, try_package
from lra.composition.catalogue import choices
from lra.composition.yaml_text import load
from lra.models.kernels.door import session_is_open
from lra.models.kernels.kernel import PublicKernel
from lra.models.kernels.providers import all_kernels
from tests.models.kernels.fake_kernels import DECAYED, DELTA, planted, table

Lra = Callable[..., tuple[int, str]]
NUMPY = metadata.version("numpy")


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that lets lra know these kernels and no others."""

    def only(*kernels: PublicKernel) -> None:
        monkeypatch.setattr(lra.choices.kernels, "all_kernels", lambda: table(*kernels))

    return only


def called(family: str) -> list[str]:
    (file,) = (file for file in choices("model") if file.stem == family)
    return operations_of(load(file), str(file))


def test_every_kernel_is_listed(lra: Lra) -> None:
    code, text = lra("list", "kernels")
    assert code == 0
    assert text == lra("list", "kernel")[1]
    for operation, kernels in all_kernels().items():
        for kernel in kernels:
            assert any(
                line.split()[:2] == [operation, kernel.name] and kernel.package in line
                for line in text.splitlines()
            )
    listed = json.loads(lra("list", "kernels", "--json")[1])
    assert len(listed) == sum(map(len, all_kernels().values()))
    assert {"operation", "kernel", "package", "versions", "installed"} <= listed[0].keys()


def test_what_is_installed_is_said(lra: Lra, known: Callable[..., None]) -> None:
    missing = replace(DELTA, package="no-such-kernels")
    known(DECAYED, missing)
    text = lra("list", "kernels")[1]
    assert f"{NUMPY} is installed" in text
    assert "no-such-kernels is not installed: pip install 'lra[kernels]'" in text
    one, other = sorted(json.loads(lra("list", "kernels", "--json")[1]), key=lambda e: e["package"])
    assert (one["installed"], other["installed"]) == ("", NUMPY)


def test_families_are_known_by_what_they_call() -> None:
    assert "decayed_product" in called("gla")
    assert "delta_product" in called("delta_net")
    assert "decayed_product" not in called("sdpa")
    assert not session_is_open()


def test_a_package_is_tried_with_the_families_that_call_it() -> None:
    works, seen, remedy = try_package([DECAYED, DELTA])
    assert (works, remedy) == (True, "")
    assert seen == f"numpy {NUMPY} computed decayed_product, delta_product on cpu"


def test_a_wrong_package_fails_with_both_numbers() -> None:
    works, seen, remedy = try_package([planted(DECAYED, "scale")])
    assert not works
    assert "decayed_product: own (recurrence: output 1 differs by " in seen
    assert "allowed: " in seen
    assert remedy == "set hardware.kernels=own"


def test_what_cannot_be_tried_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    works, seen, remedy = try_package([replace(DECAYED, package="no-such-kernels")])
    assert (works, remedy) == (False, "pip install 'lra[kernels]'")
    assert seen == "no-such-kernels is not installed; it has kernels for decayed_product"
    works, seen, remedy = try_package([replace(DECAYED, versions=("0.6",))])
    assert not works
    assert f"numpy {NUMPY} is untested; wanted 0.6" in seen
    assert remedy
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    works, seen, _ = try_package([replace(DECAYED, devices=("cuda",))])
    assert works
    assert "it is untried, because this machine has no GPU" in seen


def test_the_doctor_has_a_line_for_each_package(tmp_path: object) -> None:
    from lra.commands.doctor import checks

    names = [check.name for check in checks(tmp_path)]  # type: ignore[arg-type]
    assert [name for name in names if name.startswith("kernels of ")] == [
        f"kernels of {package}" for package in packages()
    ]


@pytest.mark.parametrize("kernels", ["own", "auto"])
def test_a_plan_says_that_our_forms_are_counted(lra: Lra, kernels: str, tmp_path: object) -> None:
    words = ("model=linear", "task=listops", "task.source=sample", f"results={tmp_path}")
    code, text = lra("plan", *words, "runner=scaling", "runner.lengths=[64]",
                     f"hardware.kernels={kernels}")  # fmt: skip
    assert code == 0
    assert ("Public kernels (hardware.kernels=auto) can be faster" in text) is (kernels == "auto")
