"""Layers that read a sequence token by token: their order, their state, what they share.

`linear_recurrence` is the recurrence that is a product of gates, `reading_order` that of tokens
where some are padding, `layer` the mixer around one cell, or two.
"""
