"""Errors of data. This module does not import torch, so that worker processes start quickly."""


class NotPrepared(FileNotFoundError):
    """The data are missing on this machine; the message says what to run or where to put a file."""


class BadData(ValueError):
    """A data file is damaged or malformed; the message names file, line, value and remedy."""
