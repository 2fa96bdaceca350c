"""What a person sees: text for terminals, columns, boards of progress, and how much of them."""
