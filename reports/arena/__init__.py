"""The tables and the figure of the Long Range Arena's paper, from rows of runs under a protocol."""
