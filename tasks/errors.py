"""What goes wrong with data. Torch-free, so that worker processes start quickly."""


class NotPrepared(FileNotFoundError):
    """The data are not on this machine; the message says what to run or which file to put where."""


class BadData(ValueError):
    """A data file is damaged or malformed; the message names file, line, value and way out."""
