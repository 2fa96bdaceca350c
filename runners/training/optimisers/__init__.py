"""Optimisers by name: PyTorch's own, and those that it does not have."""
