"""The contract kit: checks that every mixer must pass, as plain functions that return findings.

    for finding in verify(partial(MyMixer, features=64)):
        print(finding.check, finding.passed, finding.detail)

The names are handed on from `lra.models.contract.suite` when they are asked for: who wants to count
operations does not import, or depend on, the checks.
"""

from importlib import import_module
from typing import Any

__all__ = ["CHECKS", "Call", "Case", "Finding", "check_mixer", "repeat", "verify"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("lra.models.contract.suite"), name)
