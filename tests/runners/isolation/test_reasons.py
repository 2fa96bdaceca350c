"""Whatever an exception says, its cell ends as a row."""

import isolated_jobs as jobs
import pytest
from isolated import done

from runners.records import LONGEST_REASON, Status, legible
from runners.store import Store, read_rows
from tests.runners.storage.stored_cells import ENVIRONMENT, failure, make_cell


@pytest.mark.parametrize("kind", jobs.ODD_ERRORS)
@pytest.mark.parametrize("logged", [True, False])
def test_an_odd_error_is_a_row(kind, logged, tmp_path):
    log = tmp_path / "log" if logged else None
    _, ending = done(jobs.raise_odd, kind, log=log)
    refusals = ("empty", "blank refusal", "long refusal")
    assert ending.status is (Status.unsupported if kind in refusals else Status.crashed)
    assert 0 < len(ending.reason) <= LONGEST_REASON
    assert ending.reason.isprintable()
    assert ending.reason == legible(ending.reason.encode().decode())
    store = Store(tmp_path / "store")
    store.write(make_cell(), failure(ending.status, ending.reason), [], ENVIRONMENT)
    assert list(read_rows(store.root)["reason"]) == [ending.reason]


def test_what_odd_errors_say():
    said = {kind: done(jobs.raise_odd, kind)[1].reason for kind in jobs.ODD_ERRORS}
    assert said["surrogate"].startswith(r"ValueError: half \udc80 a pair (at ")
    assert said["nul"].startswith(r"ValueError: nul \x00 byte (at ")
    assert said["lines"].startswith("ValueError: first second third fourth (at ")
    assert said["long"].startswith("ValueError: beginx")
    assert "xend (at " in said["long"]
    assert said["bytes"].startswith(r"ValueError: b'\xff\x00' (at ")
    assert "its text cannot be had: __str__ raised RuntimeError" in said["silent"]
    assert "__str__ raised TypeError" in said["wordless"]
    assert "__str__ raised SystemExit" in said["leaving"]
    assert said["empty"] == said["blank refusal"] == "Unsupported"
