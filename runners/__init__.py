"""Turn a model, a task and a hardware profile into rows, and keep the rows."""

if __name__ != "lra.runners":
    raise ImportError(
        "runners is a part of lra: import it as lra.runners. To import your package of this name, "
        "add the folder that contains it to PYTHONPATH"
    )
