"""Figures that papers and repositories print, with their sources, as reviewed data."""
