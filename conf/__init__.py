"""What can be chosen, by name: YAML only. This file makes the folder a package that ships."""
