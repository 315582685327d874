"""The record of a run: an append-only directory that tables, figures and reports are made from."""
