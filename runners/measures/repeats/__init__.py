"""Repeats in a text: segments that are read a second time, and pairs of tokens that return."""
