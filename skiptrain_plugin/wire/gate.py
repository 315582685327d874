"""The doorkeeper of a node's socket: only holders of a known key come in, everybody else gets silence."""

from __future__ import annotations

import threading
from collections.abc import Mapping

import zmq
from zmq.utils.monitor import recv_monitor_message

from skiptrain_plugin.wire.drops import Drops

UNKNOWN_KEY = "unknown key"
NO_HANDSHAKE = "no handshake"
DOMAIN = b"skiptrain"

_ZAP_ADDRESS = "inproc://zeromq.zap.01"
_ADMIT = b"200"
_SILENCE = b"300"
"""With this status ZeroMQ sends the client no error command: it just waits until its handshake time is over."""
_EVENTS = zmq.EVENT_ACCEPTED | zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED


class Gate:
    """Answers ZeroMQ's authentication requests (ZAP, RFC 27) of one context, in a thread of its own.

    A known public key is admitted and its uid becomes the ``User-Id`` of every message of that connection, which no
    message can change. It ends when the context is terminated.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        server: zmq.Socket[bytes],
        uids: Mapping[bytes, int],
        drops: Drops,
    ) -> None:
        """``uids``: raw 32-byte public key → uid. ``server`` must not be bound yet."""
        self._uids = uids
        self._drops = drops
        self._proofs = 0
        self._proofs_at_accept: dict[int, int] = {}
        self._requests = context.socket(zmq.REP)
        self._requests.bind(_ZAP_ADDRESS)
        self._events = server.get_monitor_socket(_EVENTS)
        server.curve_server = True
        server.zap_domain = DOMAIN
        server.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
        threading.Thread(target=self._run, name="skiptrain-gate", daemon=True).start()

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._requests, zmq.POLLIN)
        poller.register(self._events, zmq.POLLIN)
        try:
            while True:
                for socket, _ in poller.poll():
                    if socket is self._requests:
                        self._answer()
                    else:
                        self._watch()
        except zmq.ContextTerminated:
            pass
        finally:
            self._requests.close(linger=0)
            self._events.close(linger=0)

    def _answer(self) -> None:
        version, request, domain, address, _, mechanism, *credentials = self._requests.recv_multipart()
        uid = None
        if version == b"1.0" and domain == DOMAIN and mechanism == b"CURVE" and len(credentials) == 1:
            uid = self._uids.get(credentials[0])
        if uid is None:
            self._drops.note(
                UNKNOWN_KEY, None, f"the key of {address.decode('ascii', 'replace')[:64]} is not known here"
            )
        status, user = (_SILENCE, b"") if uid is None else (_ADMIT, str(uid).encode())
        self._requests.send_multipart([b"1.0", request, status, b"", user, b""])

    def _watch(self) -> None:
        """Counts the connections that certainly ended without having proved a key.

        ZeroMQ does not say which connection a proof was of, so one that ended after somebody else's proof is not
        counted.
        """
        message = recv_monitor_message(self._events)
        event, descriptor = message["event"], message["value"]
        if event == zmq.EVENT_ACCEPTED:
            self._proofs_at_accept[descriptor] = self._proofs
        elif event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self._proofs += 1
        elif event == zmq.EVENT_DISCONNECTED and self._proofs_at_accept.pop(descriptor, None) == self._proofs:
            self._drops.note(NO_HANDSHAKE, None, "a connection ended before it had proved a key")
