"""Stored rows to tables, figures, statistics and dashboards; knows nothing of models."""

if __name__ != "lra.reports":
    raise ImportError(
        "reports is a part of lra, which is imported as lra.reports; to import one of "
        "your own, put the folder that holds it into PYTHONPATH"
    )
