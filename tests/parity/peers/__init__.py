"""A plug-in: other implementations of our families beside ours, with equal weights.

`runner` compares and times, `section` shows its rows in a report, `catalogue` lists the adapters,
and `conf` holds the runner's file and a preset.
"""
