"""The W&B mirror of stored rows."""
