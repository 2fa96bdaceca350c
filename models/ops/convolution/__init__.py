"""Convolutions along the length: short ones as products with banded matrices, long ones by FFT.

`shared_kernel` has one kernel per head, `dynamic` one per token and head; `blocks` arranges rows
for both. `values` adds the convolution of `shared_kernel` to attention. `long` has kernels as long
as the sequence; `kernels` makes them from parameters, and `implicit` makes them by a network.
`short` has a few taps for each channel, and `tree` chains such convolutions at growing distances.
"""
