"""Keeping freed memory: training frees and asks for the same blocks thousands of times a second."""

from __future__ import annotations

import ctypes
import ctypes.util
import sys

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3
_LARGEST_KEPT = 1 << 30
_TOP_PAD = 64 << 20


def keep_freed_memory() -> bool:
    """Tells glibc not to return freed blocks to the system, so that they need not be zeroed and mapped again.

    Returns whether the C library could be told; elsewhere nothing changes but the speed.
    """
    name = ctypes.util.find_library("c") if sys.platform == "linux" else None
    if name is None:
        return False
    library = ctypes.CDLL(name)
    if not hasattr(library, "mallopt"):
        return False
    settings = ((_M_MMAP_THRESHOLD, _LARGEST_KEPT), (_M_TRIM_THRESHOLD, 2**31 - 1), (_M_TOP_PAD, _TOP_PAD))
    accepted = [library.mallopt(key, value) == 1 for key, value in settings]
    return all(accepted)
