"""Tables of rows, and the forms in which they are written."""
