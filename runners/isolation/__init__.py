"""Work in separate processes, and their messages."""
