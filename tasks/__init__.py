"""Tasks: one file per kind of data; where it comes from and how answers are judged."""

if __name__ != "lra.tasks":
    raise ImportError(
        "tasks is a part of lra, which is imported as lra.tasks; to import a package of yours "
        "with this name, put the folder that contains it into PYTHONPATH"
    )
