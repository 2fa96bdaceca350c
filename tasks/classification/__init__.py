"""Tasks with one answer per sequence."""
