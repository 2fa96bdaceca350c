"""Stored rows to tables, figures, statistics and dashboards; knows nothing of models."""

if __name__ != "lra.reports":
    raise ImportError(
        "reports is a part of lra: import it as lra.reports. To import your package of this name, "
        "add the folder that contains it to PYTHONPATH"
    )
