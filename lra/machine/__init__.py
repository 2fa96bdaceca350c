"""What this machine is and does: what works on it, how fast it is, how quiet."""
