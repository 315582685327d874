"""Counting what is dropped, and saying so without flooding the log."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter

_LOG = logging.getLogger(__name__)


class Drops:
    """How many messages were dropped, by reason; at most one warning a minute for each reason and sender."""

    INTERVAL = 60.0
    """Seconds between two warnings of the same kind."""

    def __init__(self, owner: str) -> None:
        self.counts: Counter[str] = Counter()
        self._owner = owner
        self._said: dict[tuple[str, int | None], float] = {}
        self._lock = threading.Lock()

    def note(self, reason: str, peer: int | None, detail: str) -> None:
        """Counts one dropped message of ``peer`` (None: somebody without a known key)."""
        now = time.monotonic()
        with self._lock:
            self.counts[reason] += 1
            last = self._said.get((reason, peer))
            silent = last is not None and now - last < self.INTERVAL
            if not silent:
                self._said[reason, peer] = now
        if not silent:
            who = "a stranger" if peer is None else f"node {peer}"
            _LOG.warning("%s: dropped (%s), %s: %s", self._owner, reason, who, detail)
