"""A node's neighbours: who is there, what each has sent, and how long to wait for it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Protocol

import zmq

MODEL, HELLO, BYE = "DPSGD", "CONNECT", "DISCONNECT"
"""The framework's names for the kinds of messages."""
WAITING = "WAITING"
"""A sign of life from a node that waits for others: it has sent all models up to the round it names."""

_KEPT_AHEAD = 4
"""Models kept of a neighbour that runs ahead; older ones are of no use by the time they could be read."""
_SIGNS_A_DEADLINE = 4
_LONGEST_SILENCE = 5.0
"""Seconds between signs of life, unless the deadline asks for more of them."""
_LOG = logging.getLogger(__name__)

Message = dict[str, Any]


class Communication(Protocol):
    """What is needed of the framework's Communication."""

    def send(self, uid: int, data: Message) -> None:
        """Sends ``data``."""

    def receive(self, block: bool = True) -> tuple[int, Message] | None:
        """One message; None when there is none for a short while and ``block`` is False."""


class Peers:
    """Files what arrives and knows who is away. Nothing here waits without a limit.

    A neighbour is given up when it has been silent for the deadline. One that waits for somebody itself is not silent:
    it sends signs of life, so that one dead node does not make its neighbours look dead to theirs. A sign names the
    round that its sender is in, so nobody waits for a model of that round or an earlier one which has not come with it:
    messages of one sender arrive in order. Whoever is furthest behind thus waits for the silent only, and goes on.
    """

    def __init__(self, uid: int, communication: Communication, gone: Sequence[int] = ()) -> None:
        self.uid = uid
        self.present: set[int] = set()
        """Neighbours that have said hello and not gone silent since."""
        self.away: set[int] = set()
        """Neighbours that nobody waits for until they speak again."""
        self.dropped = 0
        """Messages that were malformed, or too late to be of use."""
        self._communication = communication
        self._gone = gone
        self._gone_seen: set[int] = set()
        self._models: dict[int, dict[int, Message]] = {}
        self._left: set[int] = set()
        self._heard: dict[int, float] = {}
        self._sent: dict[int, int] = {}
        self._round = -1

    def begin_round(self, round: int) -> None:
        """From now on models of earlier rounds are dropped."""
        self._round = round
        for sender, models in self._models.items():
            late = [number for number in models if number < round]
            self.dropped += len(late)
            self._models[sender] = {number: model for number, model in models.items() if number >= round}

    def newest_round(self) -> int:
        """The latest round that a neighbour is known to be in; −1 when none is known."""
        self._drain()
        return max((self._sent.get(uid, -1) for uid in self.present), default=-1)

    def wait_for_hello(self, neighbors: Collection[int], seconds: float) -> None:
        """Waits until every one of ``neighbors`` has said hello; the silent are away from then on."""
        self._wait(lambda: [n for n in neighbors if n not in self.present], seconds, "to say hello")

    def wait_for_models(self, neighbors: Iterable[int], seconds: float) -> dict[int, Message]:
        """The models of this round by sender, ascending, without those silent for ``seconds``."""
        wanted = sorted(neighbors)

        def awaited(neighbor: int) -> bool:
            return neighbor not in self._left and self._sent.get(neighbor, -1) < self._round

        self._wait(lambda: [n for n in wanted if awaited(n)], seconds, f"to send its model of round {self._round + 1}")
        answers = {n: self._models.get(n, {}).pop(self._round, None) for n in wanted}
        return {neighbor: model for neighbor, model in answers.items() if model is not None}

    def wait_for_bye(self, seconds: float) -> None:
        """Waits until everybody present has said goodbye."""
        self._wait(lambda: self.present - self._left, seconds, "to say goodbye")

    def _wait(self, missing: Callable[[], Collection[int]], seconds: float, what: str) -> None:
        start = time.monotonic()
        interval = min(_LONGEST_SILENCE, seconds / _SIGNS_A_DEADLINE)
        next_sign = start + interval
        self._notice_deaths()
        while waiting := [n for n in missing() if n not in self.away]:
            now = time.monotonic()
            for neighbor in waiting:
                if now - max(start, self._heard.get(neighbor, start)) >= seconds:
                    _LOG.warning(
                        "node %d was silent for %g s, waited for %s; going on without it", neighbor, seconds, what
                    )
                    self._leave_out(neighbor)
            if now >= next_sign:
                next_sign = now + interval
                for neighbor in sorted(self.present - self._left):
                    self._communication.send(neighbor, {"CHANNEL": WAITING, "round": self._round})
            self._take_one()
            self._notice_deaths()

    def _take_one(self) -> bool:
        """Files the next message, if one comes within the short time-out of the communication."""
        try:
            received = self._communication.receive(block=False)
            if received is None:
                return False
            sender, message = received
            self._file(int(sender), message)
        except zmq.ZMQError:
            raise
        except Exception as error:
            self.dropped += 1
            _LOG.warning("a malformed message was dropped: %s", error or type(error).__name__)
        return True

    def _drain(self) -> None:
        """Files what has already arrived, where the communication can tell without waiting."""
        router = getattr(self._communication, "router", None)
        while isinstance(router, zmq.Socket) and router.poll(0):
            self._take_one()

    def _file(self, sender: int, message: Message) -> None:
        kind = message["CHANNEL"]
        if kind == HELLO:
            returned = sender in self.present or sender in self.away
            self._sent.pop(sender, None)
            self._left.discard(sender)
            self._greet(sender)
            if returned and not message.get("reply"):
                self._communication.send(sender, {"HELLO": self.uid, "CHANNEL": HELLO, "reply": 1})
        elif kind == BYE:
            self._left.add(sender)
        elif kind == MODEL:
            self._keep(sender, int(message["iteration"]), message)
        elif kind == WAITING:
            self._greet(sender)
            self._sent[sender] = max(self._sent.get(sender, -1), int(message["round"]))
        else:
            raise ValueError(f"unknown kind {kind!r} from node {sender}")

    def _keep(self, sender: int, round: int, message: Message) -> None:
        self._greet(sender)
        self._sent[sender] = max(self._sent.get(sender, -1), round)
        if round < self._round:
            self.dropped += 1
            _LOG.info("dropped the model of round %d from node %d: it came too late", round + 1, sender)
            return
        models = self._models.setdefault(sender, {})
        models[round] = message
        if len(models) > _KEPT_AHEAD:
            del models[min(models)]
            self.dropped += 1

    def _greet(self, sender: int) -> None:
        self.present.add(sender)
        self._heard[sender] = time.monotonic()
        if sender in self.away:
            self.away.discard(sender)
            _LOG.warning("node %d is back", sender)

    def _leave_out(self, neighbor: int) -> None:
        self.away.add(neighbor)
        self.present.discard(neighbor)

    def _notice_deaths(self) -> None:
        for uid, flag in enumerate(self._gone):
            if flag and uid not in self._gone_seen:
                self._gone_seen.add(uid)
                if uid != self.uid:
                    _LOG.warning("node %d has died; going on without it", uid)
                    self._leave_out(uid)
