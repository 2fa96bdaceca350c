"""Softmax attention to sets and blocks of keys."""
