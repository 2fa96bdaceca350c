"""Language modelling over bytes, sub-words and words."""
