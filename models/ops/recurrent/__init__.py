"""Layers that read a sequence token by token.

`linear_recurrence` computes elementwise linear recurrences, `selective_scan` those of Mamba, and
`exponential_lstm` those of sLSTM. `layer` has the mixer around one or two recurrent cells, and the
order in which rows with padding are read.
"""
