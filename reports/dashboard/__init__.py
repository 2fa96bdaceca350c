"""Runs of dashboards, written while cells run and from stored rows, and workspaces of W&B."""
