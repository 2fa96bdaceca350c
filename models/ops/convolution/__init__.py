"""Convolutions along the length as products with banded matrices.

`shared` has one kernel per head, `dynamic` one per token and head, `values` is the module that adds
the first to attention; `blocks` is how rows are laid out for both, `reference` the literal form.
"""
