"""What can be chosen, by name: YAML, and what every folder needs.

`lra.conf.choices` makes the choice of its name; `lra.conf.plain_files` reads files without trust.
"""

if __name__ != "lra.conf":
    raise ImportError(
        "conf is a part of lra, which is imported as lra.conf; to import one of "
        "your own, put the folder that holds it into PYTHONPATH"
    )
