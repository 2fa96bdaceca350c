"""State spaces x_t = A x_{t-1} + B u_t, y_t = C x_t whose A, B and C are those of all tokens.

Outputs are then a convolution of the inputs (`lra.models.ops.convolution.long`). `kernels` makes
its kernels from eigenvalues, and sums inputs into states; `low_rank` does both for matrices that
are diagonal plus low rank; `dynamics` has A, B and dt as parameters; `hippo` has the eigenvalues to
start from.
"""
