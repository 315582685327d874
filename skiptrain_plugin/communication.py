"""``SecureTCP``: DecentralizePy's communication over authenticated, encrypted ZeroMQ, without pickle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

import zmq

from skiptrain_plugin import framework
from skiptrain_plugin.errors import InputError
from skiptrain_plugin.wire.addresses import endpoint, read_addresses
from skiptrain_plugin.wire.endpoint import Endpoint
from skiptrain_plugin.wire.keys import load_keys
from skiptrain_plugin.wire.messages import Encoder

framework.require()

from decentralizepy.communication.Communication import Communication  # noqa: E402

_Number = TypeVar("_Number", int, float)


class SecureTCP(Communication):  # type: ignore[misc]
    """In place of the framework's TCP: ``comm_package = skiptrain_plugin.communication``, ``comm_class = SecureTCP``.

    ``total_bytes``, ``total_data`` (the model) and ``total_meta`` (everything else) count the bytes sent, before
    encryption; ``dropped`` the messages that were refused, by reason.
    """

    def __init__(
        self,
        rank: int,
        machine_id: int,
        mapping: Any,
        total_procs: int,
        addresses_filepath: str,
        offset: int = 9000,
        recv_timeout: int = 50,
        keys: str = "",
        max_message_mb: float = 64,
    ) -> None:
        """Starts to listen.

        ``addresses_filepath``: JSON file machine id → address. ``offset``: port of the process is
        2·rank + 1 + offset. ``recv_timeout``: ms that a receive which does not block waits. ``keys``: directory made by
        ``skiptrain keys``. ``max_message_mb``: MiB of the largest message that is sent or taken.
        """
        super().__init__(rank, machine_id, mapping, total_procs)
        self.ip_addrs = read_addresses(addresses_filepath)
        self.offset = _number("offset", offset, int)
        self.recv_timeout = _number("recv_timeout", recv_timeout, int)
        self.total_data = 0
        self.total_meta = 0
        ring = load_keys(str(keys), self.uid)
        missing = [uid for uid in range(total_procs) if uid not in ring.public]
        if missing:
            raise InputError(
                f"{keys} has no key for {len(missing)} of {total_procs} nodes, the first is node {missing[0]}"
            )
        self._encoder = Encoder()
        self._endpoint = Endpoint(
            ring,
            self.addr(rank, machine_id),
            recv_timeout=self.recv_timeout,
            max_message_mb=_number("max_message_mb", max_message_mb, float),
        )

    @property
    def dropped(self) -> Counter[str]:
        """How many messages were dropped, by reason."""
        return self._endpoint.dropped

    @property
    def router(self) -> zmq.Socket[bytes]:
        """The socket on which messages arrive, under the name that the framework's TCP has for it; for polling."""
        return self._endpoint.server

    def addr(self, rank: int, machine_id: int) -> str:
        """The address of a process, ``tcp://ip:port``."""
        return endpoint(self.ip_addrs, rank, machine_id, self.offset)

    def init_connection(self, neighbor: int) -> None:
        """Opens the connection to a node."""
        self._endpoint.connect(neighbor, self.addr(*self.mapping.get_machine_and_rank(neighbor)))

    def already_connected(self, neighbor: int) -> bool:
        """Whether the connection to a node was opened."""
        return self._endpoint.connected(neighbor)

    def destroy_connection(self, neighbor: int, linger: int | None = None) -> None:
        """Closes the connection to a node; its last messages have ``linger`` ms (default 3000) to leave."""
        self._endpoint.disconnect(neighbor, linger)

    def send(self, uid: int, data: dict[Any, Any]) -> None:
        """Sends a message to a node; the same dict is encoded once for all neighbours that it is sent to."""
        content = self._encoder.encode(data)
        sent = self._endpoint.send(uid, content)
        if sent:
            self.total_bytes += sent
            self.total_data += content.params_bytes
            self.total_meta += sent - content.params_bytes

    def receive(self, block: bool = True) -> tuple[int, dict[Any, Any]] | None:
        """(sender, message); None when ``block`` is false and none came within ``recv_timeout`` ms."""
        return self._endpoint.receive(block)

    def terminate(self) -> None:
        """Closes all connections; the last messages have 3 s to leave."""
        self._endpoint.close()


def _number(name: str, value: Any, kind: Callable[[Any], _Number]) -> _Number:
    try:
        return kind(value)
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"COMMUNICATION.{name} '{value}' is not a number") from None
