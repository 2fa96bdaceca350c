"""Convolutions along the length: short ones as products with banded matrices, long ones by FFT.

`shared_kernel` is one for a head, `dynamic` one per token and head, `values` the module that adds
the first to attention; `blocks` is how rows are laid out for both. `long` has kernels as long as
the sequence, of a row or behind what is remembered of it; `kernels` makes such from parameters,
`implicit` by a network. `short` has a few taps for each channel, `tree` puts such of all scales
behind each other.
"""
