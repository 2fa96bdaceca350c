"""Maps along the length, and inverses of small matrices of landmarks."""
