"""What the runs of each runner measure: one file for each runner; folders hold what they share."""
