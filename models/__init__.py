"""One file per attention family in `families`, and the one backbone that they all fit."""

if __name__ != "lra.models":
    raise ImportError(
        "models is a part of lra, which is imported as lra.models; to import one of "
        "your own, put the folder that holds it into PYTHONPATH"
    )
