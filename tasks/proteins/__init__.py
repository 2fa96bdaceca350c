"""Language modelling of protein sequences."""
