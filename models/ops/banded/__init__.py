"""Softmax attention inside a band."""
