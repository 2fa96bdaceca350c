"""From the words after `lra run`, through Hydra, to a configuration."""
