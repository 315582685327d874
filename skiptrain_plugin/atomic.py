"""Files that are written whole or not at all, and that are still there after the power went off."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path

_TEMPORARY = re.compile(r"\.(.+)\.\d+")
"""What ``replacing`` calls the file it writes to: the name of the file it is for, and the process."""


@contextmanager
def replacing(path: Path, *, durable: bool = True) -> Iterator[Path]:
    """A temporary file beside ``path`` to write to; it takes the place of ``path`` when the block ends well.

    ``durable``: its content is on the disk before it takes that place, and its name when this returns. Whatever goes
    wrong, ``path`` is as it was; a process that is killed leaves the temporary file behind (``remove_leftovers``).
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield temporary
        if durable:
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if durable:
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Waits until the names in ``folder`` are on the disk; a file is created, renamed or removed for good after this.

    Systems that cannot do it for a folder (Windows, some network file systems) decide themselves when that is so.
    """
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOTSUP):
                raise
        finally:
            os.close(descriptor)


def make_folder(folder: Path) -> None:
    """Creates ``folder`` and those above it where they are missing; their names are on the disk when this returns."""
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for place in reversed(missing):
        sync_folder(place.parent)


def remove_leftovers(folder: Path, *names: str, below: bool = False) -> None:
    """Removes temporary files that killed processes left in ``folder``; ``below``: in the folders in it, too.

    ``names``: patterns of the files that are written there. Only for whoever holds the lock under which they are
    written: the temporary file of a process that is still writing looks the same.
    """
    for path in list((folder.rglob if below else folder.glob)(".*")):
        match = _TEMPORARY.fullmatch(path.name)
        if match and any(fnmatch(match[1], name) for name in names) and path.is_file() and not path.is_symlink():
            path.unlink(missing_ok=True)
