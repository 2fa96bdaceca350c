"""Literal forms of exact attention, sorting and made-up logits, which have no folder."""
