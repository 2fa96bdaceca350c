"""The one model that every family fits into: embedding, stack, heads, decoding."""
