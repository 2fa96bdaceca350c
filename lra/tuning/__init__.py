"""Searches over options: sweeps whose list of cells follows from their declaration and rows."""
