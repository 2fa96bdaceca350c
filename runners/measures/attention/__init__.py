"""What a model's attention weighs, and how far it is from exact."""
