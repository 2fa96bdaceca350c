"""A sweep by many workers: its stored plan, the workers, and what starts them."""
