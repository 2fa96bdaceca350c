"""ListOps: nested lists of operations."""
