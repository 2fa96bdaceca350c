"""Cells of a sweep run by the process that was asked for them."""
