"""One file per attention family in `families`, and the one backbone that they all fit."""

if __name__ != "lra.models":
    raise ImportError(
        "models is a part of lra, which is imported as lra.models; to import a package of yours "
        "with this name, put the folder that contains it into PYTHONPATH"
    )
