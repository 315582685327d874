"""FEMNIST from a LEAF folder, converted once to a compact cached form.

LEAF writes ``train/*.json`` and ``test/*.json``, each with ``users``, ``num_samples`` and ``user_data``:
for every user ``x``, a list of images of 784 numbers, and ``y``, their labels. Files are taken in the
order of their names (the framework takes its test files in whatever order the system lists them), so the
test set is the same everywhere.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skiptrain_plugin.data import store
from skiptrain_plugin.data.base import ImageData
from skiptrain_plugin.data.leaf import SIDE, Writer, read_leaf
from skiptrain_plugin.data.progress import byte_bar
from skiptrain_plugin.data.shapes import like_femnist, pack_names
from skiptrain_plugin.errors import InputError

KEY = "femnist"
TITLE = "FEMNIST"
HOW = (
    "make it with LEAF (its folder data/femnist) and put train/ and test/ into "
    f"${store.ENVIRONMENT}/femnist, or name the two folders as train_dir and test_dir"
)


def load(train_dir: str = "", test_dir: str = "", progress: bool = True) -> ImageData:
    """FEMNIST from two folders of JSON files, or from ``femnist/train`` and ``femnist/test`` of the cache."""
    train, test = folders(train_dir, test_dir)
    sources = {"train": _json_files(train), "test": _json_files(test)}
    entry = store.obtain(f"{KEY}-{_key(sources)}", lambda staging: _build(staging, sources, progress))
    return like_femnist(entry, "femnist", TITLE, generated=False)


def folders(train_dir: str = "", test_dir: str = "") -> tuple[Path, Path]:
    """The folders of training and test files; an error that says where it looked when there are none."""
    looked = []
    if train_dir or test_dir:
        if not (train_dir and test_dir):
            raise InputError("FEMNIST needs both train_dir and test_dir, or neither")
        train, test = Path(train_dir).expanduser(), Path(test_dir).expanduser()
        if train.is_dir() and test.is_dir():
            return train, test
        looked += [f"{train} (train_dir)", f"{test} (test_dir)"]
    for place in store.places():
        train, test = place / KEY / "train", place / KEY / "test"
        if train.is_dir() and test.is_dir():
            if looked:
                store.log.warning("%s: not both there; FEMNIST is read from %s", ", ".join(looked), place / KEY)
            return train, test
        looked.append(str(place / KEY))
    raise InputError(f"no FEMNIST folder with train/ and test/; looked for {', '.join(looked)}. To get it: {HOW}")


def _json_files(folder: Path) -> list[Path]:
    files = sorted((path for path in folder.iterdir() if path.suffix == ".json"), key=lambda path: path.name)
    if not files:
        raise InputError(f"{folder}: there is no .json file in this folder")
    return files


def _key(sources: dict[str, list[Path]]) -> str:
    """Changes whenever a file is added, removed, renamed, touched or changes its size."""
    digest = hashlib.sha256()
    for part, files in sources.items():
        for path in files:
            facts = path.stat()
            digest.update(f"{part} {path.absolute()} {facts.st_size} {facts.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:16]


def _build(staging: Path, sources: dict[str, list[Path]], progress: bool) -> dict[str, str]:
    scratch = Path(tempfile.mkdtemp(prefix="scratch", dir=staging))
    total = sum(path.stat().st_size for files in sources.values() for path in files)
    compact = True
    writers: list[str] = []
    owners: list[NDArray[np.int32]] = []
    blocks: dict[str, list[Path]] = {"train": [], "test": []}
    with byte_bar(f"converting FEMNIST ({total / 1e6:.0f} MB of JSON, once)", total, progress) as advance:
        done = 0
        for part, files in sources.items():
            seen: dict[str, Path] = {}
            labels = []
            for path in files:
                for writer in read_leaf(path, in_file_order=part == "test"):
                    if writer.name in seen:
                        raise InputError(f"{path}: user '{writer.name}' is also in {seen[writer.name]}")
                    seen[writer.name] = path
                    block = _compact(writer)
                    compact &= block.dtype == np.uint8
                    blocks[part].append(scratch / f"{part}{len(seen)}.npy")
                    np.save(blocks[part][-1], block)
                    labels.append(writer.y)
                    if part == "train":
                        owners.append(np.full(len(writer.y), len(writers), dtype=np.int32))
                        writers.append(writer.name)
                done += path.stat().st_size
                advance(done)
            y = np.concatenate(labels) if labels else np.empty(0, np.uint8)
            if len(y) == 0:
                raise InputError(f"{files[0].parent}: the {len(files)} JSON files here hold no sample")
            store.save(staging, f"{part}_y", y)
    store.save(staging, "train_writer", np.concatenate(owners))
    store.save(staging, "writers", pack_names(writers))
    dtype: np.dtype[Any] = np.dtype(np.uint8 if compact else np.float32)
    for part, paths in blocks.items():
        count = len(np.load(staging / f"{part}_y.npy", mmap_mode="r"))
        store.save_rows(staging, f"{part}_x", dtype, (count, SIDE, SIDE, 1), _as(dtype, paths))
    return {"source": f"LEAF files in {sources['train'][0].parent} and {sources['test'][0].parent}"}


def _compact(writer: Writer) -> NDArray[np.uint8] | NDArray[np.float32]:
    """The images as bytes if byte / 255 gives every float32 back exactly, as they are otherwise."""
    if writer.x.size == 0 or writer.x.min() < 0 or writer.x.max() > 1:
        return writer.x if writer.x.size else writer.x.astype(np.uint8)
    whole = np.rint(writer.x * np.float32(255)).astype(np.uint8)
    return whole if np.array_equal(whole / np.float32(255), writer.x) else writer.x


def _as(dtype: np.dtype[Any], paths: list[Path]) -> Iterator[NDArray[Any]]:
    """The blocks one after the other, those kept as bytes turned into floats where the whole is floats."""
    for path in paths:
        block = np.load(path)
        yield block if block.dtype == dtype else block / np.float32(255)
