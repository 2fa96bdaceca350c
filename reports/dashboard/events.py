"""What a process that writes runs says to the one that started it: a line of JSON an event."""

import json
import sys
from typing import Any


def say(**event: Any) -> None:
    """Print an event; its kind, `event`, comes first."""
    sys.stdout.write(json.dumps(event, allow_nan=False) + "\n")
    sys.stdout.flush()


def one_line(error: BaseException, at_most: int) -> str:
    """Return the text of an error, or its beginning where it is longer."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= at_most else f"{text[: at_most - 1]}…"
