"""One file per attention family in `families`, and the one backbone that they all fit."""

if __name__ != "lra.models":
    raise ImportError(
        "models is a part of lra: import it as lra.models. To import your package of this name, "
        "add the folder that contains it to PYTHONPATH"
    )
