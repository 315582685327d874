"""Builds the C kernel on first use and keeps it in the user's cache."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import signal
import subprocess
from contextlib import suppress
from functools import cache
from pathlib import Path

import filelock
import platformdirs

from skiptrain_plugin.atomic import remove_leftovers, replacing
from skiptrain_plugin.kernels.trust import Damaged, Untrusted, check_folder, open_own
from skiptrain_plugin.processor import cpuinfo

_FOLDER = Path(__file__).resolve().parent
_SOURCES = ("conv_block.c", "winograd.h")
_COMPILERS = ("cc", "gcc", "clang")
_FLAGS = ("-O3", "-std=gnu11", "-shared", "-fPIC", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math")
_TARGETS = ("-march=native", "-mcpu=native")
"""Tried in this order: compilers for ARM may know only the second."""
_BUILD_SECONDS = 120
_VERSION_SECONDS = 10

_POINTER, _FLOAT = ctypes.c_void_p, ctypes.c_float


class Unavailable(Exception):
    """The kernel cannot be used here; the message says why."""


@cache
def load_library() -> ctypes.CDLL | Unavailable:
    """The kernel's functions, built if need be; or why there are none."""
    if os.name != "posix":
        return Unavailable("the kernel is built on Unix only")
    path = None
    try:
        path, file = _built()
        library = _loaded(path, file)
        _declare(library)
    except Unavailable as reason:
        return reason
    except (Untrusted, Damaged) as reason:
        return Unavailable(f"the kernel in the cache is not used: {reason}")
    except AttributeError:
        return Unavailable(f"{path} has not the kernel's functions")
    except OSError as error:
        return Unavailable(f"the kernel cannot be built or loaded: {error}")
    return library


def _loaded(path: Path, file: int) -> ctypes.CDLL:
    """The library in the open ``file``; by its path only where the system has no names for open files.

    The file stays open: the system's loader knows a library by its name, and a number used again would mean this one.
    """
    name = Path(f"/proc/self/fd/{file}")
    try:
        return ctypes.CDLL(str(name if name.exists() else path))
    except BaseException:
        os.close(file)
        raise


def _declare(library: ctypes.CDLL) -> None:
    library.block_supported.argtypes, library.block_supported.restype = [_POINTER], ctypes.c_int
    library.block_workspace.argtypes, library.block_workspace.restype = [_POINTER], ctypes.c_int64
    library.block_forward.argtypes = [*[_POINTER] * 6, _FLOAT, *[_POINTER] * 5]
    library.block_backward.argtypes = [*[_POINTER] * 6, _FLOAT, *[_POINTER] * 9]
    library.block_forward.restype = library.block_backward.restype = ctypes.c_int


def _built() -> tuple[Path, int]:
    """The compiled kernel of this source, compiler and processor: its path, and the open file, which has been checked.

    Its sha256 lies beside it and is written after it. A file that is not what was built (a full disk, a copy that was
    cut short) is built again; one that somebody else could have written is refused.
    """
    compiler = _compiler()
    _, version, _ = _said_by([*compiler, "--version"], _VERSION_SECONDS)
    content = b"".join((_FOLDER / name).read_bytes() for name in _SOURCES)
    key = hashlib.sha256(content + repr((compiler, version, _FLAGS, _TARGETS, _processor())).encode()).hexdigest()[:24]
    folder = _cache_folder()
    path, digest = folder / f"conv_block-{key}.so", folder / f"conv_block-{key}.sha256"
    with filelock.FileLock(str(folder / ".lock"), timeout=2 * _BUILD_SECONDS):
        remove_leftovers(folder, "*.so", "*.sha256")
        try:
            return path, open_own(path, digest.read_text(encoding="ascii", errors="replace").strip())
        except (FileNotFoundError, Damaged):
            digest.unlink(missing_ok=True)
            with replacing(path) as temporary:
                _compile(compiler, temporary)
                temporary.chmod(0o700)
                made = hashlib.sha256(temporary.read_bytes()).hexdigest()
            with replacing(digest) as temporary:
                temporary.write_text(f"{made}\n", encoding="ascii")
            return path, open_own(path, made)


def _cache_folder() -> Path:
    """The folder of compiled kernels, made if need be; nobody else can write there or put another in its place."""
    folder = (Path(platformdirs.user_cache_dir("skiptrain")) / "kernels").resolve()
    for place in (*reversed(folder.parents), folder):
        if not place.exists():
            place.mkdir(mode=0o700, exist_ok=True)
    check_folder(folder)
    return folder


def _compile(compiler: list[str], target: Path) -> None:
    said = ""
    for processor in _TARGETS:
        command = [*compiler, *_FLAGS, processor, str(_FOLDER / _SOURCES[0]), "-o", str(target), "-lm"]
        code, _, errors = _said_by(command, _BUILD_SECONDS)
        if code == 0:
            return
        said = said or next(iter(errors.strip().splitlines()), f"exit code {code}")
    raise Unavailable(f"{compiler[0]} cannot compile the kernel: {said}")


def _said_by(command: list[str], seconds: int) -> tuple[int, str, str]:
    """Exit code, output and errors of ``command``; it and what it started end after ``seconds``."""
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, errors="replace", start_new_session=True
    ) as process:
        try:
            out, errors = process.communicate(timeout=seconds)
        except BaseException as reason:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            if isinstance(reason, subprocess.TimeoutExpired):
                raise Unavailable(f"{shlex.join(command[:2])} did not finish in {seconds} s") from None
            raise
    return process.returncode, out, errors


def _compiler() -> list[str]:
    """The C compiler with the arguments that ``CC`` gives it."""
    named = os.environ.get("CC", "").strip()
    try:
        candidates = [shlex.split(named)] if named else [[name] for name in _COMPILERS]
    except ValueError as error:
        raise Unavailable(f"CC names '{named}', which cannot be read: {error}") from None
    for program, *arguments in candidates:
        found = shutil.which(program)
        if found:
            return [found, *arguments]
    raise Unavailable(f"CC names '{named}', which is not found" if named else "there is no C compiler")


def _processor() -> str:
    """What the compiled code depends on: a home directory may be shared by unlike machines."""
    return f"{platform.machine()} {cpuinfo('flags', 'Features')}"
