"""What can be chosen, by name: YAML, and `conf.choices`, which makes the choice of its name."""
