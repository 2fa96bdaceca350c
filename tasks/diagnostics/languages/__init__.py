"""The formal languages of Delétang et al. (arXiv:2207.02098): inputs and their answers."""
