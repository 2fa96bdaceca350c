"""What a choice is, before anything runs: its options, its guarantees, what it costs."""
