"""Turn a model, a task and a hardware profile into rows, and keep the rows."""
