"""Pathfinder: two discs, on one dashed path or on two."""
