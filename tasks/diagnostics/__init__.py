"""Generated tasks that each test one ability of a model."""
