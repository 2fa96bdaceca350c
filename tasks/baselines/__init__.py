"""Scores that need no long-range model, and the certificates that keep them."""
