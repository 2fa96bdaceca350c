"""Mathematics that families share, or that a compiled kernel may replace."""
