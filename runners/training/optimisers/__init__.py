"""Optimisers by name: those of PyTorch, and some that PyTorch lacks."""
