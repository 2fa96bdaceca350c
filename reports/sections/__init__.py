"""The sections of a report, each with tables and figures."""
