"""Intervals, power laws and effective lengths of context: numbers about numbers. Torch-free."""
