"""Classification of DNA sequences."""
