"""Whether code in the user's cache can have come from the user only."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path


class Untrusted(Exception):
    """Somebody else could have put something there; the message says where."""


class Damaged(Exception):
    """The file is not what was written."""


def check_folder(folder: Path) -> None:
    """Raises ``Untrusted`` unless only this user, and root, decide what lies in ``folder``.

    ``folder`` (without symbolic links) must be this user's own, and nobody else may write there. Each folder above it
    must belong to this user or to root and not be writable for others, who could otherwise put another folder in its
    place. Root's folders with the sticky bit, such as /tmp, are good enough above one that passes: nobody can rename
    there what is somebody else's.
    """
    facts = folder.lstat()
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.getuid():
        raise Untrusted(f"{folder} is not a folder of this user")
    for place in (folder, *folder.parents):
        facts = place.lstat()
        if facts.st_uid not in (os.getuid(), 0):
            raise Untrusted(f"{place} belongs to somebody else")
        sticky = place != folder and facts.st_uid == 0 and facts.st_mode & stat.S_ISVTX
        if _others_write(facts) and not sticky:
            raise Untrusted(f"{place} can be written by others (mode {stat.S_IMODE(facts.st_mode):o})")


def open_own(path: Path, digest: str) -> int:
    """Opens the file at ``path``, which must be this user's, writable for nobody else, and have the sha256 ``digest``.

    Everything is asked of the one open file, so that nothing can take its place between the check and its use.
    """
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        facts = os.fstat(file)
        if not stat.S_ISREG(facts.st_mode) or facts.st_uid != os.getuid():
            raise Untrusted(f"{path} is not a file of this user")
        if _others_write(facts):
            raise Untrusted(f"{path} can be written by others (mode {stat.S_IMODE(facts.st_mode):o})")
        with open(file, "rb", closefd=False) as content:
            if hashlib.sha256(content.read()).hexdigest() != digest:
                raise Damaged(f"{path} is not what was built")
    except BaseException:
        os.close(file)
        raise
    return file


def _others_write(facts: os.stat_result) -> bool:
    """Whether somebody else may write; a group that has this user's name and no other member is nobody else."""
    if facts.st_mode & stat.S_IWOTH:
        return True
    if not facts.st_mode & stat.S_IWGRP:
        return False
    import grp
    import pwd

    try:
        name, group = pwd.getpwuid(os.getuid()).pw_name, grp.getgrgid(facts.st_gid)
    except KeyError:
        return True
    return group.gr_name != name or not set(group.gr_mem) <= {name}
