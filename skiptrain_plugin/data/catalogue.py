"""The datasets by name: load, fetch, check and list them."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from skiptrain_plugin.data import cifar, femnist, glyphs, store, synthetic
from skiptrain_plugin.data.base import ImageData
from skiptrain_plugin.errors import InputError, unknown

NAMES = ("cifar", "femnist", "glyphs", "synthetic")
LEAST_WRITERS = 16
_KEYS = {"cifar": cifar.KEY, "femnist": femnist.KEY, "glyphs": glyphs.KEY, "synthetic": synthetic.KEY}
_TITLES = {
    "cifar": cifar.TITLE,
    "femnist": femnist.TITLE,
    "glyphs": glyphs.TITLE,
    "synthetic": synthetic.TITLE,
}
_HOW = {"cifar": cifar.HOW, "femnist": femnist.HOW, "glyphs": glyphs.HOW, "synthetic": synthetic.HOW}


@dataclass(frozen=True)
class Listing:
    """One line of the list of datasets."""

    name: str
    title: str
    present: bool
    """True when it can be used without downloading or drawing anything."""
    where: tuple[Path, ...]
    """Its folders in the cache, or the source folder it would be made from."""
    size: int
    """Bytes on disk in the cache."""
    how: str
    """How to get it."""


@dataclass(frozen=True)
class Check:
    """The outcome of hashing every byte that the cache holds of a dataset."""

    name: str
    folders: tuple[Path, ...]
    """What was read; empty when there is nothing of it in the cache."""
    problems: tuple[str, ...]
    """What is wrong, a sentence each, with the folder to delete."""
    size: int
    """Bytes read."""
    seconds: float

    @property
    def sound(self) -> bool:
        """True when there was something to read and nothing wrong with it."""
        return bool(self.folders) and not self.problems


def load(
    name: str, *, nodes: int = 0, seed: int, train_dir: str = "", test_dir: str = "", progress: bool = True
) -> ImageData:
    """The dataset of this name, fetched, converted or drawn first if need be.

    ``nodes`` is the number of nodes that will share it (glyphs get at least one writer each), ``seed``
    draws the generated ones, ``train_dir`` and ``test_dir`` are folders as the INI names them.
    """
    _known(name)
    if name == "cifar":
        return cifar.load(train_dir, progress)
    if name == "femnist":
        return femnist.load(train_dir, test_dir, progress)
    if name == "glyphs":
        return glyphs.load(max(nodes, LEAST_WRITERS), seed)
    return synthetic.load(seed)


def get(name: str, progress: bool = True) -> Listing:
    """Make sure that a dataset is in the cache (generated ones: with seed 0) and say where."""
    load(name, seed=0, progress=progress)
    return _listing(name)


def listing() -> list[Listing]:
    """Every dataset there is, and what is here of it."""
    return [_listing(name) for name in NAMES]


def check(name: str) -> Check:
    """Read and hash everything in the cache that belongs to this dataset."""
    _known(name)
    start = time.monotonic()
    folders = tuple(store.entries(_KEYS[name]))
    problems = []
    for folder in folders:
        wrong = store.verify(folder)
        if name == "cifar" and not wrong and (entry := store.open_entry(folder)) is not None:
            wrong = cifar.differences(entry)
        problems += [f"{folder}: {sentence}; delete this folder and get the data again" for sentence in wrong]
    return Check(name, folders, tuple(problems), sum(map(_size, folders)), time.monotonic() - start)


def _listing(name: str) -> Listing:
    folders = store.entries(_KEYS[name])
    where = tuple(folders)
    if not where and name == "cifar":
        where = tuple(cifar.batch_folders())
    if not where and name == "femnist":
        try:
            where = femnist.folders()
        except InputError:
            where = ()
    return Listing(name, _TITLES[name], bool(where), where, sum(map(_size, folders)), _HOW[name])


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir() if path.is_file())


def _known(name: str) -> None:
    if name not in NAMES:
        raise unknown("dataset", name, NAMES)
