"""Functions from a model to a model."""
