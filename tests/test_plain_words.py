"""Pages and messages avoid a list of phrases, begin with an example, and say what happens."""

from tests.plain_words import COMMAND, NEGATION, ROOT, SHIPPED, findings, pages, prose, tracked

# Words of another program, or names, which stand as they are.
EXCEPTED = {
    "lra/cluster/jobs.py": ("'held'",),  # SLURM's word for a job that waits for a release
    "runners/measurement/disturbance.py": ("'held'",),  # a stored label
}
MOST_NEGATIONS = 300


def allowed(finding: str) -> bool:
    """Return whether a finding is an exception."""
    return any(
        finding.startswith(f"{file}:") and f": {phrase}: " in finding
        for file, phrases in EXCEPTED.items()
        for phrase in phrases
    )


def test_pages_use_the_words_of_the_field() -> None:
    found = [finding for page in pages() for finding in findings(page) if not allowed(finding)]
    assert found == []


def test_messages_and_options_use_the_words_of_the_field() -> None:
    files = tracked(*(f"{room}/**.{kind}" for room in SHIPPED for kind in ("py", "yaml")))
    assert len(files) > 700
    found = [finding for file in files for finding in findings(file) if not allowed(finding)]
    assert found == []


def test_every_page_begins_with_an_example() -> None:
    late = [
        page.relative_to(ROOT).as_posix()
        for page in pages()
        if not COMMAND.search("\n".join(page.read_text(encoding="utf-8").splitlines()[:10]))
    ]
    assert late == []


def test_pages_say_what_happens_rather_than_what_does_not() -> None:
    assert sum(len(NEGATION.findall(prose(page))) for page in pages()) <= MOST_NEGATIONS
