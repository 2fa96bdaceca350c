"""One file per attention family in `families`, and the one backbone that they all fit."""

if __name__ != "lra.models":
    raise ImportError(
        "this package `models` is a part of lra: import it as lra.models. To import your own "
        "package with the name `models`, add the folder that contains it to PYTHONPATH"
    )
