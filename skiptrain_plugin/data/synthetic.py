"""Synthetic: CIFAR-shaped generated images, ten classes of 32 x 32 x 3, for trying things out offline and for
tests.

A class is a form (disc, ring, square, ...) at a random place, size and angle, in colours that only lean
towards the class, on a random background with a second, meaningless form and noise. This is not CIFAR-10
and its title says so.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skiptrain_plugin.algorithm.randomness import generator
from skiptrain_plugin.data import store
from skiptrain_plugin.data.base import ImageData
from skiptrain_plugin.data.shapes import like_cifar
from skiptrain_plugin.errors import InputError

KEY = "synthetic"
TITLE = "synthetic images (generated, not CIFAR-10)"
HOW = "drawn when first used"
VERSION = 1
SIDE = 32
CLASSES = 10
MOST_IMAGES = 1_000_000
_BLOCK = 1000  # images drawn at a time

Floats = NDArray[np.floating[Any]]


def load(seed: int, train: int = 10_000, test: int = 2_000) -> ImageData:
    """``train`` and ``test`` images drawn by ``seed``, when first asked for."""
    if not (1 <= train <= MOST_IMAGES and 1 <= test <= MOST_IMAGES):
        raise InputError(f"synthetic can have 1 to {MOST_IMAGES} training and test images, not {train} and {test}")
    key = f"{KEY}-v{VERSION}-{train}-{test}-{seed}"
    entry = store.obtain(key, lambda staging: _build(staging, seed, train, test))
    return like_cifar(entry, "synthetic", TITLE, generated=True)


def _build(staging: Path, seed: int, train: int, test: int) -> dict[str, str]:
    for part, count in (("train", train), ("test", test)):
        rng = generator(seed, f"synthetic {part}")
        labels = rng.permutation(np.arange(count) % CLASSES).astype(np.uint8)
        blocks = (draw(labels[start : start + _BLOCK], rng) for start in range(0, count, _BLOCK))
        store.save_rows(staging, f"{part}_x", np.uint8, (count, SIDE, SIDE, 3), blocks)
        store.save(staging, f"{part}_y", labels)
    return {"source": f"drawn by this program: {train} training and {test} test images, seed {seed}"}


def draw(labels: NDArray[np.uint8], rng: np.random.Generator) -> NDArray[np.uint8]:
    """One image for each label, N x 32 x 32 x 3."""
    count = len(labels)
    background = rng.uniform(0.15, 0.85, size=(count, 1, 1, 3)).astype(np.float32)
    slope = rng.normal(0, 0.25, size=(count, 2, 3)).astype(np.float32)
    line = np.linspace(-1, 1, SIDE, dtype=np.float32)
    image = background + slope[:, None, None, 0] * line[:, None, None] + slope[:, None, None, 1] * line[:, None]
    stray = _form(rng.integers(0, CLASSES, count).astype(np.uint8), rng, 0.12, 0.25)[..., None]
    image += stray * (rng.uniform(0, 1, size=(count, 1, 1, 3)).astype(np.float32) - image)
    hue = 2 * np.pi * labels / CLASSES
    lean = 0.25 * np.stack([np.cos(hue), np.cos(hue - 2.1), np.cos(hue + 2.1)], axis=-1)
    colour = background[:, 0, 0] + rng.choice([-0.35, 0.35], size=(count, 1)) + lean + rng.normal(0, 0.15, (count, 3))
    form = _form(labels, rng, 0.3, 0.6)[..., None]
    image += form * (colour[:, None, None].astype(np.float32) - image)
    image += rng.standard_normal(image.shape, dtype=np.float32) * np.float32(0.09)
    pixels: NDArray[np.uint8] = np.rint(np.clip(image, 0, 1) * 255).astype(np.uint8)
    return pixels


def _form(labels: NDArray[np.uint8], rng: np.random.Generator, smallest: float, largest: float) -> Floats:
    """How much of each pixel the form of the label covers, 0 to 1; a picture spans -1 to 1 both ways."""
    count = len(labels)
    size = rng.uniform(smallest, largest, size=(count, 1, 1)).astype(np.float32)
    centre = rng.uniform(-0.45, 0.45, size=(2, count, 1, 1)).astype(np.float32)
    angle = rng.normal(0, 0.25, size=(count, 1, 1)).astype(np.float32)
    line = np.linspace(-1, 1, SIDE, dtype=np.float32)
    x, y = (line[None, None, :] - centre[0]) / size, (line[None, :, None] - centre[1]) / size
    u, v = x * np.cos(angle) - y * np.sin(angle), x * np.sin(angle) + y * np.cos(angle)
    inside = np.empty((count, SIDE, SIDE), dtype=np.float32)
    for label in range(CLASSES):
        chosen = labels == label
        inside[chosen] = _depth(label, u[chosen], v[chosen])
    covered: Floats = np.clip(inside * size * (SIDE / 2) + 0.5, 0, 1)
    return covered


def _depth(label: int, u: Floats, v: Floats) -> Floats:
    """How deep the point (u, v) lies inside the form of unit size, negative outside."""
    across, along = np.abs(u), np.abs(v)
    radius = np.hypot(u, v)
    box = 1 - np.maximum(across, along)
    depth: Floats
    match label:
        case 0:  # disc
            depth = 1 - radius
        case 1:  # ring
            depth = 0.25 - np.abs(radius - 0.75)
        case 2:  # square
            depth = box
        case 3:  # triangle
            depth = np.minimum(0.8 - v, (v + 1) * 0.5 - across)
        case 4:  # upright cross
            depth = np.minimum(0.3 - np.minimum(across, along), box)
        case 5:  # diagonal cross
            depth = np.minimum(0.3 - np.minimum(np.abs(u + v), np.abs(u - v)) * 0.7, box)
        case 6:  # lying bars
            depth = np.minimum(0.2 - np.abs(along - 0.65), box)
        case 7:  # standing bars
            depth = np.minimum(0.2 - np.abs(across - 0.65), box)
        case 8:  # half disc
            depth = np.minimum(1 - radius, v)
        case _:  # frame
            depth = np.minimum(0.22 - np.abs(box - 0.22), box)
    return depth
