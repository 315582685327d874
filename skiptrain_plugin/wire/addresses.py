"""Where nodes listen: the framework's address file and its numbering of ports."""

from __future__ import annotations

import ipaddress
import json
import logging
import socket
from collections.abc import Mapping
from pathlib import Path

from skiptrain_plugin.errors import InputError
from skiptrain_plugin.experiment.files import read_text

_LOG = logging.getLogger(__name__)


def read_addresses(path: str | Path) -> dict[str, str]:
    """Machine id → host name or IPv4 address, from a JSON file."""
    try:
        addresses = json.loads(read_text(Path(path).expanduser(), "address file"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"address file {path}: {error}") from None
    if not isinstance(addresses, dict) or not all(isinstance(value, str) and value for value in addresses.values()):
        raise InputError(f'address file {path}: not of the form {{"machine id": "address"}}')
    return addresses


def resolve(addresses: Mapping[str, str], machine_id: int) -> str:
    """The IPv4 address of a machine."""
    host = addresses.get(str(machine_id))
    if host is None:
        raise InputError(f"the address file names no machine {machine_id}; it has {', '.join(sorted(addresses))}")
    try:
        return socket.gethostbyname(host)
    except (OSError, UnicodeError) as error:
        raise InputError(f"the address '{host}' of machine {machine_id} cannot be resolved: {error}") from None


def endpoint(addresses: Mapping[str, str], rank: int, machine_id: int, offset: int) -> str:
    """``tcp://ip:port`` with port = 2·rank + 1 + offset."""
    port = 2 * rank + 1 + offset
    if not 0 < port < 2**16:
        raise InputError(f"offset {offset} gives rank {rank} the port {port}, which does not exist")
    return f"tcp://{resolve(addresses, machine_id)}:{port}"


def warn_if_exposed(addresses: Mapping[str, str], machine_id: int) -> bool:
    """Warns when the framework's own TCP, which unpickles what it receives, listens beyond this machine.

    Returns whether it does.
    """
    ip = resolve(addresses, machine_id)
    if ipaddress.ip_address(ip).is_loopback:
        return False
    _LOG.warning(
        "decentralizepy's TCP listens on %s and unpickles whatever arrives: anyone who can reach that address can run "
        "code here; use comm_package = skiptrain_plugin.communication, comm_class = SecureTCP",
        ip,
    )
    return True
