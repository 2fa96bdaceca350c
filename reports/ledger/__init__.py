"""Claims of papers, and what stored rows say about each. Torch-free."""
