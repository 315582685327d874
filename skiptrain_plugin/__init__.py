"""SkipTrain: energy-aware decentralized learning for DecentralizePy, with an embedded engine."""

__version__ = "0.1.0"
