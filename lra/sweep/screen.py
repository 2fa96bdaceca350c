"""What every family would cost for one question, counted on models without contents."""

from lra.composition.class_path import locate  # noqa: F401 - see below
