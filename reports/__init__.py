"""Stored rows to tables, figures, statistics and dashboards; knows nothing of models."""
