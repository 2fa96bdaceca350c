"""One file per family of sequence mixers; each has its YAML in `conf/model`."""
