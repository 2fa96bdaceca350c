"""What can be chosen, by name: YAML, and what every folder needs.

`conf.choices` makes the choice of its name; `conf.plain_files` reads files without trust.
"""
