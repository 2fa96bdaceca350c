"""What the store is made of: atomic files, formats, claims, fingerprints."""
