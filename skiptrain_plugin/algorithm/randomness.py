"""Random numbers as a function of (seed, purpose, uid, round), and of nothing else.

Every draw comes from the counter-based generator Philox: the key is (seed, purpose), the counter
starts at (uid, round). So a node draws the same numbers in any process, on any machine, in any
order, and a resumed run needs no generator state.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

_WORD = 2**64


def _purpose_word(purpose: str) -> int:
    return int.from_bytes(hashlib.sha256(purpose.encode()).digest()[:8], "little")


def generator(seed: int, purpose: str, uid: int = 0, round: int = 0) -> np.random.Generator:
    """A fresh generator for one node, one round and one purpose (for example ``"topology"``)."""
    key = np.array([seed % _WORD, _purpose_word(purpose)], dtype=np.uint64)
    counter = np.array([0, 0, uid, round], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(counter=counter, key=key))


def uniforms(seed: int, purpose: str, uids: NDArray[np.int64], round: int) -> NDArray[np.float64]:
    """One number in [0, 1) for each of ``uids``: node i takes the i-th draw of the round's stream."""
    if len(uids) == 0:
        return np.empty(0)
    draws = generator(seed, purpose, round=round).random(int(uids.max()) + 1)
    return draws[uids]


def derived_seed(seed: int, purpose: str, uid: int = 0, round: int = 0) -> int:
    """A 63-bit integer for libraries that take a seed (torch's generators, networkx)."""
    return int(generator(seed, purpose, uid, round).integers(2**63))
