"""The parts of the store: atomic files, formats, claims, fingerprints."""
