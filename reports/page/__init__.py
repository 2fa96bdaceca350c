"""The report as documents to read: one Markdown file, and one HTML page that needs no network."""
