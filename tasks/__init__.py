"""Tasks: where the data come from, how batches are made, and how answers are scored."""

if __name__ != "lra.tasks":
    raise ImportError(
        "tasks is a part of lra: import it as lra.tasks. To import your package of this name, "
        "add the folder that contains it to PYTHONPATH"
    )
