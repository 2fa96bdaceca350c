"""Where data come from, how they are stored, and how they become batches."""
