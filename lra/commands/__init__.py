"""One module per command of `lra`, and what belongs to one command alone."""
