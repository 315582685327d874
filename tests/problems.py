"""Tiny problems with known answers, and the paper's numbers, shared by the tests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PAPER_UNCONSTRAINED_WH = {
    ("cifar", 6, "skiptrain"): (500, 755.02),
    ("cifar", 8, "skiptrain"): (501, 756.53),
    ("cifar", 10, "skiptrain"): (668, 1008.71),
    ("cifar", 6, "dpsgd"): (1000, 1510.04),
    ("cifar", 8, "dpsgd"): (1000, 1510.04),
    ("cifar", 10, "dpsgd"): (1000, 1510.04),
    ("femnist", 6, "skiptrain"): (1500, 7457.19),
    ("femnist", 8, "skiptrain"): (1500, 7457.19),
    ("femnist", 10, "skiptrain"): (2000, 9942.92),
    ("femnist", 6, "dpsgd"): (3000, 14914.38),
    ("femnist", 8, "dpsgd"): (3000, 14914.38),
    ("femnist", 10, "dpsgd"): (3000, 14914.38),
}
"""(dataset, degree, algorithm) → (training rounds, training energy in Wh) of the paper's table."""

PAPER_TAU = {"cifar": [272, 324, 681, 272], "femnist": [413, 492, 1034, 413]}
PAPER_MWH = {
    "cifar": [6.532875, 5.986076, 2.556283, 8.51912],
    "femnist": [21.508007, 19.707797, 8.415981, 28.047269],
}
DEVICE_NAMES = ["Xiaomi 12 Pro", "Samsung Galaxy S22 Ultra", "OnePlus Nord 2 5G", "Xiaomi Poco X3"]


def skiptrain(*arguments: str | Path, cwd: Path | None = None, timeout: float = 100, **environment: str):
    """Runs the real command line in a process of its own."""
    import os

    return subprocess.run(
        [sys.executable, "-m", "skiptrain_plugin", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=timeout,
        cwd=cwd,
        env={**os.environ, **environment},
    )


def refused(result: subprocess.CompletedProcess[str], *words: str) -> None:
    """Asserts that a command refused its input: exit code 2, one or two lines, no traceback, all ``words``."""
    assert result.returncode == 2, (result.returncode, result.stderr)
    assert "Traceback" not in result.stderr
    assert 1 <= len(result.stderr.strip().splitlines()) <= 2, result.stderr
    for word in words:
        assert word in result.stderr, (word, result.stderr)


def tiny_images(samples: int = 240, tests: int = 60, classes: int = 4, seed: int = 0, side: int = 8):
    """A small learnable dataset of CIFAR's kind: each class is a colour and a corner, plus noise."""
    import numpy as np

    from skiptrain_plugin.data.base import ImageData

    rng = np.random.default_rng(seed)

    def draw(count: int):
        y = np.arange(count, dtype=np.uint8) % classes
        x = rng.integers(0, 120, (count, side, side, 3), dtype=np.uint8)
        half = side // 2
        for index, label in enumerate(y):
            row, column = divmod(int(label), 2)
            x[index, row * half : (row + 1) * half, column * half : (column + 1) * half, label % 3] += 100
        return x, y

    train_x, train_y = draw(samples)
    test_x, test_y = draw(tests)
    return ImageData(
        name="synthetic",
        title="tiny images (generated)",
        generated=True,
        source="tests",
        digest="0" * 64,
        classes=classes,
        train_x=train_x,
        train_y=train_y,
        test_x=test_x,
        test_y=test_y,
        train_writer=None,
        writers=(),
        pixel_offset=0.5,
        pixel_scale=0.5,
        drop_last=False,
    )
