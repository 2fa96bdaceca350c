"""What `runner=compress` does to a trained model, and what it measures of the result."""
