"""Convolutions along the length: short ones as products with banded matrices, long ones by FFT.

`shared` has one kernel per head, `dynamic` one per token and head, `values` is the module that adds
the first to attention; `blocks` is how rows are laid out for both. `long` has kernels as long as
the sequence. `reference` is the literal form of all.
"""
