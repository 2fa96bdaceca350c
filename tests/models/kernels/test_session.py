"""Which form computes a call, and what is said of it."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from importlib import metadata

import pytest
import torch
from fake_kernels import DECAYED, DELTA, planted, table
from torch import Tensor

from lra.models.kernels.door import check_used, kernel_labels, own_forms, session_is_open
from lra.models.kernels.kernel import PublicKernel
from lra.models.kernels.providers import all_kernels
from lra.models.kernels.session import LONGEST, Session, public_kernels
from lra.models.kernels.trials import TRIALS
from lra.models.mixer import Unsupported
from lra.models.ops.gated.decayed_product import decayed_product

NAME = f"numpy {metadata.version('numpy')} recurrence"


def inputs(seed: int = 0, dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    q, k, v = torch.randn(3, 2, 2, 40, 8, generator=generator).to(dtype).unbind()
    return q, k, v, -torch.rand(2, 2, 40, generator=generator)


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    """Check that no session is left open."""
    yield
    assert not session_is_open()
    assert kernel_labels() == {}
    check_used()


def forms(kernel: PublicKernel) -> str:
    """Return what computed a call."""
    with public_kernels(kernels=table(kernel)) as session:
        o, _ = decayed_product(*inputs())
    own, _ = decayed_product(*inputs())
    assert torch.equal(o, own) is ("own (" in session.description())
    assert torch.allclose(o.float(), own.float(), atol=1e-4)
    return session.description().removeprefix("decayed_product: ")


def test_a_kernel_computes_what_it_takes() -> None:
    assert forms(DECAYED) == NAME


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"package": "no-such-kernels"},
         "no-such-kernels is not installed: pip install 'lra[kernels]'"),
        ({"versions": ("0.6", "1")}, f"{NAME.rpartition(' ')[0]} is untested; wanted 0.6 or 1"),
        ({"function": "no_such_module:recurrence"},
         f"{NAME.rpartition(' ')[0]} cannot be imported: ModuleNotFoundError: No module named "
         "'no_such_module'"),
        ({"function": "math:recurrence"},
         f"{NAME.rpartition(' ')[0]} cannot be imported: AttributeError: module 'math' has no "
         "attribute 'recurrence'"),
        ({"devices": ("cuda",)}, "it runs on cuda only"),
        ({"takes": lambda **call: f"heads of width {call['q'].shape[-1]} are too wide"},
         "heads of width 8 are too wide"),
    ],
    ids=["not installed", "version", "import", "function", "device", "width"],
)  # fmt: skip
def test_a_kernel_that_cannot_be_used_leaves_the_call_to_our_form(
    changed: dict[str, object], why: str
) -> None:
    kernel = replace(DECAYED, **changed)
    name = kernel.name
    assert forms(kernel) == f"own ({name}: {why})"
    sentence = f"no public kernel computes decayed_product here ({name}: {why})"
    with (
        pytest.raises(Unsupported) as refusal,
        public_kernels(required=True, kernels=table(kernel)),
    ):
        decayed_product(*inputs())
    assert sentence in str(refusal.value)
    assert str(refusal.value).endswith("hardware.kernels=auto uses our PyTorch operation for it")


def test_a_mask_is_refused_by_its_adapter() -> None:
    keep = torch.ones(2, 40, dtype=torch.bool)
    whole = replace(DECAYED, takes=lambda **call: "it has no padding" * (call["keep"] is not None))
    with public_kernels(kernels=table(whole)) as session:
        decayed_product(*inputs(), keep=keep)
        decayed_product(*inputs())
    assert session.description() == (
        f"decayed_product: own (recurrence: it has no padding), {NAME}"
    )
    assert session.labels() == {"kernels": session.description(), "forms": "mixed"}


def test_a_wrong_kernel_computes_nothing() -> None:
    q, k, v, g = inputs()
    with public_kernels(kernels=table(planted(DECAYED, "order"))) as session:
        o, _ = decayed_product(q, k, v, g)
    assert torch.equal(o, decayed_product(q, k, v, g)[0])
    assert "own (recurrence: output 1 differs by " in session.description()
    assert session.labels()["forms"] == "own"


def test_the_next_kernel_is_tried() -> None:
    wide = replace(DECAYED, takes=lambda **_: "it is for wide heads")
    with public_kernels(kernels=table(wide, DECAYED)) as session:
        decayed_product(*inputs())
    assert session.labels() == {"kernels": f"decayed_product: {NAME}", "forms": "public"}


def test_calls_of_one_kind_are_compared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []

    def note(*_: object) -> str:
        compared.append(1)
        return ""

    monkeypatch.setattr("lra.models.kernels.session.difference", note)
    with public_kernels(kernels=table(DECAYED)):
        for seed in range(3):
            decayed_product(*inputs(seed))
        assert len(compared) == 1
        decayed_product(*inputs(dtype=torch.bfloat16))
        assert len(compared) == 2


def test_a_model_without_doors_is_refused_where_kernels_are_required() -> None:
    with public_kernels(required=True) as session, pytest.raises(Unsupported) as refusal:
        check_used()
    assert "this model has no operation with a public kernel" in str(refusal.value)
    assert "choose kernels=auto or kernels=own" in str(refusal.value)
    assert session.labels() == {"forms": "own"}
    with public_kernels() as session:
        check_used()


def test_our_forms_compute_inside_their_block_and_leave_no_trace() -> None:
    with public_kernels(kernels=table(DECAYED)) as session:
        with own_forms():
            assert not session_is_open()
            assert torch.equal(decayed_product(*inputs())[0], _own())
        assert session.forms == {}
        assert session_is_open()


def _own() -> Tensor:
    return decayed_product.__wrapped__(*inputs())[0]


def test_a_session_ends_with_an_error_and_gives_back_the_one_before() -> None:
    with public_kernels(kernels=table(DECAYED)) as outer:
        with pytest.raises(KeyError), public_kernels(kernels=table(DELTA)):
            raise KeyError
        decayed_product(*inputs())
    assert outer.labels()["forms"] == "public"


def test_other_threads_have_the_session_too() -> None:
    with public_kernels(kernels=table(DECAYED)) as session:
        thread = threading.Thread(target=lambda: decayed_product(*inputs()))
        thread.start()
        thread.join()
    assert session.labels()["forms"] == "public"


def test_a_description_fits_into_a_row() -> None:
    session = Session(False, {})
    session.forms["decayed_product"] = {f"own (reason\t{'long ' * 800})": None}
    text = session.labels()["kernels"]
    assert text.isprintable()
    assert len(text) <= LONGEST + 2
    assert session.labels()["forms"] == "own"


def test_adapters_name_operations_that_can_be_compared() -> None:
    for operation, kernels in all_kernels().items():
        assert operation in TRIALS
        assert all(kernel.operation == operation and kernel.versions for kernel in kernels)
