"""How much a run says: flags that stand anywhere on the line."""

import pytest

from lra.terminal.volume import Volume, volume_of


@pytest.mark.parametrize(
    ("line", "volume", "rest"),
    [
        ("-m model=a", "normal", "-m model=a"),
        ("--quiet -m model=a", "quiet", "-m model=a"),
        ("-m model=a -q", "quiet", "-m model=a"),
        ("-m --verbose model=a -v", "verbose", "-m model=a"),
        ("model=a -- --quiet", "normal", "model=a -- --quiet"),
    ],
)
def test_volume_stands_anywhere(line: str, volume: str, rest: str) -> None:
    assert volume_of(line.split()) == (Volume(volume), rest.split())


@pytest.mark.parametrize(
    "line", ["-q -v", "--quiet model=a --verbose", "-q --cfg job", "-v -c job"]
)
def test_what_makes_no_sense_together_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match="got -"):
        volume_of(line.split())
