"""The public functions of `import lra`, with one module for each purpose.

They do the same as the verbs of the command line. Their error messages are the same, too, but show
Python keywords in place of command-line arguments.
"""
