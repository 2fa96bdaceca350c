"""Attention to clusters of tokens, the larger the farther away."""
