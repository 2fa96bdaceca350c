"""Comparisons of two or more models over stored rows."""
