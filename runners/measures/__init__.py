"""What cells of each runner measure: one file each, and what only they use below."""
