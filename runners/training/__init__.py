"""The parts of a training."""
