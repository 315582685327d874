"""The cache of arrays on disk: written once under a lock, complete or not at all, memory-mapped afterwards.

An entry is a folder ``<cache>/<key>`` with one ``.npy`` file an array and ``meta.json``, which holds each
array's type, shape, file size and sha256 and some facts in words. It is written as a folder beside it and
renamed into place, so a reader sees a whole entry or none. Opening checks sizes, types and shapes;
``verify`` reads and hashes every byte.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import filelock
import numpy as np
import platformdirs
from numpy.typing import DTypeLike, NDArray

from skiptrain_plugin.atomic import make_folder, sync_folder
from skiptrain_plugin.errors import RunError

ENVIRONMENT = "SKIPTRAIN_DATA"
LOCK_SECONDS = 3600
_FORMAT = 1
_CHUNK = 1 << 24

log = logging.getLogger(__name__)

Builder = Callable[[Path], dict[str, str]]
"""Writes ``.npy`` files into the folder it is given (``save`` helps) and returns facts to keep in words."""


class BrokenEntry(Exception):
    """A cache entry that is not what its meta.json says; the message says in what way."""


@dataclass(frozen=True)
class Entry:
    """An opened cache entry."""

    folder: Path
    arrays: dict[str, NDArray[Any]]
    """Read-only memory maps by name."""
    digests: dict[str, str]
    """sha256 of each array's bytes, recorded when it was written."""
    facts: dict[str, str]
    size: int
    """Bytes on disk."""

    @property
    def digest(self) -> str:
        """One sha256 over the name, type, shape and sha256 of every array."""
        lines = [
            f"{name} {array.dtype.str} {array.shape} {self.digests[name]}\n"
            for name, array in sorted(self.arrays.items())
        ]
        return hashlib.sha256("".join(lines).encode()).hexdigest()


def user_cache() -> Path:
    """The data folder in the user's cache directory."""
    return Path(platformdirs.user_cache_dir("skiptrain")) / "data"


def root() -> Path:
    """Where new entries are written: ``$SKIPTRAIN_DATA`` if set, the user's cache otherwise."""
    named = os.environ.get(ENVIRONMENT, "").strip()
    return Path(named).expanduser().absolute() if named else user_cache()


def places() -> list[Path]:
    """The folders in which data are looked for, in order."""
    return list(dict.fromkeys([root(), user_cache()]))


def find(key: str) -> Entry | None:
    """The entry of this name, or None; a broken one counts as absent here (``obtain`` repairs it)."""
    for place in places():
        try:
            entry = open_entry(place / key)
        except BrokenEntry as broken:
            log.debug("cache entry %s: %s", place / key, broken)
            continue
        if entry is not None:
            return entry
    return None


def entries(prefix: str) -> list[Path]:
    """Folders of all entries whose name is ``prefix`` or starts with ``prefix-``, whole or broken."""
    found = []
    for place in places():
        if place.is_dir():
            named = [child for child in sorted(place.iterdir()) if f"{child.name}-".startswith(f"{prefix}-")]
            found += [child for child in named if any(child.glob("*.npy")) or (child / "meta.json").is_file()]
    return found


def obtain(key: str, build: Builder) -> Entry:
    """The entry of this name, built first when there is none or only a broken one."""
    entry = find(key)
    if entry is not None:
        return entry
    folder = root() / key
    with _writing(folder), _lock(folder):
        try:
            entry = open_entry(folder)  # another process may have built it while this one waited
        except BrokenEntry as broken:
            log.warning("the cache entry %s is broken (%s): it is removed and made anew", folder, broken)
            _remove(folder)
        if entry is None:
            _build(folder, build)
            entry = open_entry(folder)
    if entry is None:
        raise RunError(f"the cache entry {folder} vanished while it was written")
    return entry


def save(folder: Path, name: str, array: NDArray[Any]) -> None:
    """Write one array of an entry that is being built."""
    save_rows(folder, name, array.dtype, array.shape, [array])


def save_rows(
    folder: Path, name: str, dtype: DTypeLike, shape: tuple[int, ...], blocks: Iterable[NDArray[Any]]
) -> None:
    """Write an array that arrives in blocks of rows, so that it never has to be in memory as a whole."""
    kind = np.dtype(dtype)
    rows = 0
    with open(folder / f"{name}.npy", "wb") as file:
        header = {"descr": np.lib.format.dtype_to_descr(kind), "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        for block in blocks:
            if len(block):
                file.write(np.ascontiguousarray(block, dtype=kind).reshape(-1).view(np.uint8).data)
                rows += len(block)
        file.flush()
        os.fsync(file.fileno())
    if rows != shape[0]:
        raise ValueError(f"{name}: {rows} rows written, {shape[0]} announced")


def sha256(array: NDArray[Any]) -> str:
    """sha256 of the array's bytes in C order."""
    digest = hashlib.sha256()
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    for start in range(0, len(flat), _CHUNK):
        digest.update(flat[start : start + _CHUNK].data)
    return digest.hexdigest()


def verify(folder: Path) -> list[str]:
    """Read and hash a whole entry; what is wrong with it, in sentences, nothing when it is sound."""
    try:
        entry = open_entry(folder)
    except BrokenEntry as broken:
        return [str(broken)]
    if entry is None:
        return [f"{folder} is not there"]
    return [
        f"{name}.npy has sha256 {found}, not {entry.digests[name]}"
        for name, array in entry.arrays.items()
        if (found := sha256(array)) != entry.digests[name]
    ]


def open_entry(folder: Path) -> Entry | None:
    """The entry in this folder, None when there is no folder, BrokenEntry when it is not whole."""
    meta_file = folder / "meta.json"
    if not folder.exists():
        return None
    try:
        meta = json.loads(meta_file.read_text(encoding="utf-8"))
        if meta["format"] != _FORMAT:
            raise BrokenEntry(f"meta.json has format {meta['format']}, this version reads {_FORMAT}")
        listed = {name: dict(facts) for name, facts in meta["arrays"].items()}
        arrays = {}
        for name, facts in listed.items():
            path = folder / f"{name}.npy"
            size = path.stat().st_size
            if size != facts["bytes"]:
                raise BrokenEntry(f"{path.name} has {size} bytes, not {facts['bytes']}")
            array = np.load(path, mmap_mode="r", allow_pickle=False)
            if array.dtype.str != facts["dtype"] or list(array.shape) != facts["shape"]:
                raise BrokenEntry(f"{path.name} is {array.dtype.str} {array.shape}, not as meta.json says")
            arrays[name] = array
        return Entry(
            folder,
            arrays,
            {name: str(facts["sha256"]) for name, facts in listed.items()},
            {str(name): str(fact) for name, fact in meta["facts"].items()},
            sum(int(facts["bytes"]) for facts in listed.values()),
        )
    except FileNotFoundError as missing:
        raise BrokenEntry(f"{Path(str(missing.filename)).name} is missing") from None
    except PermissionError as denied:
        raise RunError(f"cannot read the cache: {denied.filename}: {denied.strerror}") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BrokenEntry(f"unreadable: {error or type(error).__name__}") from None


def _build(folder: Path, build: Builder) -> None:
    """Build into a folder beside ``folder`` and rename; whatever happens, nothing half-written stays."""
    for leftover in folder.parent.glob(f".{folder.name}.*"):  # of a process that was killed: the lock is ours
        shutil.rmtree(leftover, ignore_errors=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        facts = build(staging)
        arrays = {}
        for path in sorted(staging.glob("*.npy")):
            array = np.load(path, mmap_mode="r", allow_pickle=False)
            arrays[path.stem] = {
                "dtype": array.dtype.str,
                "shape": list(array.shape),
                "bytes": path.stat().st_size,
                "sha256": sha256(array),
            }
            del array
        meta = {"format": _FORMAT, "key": folder.name, "facts": facts, "arrays": arrays}
        with open(staging / "meta.json", "w", encoding="utf-8") as file:
            json.dump(meta, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        for child in staging.iterdir():
            if child.is_dir():
                shutil.rmtree(child)
        staging.chmod(0o755)
        sync_folder(staging)
        staging.rename(folder)
        sync_folder(folder.parent)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _remove(folder: Path) -> None:
    """Take a folder away in one step, then delete it."""
    aside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    folder.rename(aside / "broken")
    shutil.rmtree(aside)


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Turn a full disk, a missing permission or a broken disk into one sentence that says what to do."""
    remedy = f"point {ENVIRONMENT} to a directory with room that you can write to"
    try:
        make_folder(folder.parent)
        yield
    except OSError as error:
        what = error.strerror or str(error)
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            free = shutil.disk_usage(folder.parent).free
            raise RunError(
                f"no room to write {folder}: {what} ({free / 1e9:.1f} GB free); free some space or {remedy}"
            ) from error
        raise RunError(f"cannot write {folder}: {what}; {remedy}") from error


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """Hold the lock of one entry; says so when another process has it."""
    path = folder.with_name(f"{folder.name}.lock")
    lock = filelock.FileLock(path)
    try:
        lock.acquire(timeout=0.1)
    except filelock.Timeout:
        log.warning("waiting for another process that is preparing %s", folder)
        try:
            lock.acquire(timeout=LOCK_SECONDS, poll_interval=0.2)
        except filelock.Timeout:
            raise RunError(
                f"another process has held {path} for {LOCK_SECONDS // 60} minutes; "
                "end it, or delete the file if there is none"
            ) from None
    try:
        yield
    finally:
        lock.release()
