"""Measurements of the embedded engine against the plain way and against the floor that the machine sets."""
