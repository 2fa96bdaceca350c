"""Time and memory, and what the machine did meanwhile."""
