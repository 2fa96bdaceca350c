"""Tasks: one file per kind of data; where it comes from and how answers are judged."""
