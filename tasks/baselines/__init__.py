"""Scores that need no long-range model, and the certificate files that store them."""
