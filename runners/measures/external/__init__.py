"""Other implementations of our families: adapters that put one beside ours, with equal weights."""
