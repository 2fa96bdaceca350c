"""Whatever an exception says, its cell ends as a row."""

import isolated_jobs as jobs
import pytest
from isolated import done, judged

from lra.runners.records import LONGEST_REASON, Status, legible
from lra.runners.store import Store, read_rows
from tests.runners.storage.stored_cells import ENVIRONMENT, failure, make_cell

SAID = {
    "surrogate": r"ValueError: half \udc80 a pair (at ", "nul": r"ValueError: nul \x00 byte (at ",
    "lines": "ValueError: first second third fourth (at ", "long": "ValueError: beginx",
    "bytes": r"ValueError: b'\xff\x00' (at ", "empty": "Unsupported",
    "blank refusal": "Unsupported",
}  # fmt: skip
"""How reasons of some begin."""
HELD = {
    "long": "xend (at ",
    "silent": "the error has no readable text, because its __str__ raised RuntimeError",
    "wordless": "__str__ raised TypeError", "leaving": "__str__ raised SystemExit",
}  # fmt: skip
"""What reasons of some hold."""


@pytest.mark.parametrize("kind", jobs.ODD_ERRORS)
def test_an_odd_error_is_a_row(kind, tmp_path):
    ending = judged(jobs.raise_odd, kind, log=tmp_path / "log")
    refusals = ("empty", "blank refusal", "long refusal")
    assert ending.status is (Status.unsupported if kind in refusals else Status.crashed)
    assert 0 < len(ending.reason) <= LONGEST_REASON
    assert ending.reason.isprintable()
    assert ending.reason == legible(ending.reason.encode().decode())
    assert ending.reason.startswith(SAID.get(kind, ""))
    assert HELD.get(kind, "") in ending.reason
    store = Store(tmp_path / "store")
    store.write(make_cell(), failure(ending.status, ending.reason), [], ENVIRONMENT)
    assert list(read_rows(store.root)["reason"]) == [ending.reason]


@pytest.mark.parametrize("kind", ["surrogate", "leaving"])
@pytest.mark.parametrize("logged", [True, False])
def test_it_comes_out_of_its_process(kind, logged, tmp_path):
    log = tmp_path / "log" if logged else None
    assert done(jobs.raise_odd, kind, log=log)[1] == judged(jobs.raise_odd, kind, log=log)
