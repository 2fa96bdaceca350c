"""The sections of a report: each with its tables, and figures of its own."""
