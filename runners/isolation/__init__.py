"""Work in processes of its own, and what they say."""
