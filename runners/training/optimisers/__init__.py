"""Optimisers by name: PyTorch's, and those that it does not have."""
