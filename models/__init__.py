"""One file per attention family in `families`, and the one backbone that they all fit."""
