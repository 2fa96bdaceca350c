"""State spaces x_t = A x_{t-1} + B u_t, y_t = C x_t with the same A, B and C for all tokens.

The outputs are a convolution of the inputs (`lra.models.ops.convolution.long`). `kernels` makes its
kernels from eigenvalues and sums inputs into states. `low_rank` does both for matrices that are
diagonal plus low rank. `dynamics` has A, B and dt as parameters, and `hippo` their initial
eigenvalues. `oscillators` has matrices of 2 x 2 numbers, also without two eigenvectors.
"""
