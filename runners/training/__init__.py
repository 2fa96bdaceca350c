"""What a training is made of."""
