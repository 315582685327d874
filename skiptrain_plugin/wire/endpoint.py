"""One node on the network: a listening socket, one sending socket a neighbour, everything under CURVE keys."""

from __future__ import annotations

import os
import time
import weakref
from collections import Counter
from typing import Any

import zmq

from skiptrain_plugin.errors import InputError, RunError
from skiptrain_plugin.wire.drops import Drops
from skiptrain_plugin.wire.gate import Gate
from skiptrain_plugin.wire.keys import KeyRing
from skiptrain_plugin.wire.messages import (
    HEADER_LIMIT,
    OVERSIZED,
    Content,
    MalformedMessage,
    decode,
    decode_header,
    encode_header,
)
from skiptrain_plugin.wire.sessions import ReplayGuard, Session

MEBIBYTE = 2**20
MOST_MESSAGE_MB = 1024
WRONG_SENDER = "wrong sender"
WRONG_RECEIVER = "wrong receiver"
QUEUE_FULL = "queue full"

_QUEUE_MESSAGES = 16
"""Messages that wait on either side of a connection; neighbours in step are never more than two rounds apart."""
_SEND_PATIENCE_MS = 1000
"""How long a full queue may hold up the sender before the message is dropped."""
_LINGER_MS = 3000
"""How long closing waits for the last messages to leave."""
_HANDSHAKE_MS = 10_000
"""How long a connection may take to prove its key."""
_RECONNECT_MS = (100, 2000)
_ENCRYPTION_BYTES = 256
"""What CURVE adds to a frame, generously."""


class Endpoint:
    """Sends to and receives from the nodes of a key ring.

    Receiving is one-way (PULL): a peer gets no answer on this socket, and one without a known key not even the end of
    the handshake. Messages that are malformed, oversized, replayed, for somebody else or not by the holder of the
    sender's key are dropped and counted in ``dropped``.
    """

    def __init__(self, ring: KeyRing, address: str, *, recv_timeout: int = 50, max_message_mb: float = 64) -> None:
        """``address``: ``tcp://ip:port`` to listen on; ``recv_timeout`` in ms; ``max_message_mb`` in MiB."""
        if not 0 < max_message_mb <= MOST_MESSAGE_MB:
            raise InputError(
                f"COMMUNICATION.max_message_mb {max_message_mb}: not above 0 and at most {MOST_MESSAGE_MB}"
            )
        if not 0 <= recv_timeout < 2**31:
            raise InputError(f"COMMUNICATION.recv_timeout {recv_timeout}: not a number of milliseconds")
        self.uid = ring.uid
        self._ring = ring
        self._recv_timeout = recv_timeout
        self._limit = int(max_message_mb * MEBIBYTE)
        self._drops = Drops(f"node {ring.uid}")
        self._guard = ReplayGuard()
        self._session = Session.begin()
        self._sequence = 0
        self._peers: dict[int, zmq.Socket[bytes]] = {}
        self._stalled: set[int] = set()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._context.set(zmq.MAX_SOCKETS, len(ring.public) + 64)
        self.server = server = self._context.socket(zmq.PULL)
        self._close = weakref.finalize(self, _close, os.getpid(), self._context, server, self._peers)
        server.curve_secretkey = ring.secret.encode()
        server.maxmsgsize = max(self._limit, HEADER_LIMIT) + _ENCRYPTION_BYTES
        server.rcvhwm = _QUEUE_MESSAGES
        server.rcvtimeo = recv_timeout
        server.handshake_ivl = _HANDSHAKE_MS
        server.tcp_keepalive = 1
        Gate(self._context, server, ring.raw(), self._drops)
        try:
            server.bind(address)
        except zmq.ZMQError as error:
            self.close()
            raise InputError(f"node {ring.uid} cannot listen on {address}: {zmq.strerror(error.errno or 0)}") from None

    @property
    def address(self) -> str:
        """Where it listens; with the real port where port 0 was asked for."""
        return str(self.server.getsockopt_string(zmq.LAST_ENDPOINT))

    @property
    def dropped(self) -> Counter[str]:
        """How many messages were dropped, by reason."""
        return self._drops.counts

    def connect(self, uid: int, address: str) -> None:
        """Opens the connection to a node; messages wait until it is there."""
        if uid not in self._ring.public:
            raise InputError(f"node {self.uid} has no public key of node {uid}")
        self.disconnect(uid)
        peer = self._context.socket(zmq.PUSH)
        peer.curve_serverkey = self._ring.public[uid].encode()
        peer.curve_publickey = self._ring.public[self.uid].encode()
        peer.curve_secretkey = self._ring.secret.encode()
        peer.sndhwm = _QUEUE_MESSAGES
        peer.sndtimeo = _SEND_PATIENCE_MS
        peer.linger = _LINGER_MS
        peer.reconnect_ivl, peer.reconnect_ivl_max = _RECONNECT_MS
        peer.handshake_ivl = _HANDSHAKE_MS
        peer.tcp_keepalive = 1
        peer.connect(address)
        self._peers[uid] = peer

    def connected(self, uid: int) -> bool:
        """Whether ``connect`` was called for this node."""
        return uid in self._peers

    def disconnect(self, uid: int, linger: int | None = None) -> None:
        """Closes the connection to a node; its last messages have ``linger`` ms (default 3000) to leave."""
        peer = self._peers.pop(uid, None)
        self._stalled.discard(uid)
        if peer is not None:
            peer.close(linger=linger)

    def send(self, uid: int, content: Content) -> int:
        """Sends ``content`` to a node and returns the bytes sent.

        A node that takes nothing holds the sender up for a second once; from then on its messages are dropped (0 bytes)
        whenever its queue is full, until it takes one again.
        """
        if uid not in self._peers:
            raise RunError(f"node {self.uid} is not connected to node {uid}")
        if len(content.body) > self._limit:
            raise InputError(
                f"a message of {len(content.body) / MEBIBYTE:.1f} MiB is larger than "
                f"COMMUNICATION.max_message_mb {self._limit / MEBIBYTE:g}"
            )
        self._sequence += 1
        header = encode_header(content, self.uid, uid, self._session, self._sequence)
        try:
            self._peers[uid].send_multipart(
                [header, content.body], zmq.NOBLOCK if uid in self._stalled else 0, copy=False
            )
        except zmq.Again:
            self._stalled.add(uid)
            self._drops.note(QUEUE_FULL, uid, f"{_QUEUE_MESSAGES} messages for it are already waiting")
            return 0
        self._stalled.discard(uid)
        return len(header) + len(content.body)

    def receive(self, block: bool = True) -> tuple[int, dict[Any, Any]] | None:
        """The next message and its sender; None when ``block`` is false and none came within ``recv_timeout`` ms."""
        deadline = time.monotonic() + self._recv_timeout / 1000
        while True:
            try:
                frames = self.server.recv_multipart(copy=False)
            except zmq.Again:
                if not block:
                    return None
                self.server.poll()
                continue
            message = self._admit(frames)
            if message is not None:
                return message
            if not block and time.monotonic() >= deadline:
                return None

    def close(self) -> None:
        """Closes everything; the last messages have 3 s to leave. A second call does nothing."""
        self._close()

    def _admit(self, frames: list[zmq.Frame]) -> tuple[int, dict[Any, Any]] | None:
        sender = int(frames[0].get("User-Id"))
        try:
            if len(frames) != 2:
                raise MalformedMessage(f"{len(frames)} frames instead of 2")
            if len(frames[1]) > self._limit:
                raise MalformedMessage(f"a body of {len(frames[1])} bytes", OVERSIZED)
            header = decode_header(frames[0].bytes)
            if header.uid != sender:
                raise MalformedMessage(f"it says that it is of node {header.uid}", WRONG_SENDER)
            if header.to != self.uid:
                raise MalformedMessage(f"it is for node {header.to}", WRONG_RECEIVER)
            refusal = self._guard.refusal(sender, header.session, header.sequence)
            if refusal is not None:
                raise MalformedMessage(f"sequence number {header.sequence}", refusal)
            return sender, decode(header.tree, frames[1].bytes)
        except MalformedMessage as error:
            self._drops.note(error.reason, sender, str(error))
            return None


def _close(
    process: int,
    context: zmq.Context[zmq.Socket[bytes]],
    server: zmq.Socket[bytes],
    peers: dict[int, zmq.Socket[bytes]],
) -> None:
    """Closes the sockets and waits for them; in a forked child, which does not own them, does nothing."""
    if os.getpid() != process:
        return
    server.disable_monitor()
    server.close(linger=0)
    for peer in peers.values():
        peer.close()
    peers.clear()
    context.term()
