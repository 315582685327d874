"""Which messages of a sender are new: sessions order the lives of a process, sequence numbers its messages."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass

REPLAYED = "replayed"
OLD_SESSION = "old session"


@dataclass(frozen=True)
class Session:
    """One life of a sending process; a process that is started again has a later one."""

    start_ns: int
    """Start in nanoseconds since 1970, by the sender's clock."""
    nonce: str
    """16 random hexadecimal digits."""

    @classmethod
    def begin(cls) -> Session:
        """The session of a process that starts now."""
        return cls(time.time_ns(), secrets.token_hex(8))


class ReplayGuard:
    """Admits each message of each sender once.

    Messages may overtake one another when a sender connects anew, so the last ``WINDOW`` sequence numbers are
    remembered one by one and anything older is refused. A later session of a sender replaces the one before it, whose
    messages are refused from then on.
    """

    WINDOW = 1024

    def __init__(self) -> None:
        self._senders: dict[int, _Seen] = {}

    def refusal(self, uid: int, session: Session, sequence: int) -> str | None:
        """Why this message must be dropped, or None; then it counts as seen."""
        seen = self._senders.get(uid)
        if seen is None or session.start_ns > seen.session.start_ns:
            self._senders[uid] = _Seen(session, sequence)
            return None
        if session != seen.session:
            return OLD_SESSION
        ahead = sequence - seen.highest
        if ahead > 0:
            seen.bits = (seen.bits << min(ahead, self.WINDOW) | 1) & ((1 << self.WINDOW) - 1)
            seen.highest = sequence
            return None
        bit = 1 << min(-ahead, self.WINDOW)
        if -ahead >= self.WINDOW or seen.bits & bit:
            return REPLAYED
        seen.bits |= bit
        return None


@dataclass
class _Seen:
    session: Session
    highest: int
    bits: int = 1
    """Bit k: sequence number ``highest - k`` has been seen."""
