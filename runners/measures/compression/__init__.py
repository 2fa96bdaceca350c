"""How `runner=compress` changes a trained model, and how the result is measured."""
