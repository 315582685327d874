"""Free ports for a deployment on one machine."""

from __future__ import annotations

import secrets
import socket

from skiptrain_plugin.errors import RunError

_LOWEST, _HIGHEST = 20_000, 32_000
"""Below the ports that systems hand out to outgoing connections."""
_TRIES = 200


def free_offset(nodes: int, host: str = "127.0.0.1") -> int:
    """A value of [COMMUNICATION] offset whose ports (offset + 1, + 3, …) are all free just now."""
    for _ in range(_TRIES):
        offset = _LOWEST + secrets.randbelow(_HIGHEST - _LOWEST - 2 * nodes)
        if all(_is_free(host, offset + 2 * rank + 1) for rank in range(nodes)):
            return offset
    raise RunError(f"no {nodes} free ports between {_LOWEST} and {_HIGHEST} on {host}; give offset in [COMMUNICATION]")


def _is_free(host: str, port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True
