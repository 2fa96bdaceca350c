"""What Python calls: the functions that `import lra` offers, one module for each thing they do.

They call what the verbs of the command line call, and refuse what these refuse, with keywords in
the place of words of the shell.
"""
