"""The logic of a deployment with one process a node; nothing in this package imports DecentralizePy."""
