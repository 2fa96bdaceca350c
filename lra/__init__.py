"""The front door: the command line, and the one place where names become objects."""
