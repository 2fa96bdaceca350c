"""Figures of stored rows."""
