"""Public kernels that compute operations of `lra.models.ops` on a GPU, where that is allowed."""
