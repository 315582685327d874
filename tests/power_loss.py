"""A layer under a real program that notes what it asks of the disk, and what a power loss at any moment may leave.

A system call returns long before its effect is on the disk. POSIX promises two things only: after ``fsync`` of a file
its content is there, after ``fsync`` of a folder the names in it are. Everything else may be there or not, in any
combination: a file without its last bytes, a file of the right length full of zeros, a new name with the old content,
a removed file that is back. A killed process, by contrast, loses nothing that it had handed to the system, which is
why killing it cannot show that an ``fsync`` is missing.
"""

from __future__ import annotations

import builtins
import io
import os
import pathlib
import random
import stat
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

Key = tuple[int, int]
"""A file or folder: device and inode."""
Names = dict[str, Key]
Tree = dict[str, bytes | None]
"""Path inside the root → content; None for a folder."""

_CALLS = (
    (os, ("fsync", "open", "replace", "rename", "unlink", "remove", "mkdir", "rmdir", "truncate", "ftruncate")),
    (pathlib.Path, ("open", "replace", "rename", "unlink", "mkdir", "rmdir")),
    (io, ("open",)),
    (builtins, ("open",)),
)


@dataclass
class Disk:
    """What is where: names by folder and contents by file."""

    names: dict[Key, Names] = field(default_factory=dict)
    contents: dict[Key, bytes] = field(default_factory=dict)

    def copy(self) -> Disk:
        return Disk({key: dict(names) for key, names in self.names.items()}, dict(self.contents))


@dataclass(frozen=True)
class Moment:
    """The state of things between two system calls."""

    number: int
    root: Key
    seen: Disk
    """As every program sees it."""
    synced: Disk
    """What the system has promised to be on the disk."""
    promise: object
    """What the program had said by then that it keeps (see ``Recorder.promise``)."""

    def lost(self) -> Tree:
        """Nothing but what was promised is left."""
        return self._tree(self.synced.names.get, lambda key: self.synced.contents.get(key, b""))

    def killed(self) -> Tree:
        """Everything is there: no power loss, but the end of the process."""
        return self._tree(self.seen.names.get, lambda key: self.seen.contents[key])

    def names_only(self, filler: bytes) -> Tree:
        """All names are there, but of contents only what was promised; ``filler`` repeated stands in for the rest."""

        def content(key: Key) -> bytes:
            there = self.synced.contents.get(key, b"")
            return there + filler * (len(self.seen.contents[key]) - len(there))

        return self._tree(self.seen.names.get, content)

    def mixture(self, dice: random.Random) -> Tree:
        """Of what was not promised some is there and some is not."""

        def names(folder: Key) -> Names:
            old, new = self.synced.names.get(folder, {}), self.seen.names.get(folder, {})
            chosen = {name: dice.choice((old, new)).get(name) for name in sorted({*old, *new})}
            return {name: key for name, key in chosen.items() if key is not None}

        def content(key: Key) -> bytes:
            old, new = self.synced.contents.get(key, b""), self.seen.contents[key]
            if old == new:
                return old
            cut = dice.randint(min(len(old), len(new)), len(new)) if new.startswith(old) else len(new)
            return dice.choice((old, new, new[:cut], new[:cut] + bytes(len(new) - cut)))

        return self._tree(names, content)

    def _tree(self, names, content) -> Tree:
        tree: Tree = {}

        def walk(folder: Key, prefix: str) -> None:
            for name, key in sorted((names(folder) or {}).items()):
                is_folder = key in self.seen.names or key in self.synced.names
                tree[prefix + name] = None if is_folder else content(key)
                if is_folder:
                    walk(key, f"{prefix}{name}/")

        walk(self.root, "")
        return tree


class Recorder:
    """Notes the system calls of this process below ``root`` and the moments between them, until it is closed.

    ``root`` itself counts as being on the disk. Lock files are left out.
    """

    def __init__(self, root: Path, monkeypatch) -> None:
        self.root = root
        self.calls: list[tuple[str, str]] = []
        """Name of the call, and the path inside ``root`` that it was about (of a rename: the new one)."""
        self.moments: list[Moment] = []
        self._promise: object = None
        self._synced = Disk()
        self._held: dict[Key, int] = {}
        self._inside = threading.local()
        self._open, self._close, self._read = os.open, os.close, os.pread
        self._patches = monkeypatch
        for module, names in _CALLS:
            for name in names:
                monkeypatch.setattr(module, name, self._noted(name, getattr(module, name)))
        self._look()

    def promise(self, what: object) -> None:
        """Called by the test when the program has said that ``what`` is kept from now on."""
        self._promise = what
        self._look()

    def close(self) -> list[Moment]:
        """Stops recording; all moments."""
        self._look()
        self._patches.undo()
        for descriptor in self._held.values():
            os.close(descriptor)
        return self.moments

    def _noted(self, name: str, real):
        def call(*arguments, **options):
            if getattr(self._inside, "busy", False):
                return real(*arguments, **options)
            self._inside.busy = True
            try:
                path = self._path(name, arguments)
                if path is None:
                    return real(*arguments, **options)
                self._look()
                result = real(*arguments, **options)
                self.calls.append((name, path))
                if name == "fsync":
                    self._sync(arguments[0])
                return result
            finally:
                self._inside.busy = False

        return call

    def _path(self, name: str, arguments) -> str | None:
        """The path inside ``root`` that a call is about; None when it is elsewhere or a lock."""
        about = arguments[1] if name in ("replace", "rename") else arguments[0]
        if isinstance(about, int):
            facts = os.fstat(about)
            places = {key: path for path, key in self._walk()}
            return places.get((facts.st_dev, facts.st_ino))
        path = Path(os.path.abspath(os.fsdecode(about)))
        if path.suffix == ".lock" or path.name == ".lock" or not path.is_relative_to(self.root):
            return None
        return path.relative_to(self.root).as_posix()

    def _sync(self, descriptor: int) -> None:
        facts = os.fstat(descriptor)
        key, now = (facts.st_dev, facts.st_ino), self._now()
        if stat.S_ISDIR(facts.st_mode):
            self._synced.names[key] = now.names[key]
        else:
            self._synced.contents[key] = now.contents[key]

    def _look(self) -> None:
        busy, self._inside.busy = getattr(self._inside, "busy", False), True
        facts = os.stat(self.root)
        root = (facts.st_dev, facts.st_ino)
        now = self._now()
        self._inside.busy = busy
        if not self.moments:
            self._synced = now.copy()
        self.moments.append(Moment(len(self.moments), root, now, self._synced.copy(), self._promise))

    def _walk(self) -> Iterator[tuple[str, Key]]:
        for folder, folders, files in os.walk(self.root):
            here = os.stat(folder)
            yield Path(folder).relative_to(self.root).as_posix(), (here.st_dev, here.st_ino)
            for name in files:
                if not name.endswith(".lock"):
                    facts = os.stat(Path(folder, name))
                    yield Path(folder, name).relative_to(self.root).as_posix(), (facts.st_dev, facts.st_ino)
            folders.sort()

    def _now(self) -> Disk:
        disk = Disk()
        for path, key in self._walk():
            place = self.root / path
            if key not in self._held:  # held open, so that its number is not given to another file
                self._held[key] = self._open(place, os.O_RDONLY)
            if place.is_dir():
                disk.names[key] = {}
            if path != ".":
                above = os.stat(place.parent)
                disk.names[above.st_dev, above.st_ino][place.name] = key
        for key, descriptor in self._held.items():  # removed files, too: their names may come back
            facts = os.fstat(descriptor)
            if stat.S_ISREG(facts.st_mode):
                disk.contents[key] = self._read(descriptor, facts.st_size, 0)
        return disk


def losses(moments: list[Moment], mixtures: int = 1, seed: int = 0) -> list[tuple[Moment, Tree]]:
    """What the disk may hold after the power went off at each of the moments, equal cases once."""
    dice = random.Random(seed)
    found: dict[object, tuple[Moment, Tree]] = {}
    for moment in moments:
        trees = [moment.lost(), moment.killed(), moment.names_only(b""), moment.names_only(b"\0")]
        for tree in trees + [moment.mixture(dice) for _ in range(mixtures)]:
            found[moment.promise, frozenset(tree.items())] = (moment, tree)
    return list(found.values())


def put(tree: Tree, root: Path) -> Path:
    """Writes ``tree`` below ``root``."""
    root.mkdir()
    for path, content in tree.items():
        if content is None:
            (root / path).mkdir()
        else:
            (root / path).write_bytes(content)
    return root
