"""`lra watch`: how far a submitted sweep is."""


def main(argv: list[str]) -> int:
    """Show it."""
    raise NotImplementedError
