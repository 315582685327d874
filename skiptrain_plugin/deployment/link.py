"""What a launcher shares with the processes it starts; a node of another driver goes without."""

from __future__ import annotations

from collections.abc import MutableSequence, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Link:
    """Shared memory and folders of one machine's nodes."""

    folder: Path
    """Where checkpoints and snapshots go."""
    completed: MutableSequence[int]
    """Completed rounds, by local rank; written by the node, read by the launcher."""
    gone: Sequence[int]
    """Not 0 for a node whose process has died, by uid; written by the launcher."""
    checkpoint_every: int
    """Rounds between checkpoints; 0: none."""
    resume: dict[int, int]
    """By uid the round whose checkpoint a node goes on from; absent: from the beginning."""
    snapshots: bool
    """Whether nodes leave their parameters at evaluations, for the accuracy of the mean model."""
