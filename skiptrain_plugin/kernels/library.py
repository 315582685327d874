"""Builds the C kernel on first use and keeps it in the user's cache."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import stat
import subprocess
from functools import cache
from pathlib import Path

import filelock
import platformdirs

from skiptrain_plugin.atomic import replacing
from skiptrain_plugin.processor import cpuinfo

_FOLDER = Path(__file__).resolve().parent
_SOURCES = ("conv_block.c", "winograd.h")
_COMPILERS = ("cc", "gcc", "clang")
_FLAGS = ("-O3", "-std=gnu11", "-shared", "-fPIC", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math")
_TARGETS = ("-march=native", "-mcpu=native")
"""Tried in this order: compilers for ARM may know only the second."""
_BUILD_SECONDS = 120

_POINTER, _FLOAT = ctypes.c_void_p, ctypes.c_float


class Unavailable(Exception):
    """The kernel cannot be used here; the message says why."""


@cache
def load_library() -> ctypes.CDLL | Unavailable:
    """The kernel's functions, built if need be; or why there are none."""
    try:
        library = ctypes.CDLL(str(_built()))
        _declare(library)
    except Unavailable as reason:
        return reason
    except OSError as error:
        return Unavailable(f"the kernel cannot be built or loaded: {error}")
    return library


def _declare(library: ctypes.CDLL) -> None:
    library.block_supported.argtypes, library.block_supported.restype = [_POINTER], ctypes.c_int
    library.block_workspace.argtypes, library.block_workspace.restype = [_POINTER], ctypes.c_int64
    library.block_forward.argtypes = [*[_POINTER] * 6, _FLOAT, *[_POINTER] * 5]
    library.block_backward.argtypes = [*[_POINTER] * 6, _FLOAT, *[_POINTER] * 9]
    library.block_forward.restype = library.block_backward.restype = ctypes.c_int


def _built() -> Path:
    """The compiled kernel of this source, compiler and processor."""
    compiler = _compiler()
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False).stdout
    content = b"".join((_FOLDER / name).read_bytes() for name in _SOURCES)
    key = hashlib.sha256(content + repr((version, _FLAGS, _TARGETS, _processor())).encode()).hexdigest()[:24]
    folder = Path(platformdirs.user_cache_dir("skiptrain")) / "kernels"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    _check_owner(folder)
    path = folder / f"conv_block-{key}.so"
    with filelock.FileLock(str(folder / ".lock"), timeout=2 * _BUILD_SECONDS):
        if not path.exists():
            with replacing(path) as temporary:
                _compile(compiler, temporary)
    return path


def _compile(compiler: str, target: Path) -> None:
    said = ""
    for processor in _TARGETS:
        command = [compiler, *_FLAGS, processor, str(_FOLDER / _SOURCES[0]), "-o", str(target), "-lm"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_BUILD_SECONDS)
        except subprocess.TimeoutExpired:
            raise Unavailable(f"{compiler} did not finish in {_BUILD_SECONDS} s") from None
        if done.returncode == 0:
            return
        said = said or next(iter(done.stderr.strip().splitlines()), f"exit code {done.returncode}")
    raise Unavailable(f"{compiler} cannot compile the kernel: {said}")


def _compiler() -> str:
    named = os.environ.get("CC", "").strip()
    for candidate in (named,) if named else _COMPILERS:
        found = shutil.which(candidate)
        if found:
            return found
    raise Unavailable(f"CC names '{named}', which is not found" if named else "there is no C compiler")


def _processor() -> str:
    """What the compiled code depends on: a home directory may be shared by unlike machines."""
    return f"{platform.machine()} {platform.processor()} {cpuinfo('flags', 'Features')}"


def _check_owner(folder: Path) -> None:
    """Code is loaded from ``folder``, so nobody else may be able to write there."""
    facts = folder.stat()
    if hasattr(os, "getuid") and (facts.st_uid != os.getuid() or facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH)):
        raise Unavailable(f"{folder} belongs to, or can be written by, somebody else")
