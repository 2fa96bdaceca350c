"""Measures of a model's attention weights, and of their distance from exact attention."""
