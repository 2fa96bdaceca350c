"""Stored rows to tables, figures, statistics and a W&B mirror; knows nothing of models."""
