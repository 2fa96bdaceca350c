"""Tasks: one file per kind of data; where it comes from and how answers are judged."""

if __name__ != "lra.tasks":
    raise ImportError(
        "tasks is a part of lra: import it as lra.tasks. To import your package of this name, "
        "add the folder that contains it to PYTHONPATH"
    )
