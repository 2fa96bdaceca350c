"""What can be chosen, by name: YAML, and what every folder needs.

`lra.conf.choices` makes the choice of its name; `lra.conf.plain_files` reads files without trust.
"""

if __name__ != "lra.conf":
    raise ImportError(
        "conf is a part of lra: import it as lra.conf. To import your package of this name, add "
        "the folder that contains it to PYTHONPATH"
    )
