"""What a choice is, told before anything runs: its options, its guarantees, what it costs."""
