"""The functions that `import lra` offers, one module for each thing they do.

They do what the verbs of the command line do, and raise the same errors, with keywords in place of
arguments of the shell.
"""
