"""The embedded engine: every node of an experiment in one process."""
