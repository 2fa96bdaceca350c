"""The executor of cells, and sweeps that one process runs by itself."""
