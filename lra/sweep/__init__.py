"""Cells: planned, run, stored and shown while they run."""
