"""Turn a model, a task and a hardware profile into rows, and keep the rows."""

if __name__ != "lra.runners":
    raise ImportError(
        "runners is a part of lra, which is imported as lra.runners; to import one of "
        "your own, put the folder that holds it into PYTHONPATH"
    )
