"""Watches the processes of one machine: names those that die, stops the rest or lets them go on, never hangs."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from typing import Any, Protocol

CONTINUE, STOP = "continue", "stop"
ON_FAILURE = (CONTINUE, STOP)
_POLL = 0.25
"""Seconds between looks at the clock and at requests to stop."""
_GRACE = 5.0
"""Seconds that a process has to end when asked to, before it is killed."""


class Process(Protocol):
    """What is needed of a ``multiprocessing`` process."""

    @property
    def exitcode(self) -> int | None:
        """None while it runs; negative: the signal that ended it."""

    @property
    def sentinel(self) -> int:
        """Becomes ready when the process ends."""

    def terminate(self) -> None:
        """Asks it to end."""

    def kill(self) -> None:
        """Ends it."""

    def join(self, timeout: float | None = None) -> None:
        """Waits for its end."""


@dataclass(frozen=True)
class Failure:
    """A process that ended before its work was done."""

    uid: int
    exitcode: int
    completed: int
    """Rounds that the node had completed."""
    stalled: bool
    lines: tuple[str, ...]
    """The end of its log."""

    def __str__(self) -> str:
        how = f"exit code {self.exitcode}"
        if self.stalled:
            how = "no progress for too long, so it was killed"
        elif self.exitcode < 0:
            how = f"killed by {_signal_name(-self.exitcode)}"
        said = "".join(f"\n    {line}" for line in self.lines)
        return f"node {self.uid} died in round {self.completed + 1} ({how})" + (
            f"; its last words:{said}" if said else ""
        )


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


@dataclass
class Outcome:
    """How the processes ended."""

    failures: list[Failure] = field(default_factory=list)
    interrupted: bool = False
    stopped: bool = False
    """Whether the rest was stopped before its work was done."""


class Supervisor:
    """Watches processes by local rank. The caller says how to read a log, and what to do about a death."""

    def __init__(
        self,
        processes: Mapping[int, Process],
        uids: Mapping[int, int],
        completed: Sequence[int],
        *,
        on_failure: str,
        last_lines: Callable[[int], Sequence[str]],
        died: Callable[[Failure], None],
        tick: Callable[[], None] = lambda: None,
        stall_seconds: float = float("inf"),
    ) -> None:
        self._running = dict(processes)
        self._uids, self._completed = uids, completed
        self._on_failure, self._last_lines, self._died, self._tick = on_failure, last_lines, died, tick
        self._stall = stall_seconds
        self._progress = {rank: (0, time.monotonic()) for rank in processes}
        self._killed: set[int] = set()
        self.outcome = Outcome()

    def watch(self, stop: Callable[[], bool]) -> Outcome:
        """Returns when no process is left; ``stop`` turning true ends them all."""
        try:
            while self._running:
                sentinels: list[Any] = [process.sentinel for process in self._running.values()]
                wait(sentinels, timeout=_POLL)
                self._tick()
                self._reap()
                self._kill_stalled()
                if stop():
                    self.outcome.interrupted = True
                if self._running and (self.outcome.interrupted or (self.outcome.failures and self._on_failure == STOP)):
                    self.outcome.stopped = True
                    return self.outcome
            return self.outcome
        finally:
            self.end()

    def end(self) -> None:
        """Ends every process that is left: asks first, then kills."""
        for process in self._running.values():
            process.terminate()
        end = time.monotonic() + _GRACE
        for process in self._running.values():
            process.join(max(0.0, end - time.monotonic()))
            if process.exitcode is None:
                process.kill()
                process.join(_GRACE)
        self._running.clear()

    def _reap(self) -> None:
        for rank, process in list(self._running.items()):
            code = process.exitcode
            if code is None:
                continue
            del self._running[rank]
            process.join(_GRACE)
            if code != 0:
                lines = tuple(self._last_lines(rank))
                done = int(self._completed[rank])
                failure = Failure(self._uids[rank], code, done, rank in self._killed, lines)
                self.outcome.failures.append(failure)
                self._died(failure)

    def _kill_stalled(self) -> None:
        now = time.monotonic()
        for rank, process in self._running.items():
            done = int(self._completed[rank])
            if done != self._progress[rank][0]:
                self._progress[rank] = (done, now)
            elif now - self._progress[rank][1] > self._stall and rank not in self._killed:
                self._killed.add(rank)
                process.kill()
