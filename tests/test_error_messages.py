"""The page of questions explains messages that lra prints."""

import re
from pathlib import Path

import pytest

from tests.plain_words import SHIPPED, messages

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs/faq.md").read_text(encoding="utf-8").partition("\n## By error message\n")[2]
HEADINGS = re.findall(r"^### (`.*`)$", PAGE, re.MULTILINE)
QUOTED = [said for heading in HEADINGS for said in re.findall("`(.*?)`", heading)]
ANSWERS = {  # made of a kind of choice, or of a status, and words around it
    **{f"unknown {kind}": "unknown …" for kind in ("model", "task", "experiment", "key", "verb")},
    "out_of_memory": "out_of_memory = auto()",
}


@pytest.fixture(scope="module")
def printed() -> str:
    files = [file for folder in SHIPPED for file in sorted((ROOT / folder).rglob("*.py"))]
    spoken = [text for file in files for _, text in messages(file)]
    return "\n".join([*spoken, (ROOT / "runners/records.py").read_text(encoding="utf-8")])


@pytest.mark.parametrize("said", QUOTED)
def test_a_message_that_the_page_explains_is_printed(said: str, printed: str) -> None:
    assert ANSWERS.get(said, said) in printed


def test_the_page_explains_twenty_messages() -> None:
    assert len(HEADINGS) >= 20
