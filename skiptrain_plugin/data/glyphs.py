"""Glyphs: FEMNIST-shaped data that needs nothing outside, drawn from the fonts that matplotlib ships.

62 characters (digits, capitals, small letters in LEAF's label order) of 28 x 28, dark on white. Every
writer has a font, slant, size, stroke, ink and noise of its own; every sample is a little shifted, turned
and bent. A writer depends on (seed, its number) only, so more writers add to the same first ones. This is
not FEMNIST and its title says so.
"""

from __future__ import annotations

import string
from functools import cache
from pathlib import Path

import matplotlib
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter, ImageFont

from skiptrain_plugin.algorithm.randomness import generator
from skiptrain_plugin.data import store
from skiptrain_plugin.data.base import ImageData
from skiptrain_plugin.data.shapes import like_femnist, pack_names
from skiptrain_plugin.errors import InputError

KEY = "glyphs"
TITLE = "glyphs (generated, not FEMNIST)"
HOW = "drawn when first used"
VERSION = 1
CHARACTERS = string.digits + string.ascii_uppercase + string.ascii_lowercase
SIDE = 28
MOST_WRITERS = 9999

_CANVAS = 64  # pixels of the square on which a font's characters are drawn once
_FONTS = (
    *(f"DejaVuSans{style}.ttf" for style in ("", "-Bold", "-Oblique", "-BoldOblique")),
    *(f"DejaVuSansMono{style}.ttf" for style in ("", "-Bold", "-Oblique", "-BoldOblique")),
    *(f"DejaVuSerif{style}.ttf" for style in ("", "-Bold", "-Italic", "-BoldItalic")),
    *(f"STIXGeneral{style}.ttf" for style in ("", "Bol", "Italic", "BolIta")),
    *(f"cm{style}10.ttf" for style in ("b", "r", "ss", "ti", "tt")),
)
_CORNERS = np.array([[-1, -1], [-1, 1], [1, 1], [1, -1]], dtype=np.float64)  # as Pillow's QUAD wants them


def load(writers: int, seed: int) -> ImageData:
    """The glyphs of ``writers`` writers, drawn when first asked for."""
    if not 1 <= writers <= MOST_WRITERS:
        raise InputError(f"glyphs can have 1 to {MOST_WRITERS} writers, not {writers}")
    entry = store.obtain(f"{KEY}-v{VERSION}-{writers}-{seed}", lambda staging: _build(staging, writers, seed))
    return like_femnist(entry, "glyphs", TITLE, generated=True)


def _build(staging: Path, writers: int, seed: int) -> dict[str, str]:
    drawn = [draw_writer(seed, writer) for writer in range(writers)]
    for part, (x, y) in enumerate((("train_x", "train_y"), ("test_x", "test_y"))):
        store.save(staging, x, np.concatenate([parts[part][0] for parts in drawn]))
        store.save(staging, y, np.concatenate([parts[part][1] for parts in drawn]))
    counts = [len(train[1]) for train, _ in drawn]
    store.save(staging, "train_writer", np.repeat(np.arange(writers, dtype=np.int32), counts))
    store.save(staging, "writers", pack_names([f"writer{writer:04d}" for writer in range(writers)]))
    return {"source": f"drawn by this program from matplotlib's fonts: {writers} writers, seed {seed}"}


Part = tuple[NDArray[np.uint8], NDArray[np.uint8]]


def draw_writer(seed: int, writer: int) -> tuple[Part, Part]:
    """Training and test images (N x 28 x 28 x 1) with labels of one writer."""
    rng = generator(seed, "glyphs", uid=writer)
    font = _FONTS[rng.integers(len(_FONTS))]
    habit = {
        "slant": rng.normal(0, 0.22),
        "turn": rng.normal(0, 0.06),
        "width": rng.uniform(0.72, 1.12),
        "height": rng.uniform(0.8, 1.12),
        "threshold": rng.uniform(0.12, 0.4),
        "ink": rng.uniform(0.65, 1.0),
        "noise": rng.uniform(0.02, 0.1),
        "wobble": rng.uniform(0.06, 0.16),
    }
    popularity = rng.gamma(3.0, size=len(CHARACTERS)) * np.where(np.arange(len(CHARACTERS)) < 10, 3.0, 1.0)
    popularity /= popularity.sum()
    train = int(rng.integers(60, 141))
    test = max(8, train // 6)
    labels = rng.choice(len(CHARACTERS), size=train + test, p=popularity).astype(np.uint8)
    images = _write(font, labels, habit, rng)
    return (images[:train], labels[:train]), (images[train:], labels[train:])


def _write(
    font: str, labels: NDArray[np.uint8], habit: dict[str, float], rng: np.random.Generator
) -> NDArray[np.uint8]:
    count = len(labels)
    characters = _characters(font)
    corners = _quads(count, habit, rng)
    soft = np.stack(
        [
            np.asarray(
                characters[label].transform((SIDE, SIDE), Image.Transform.QUAD, tuple(quad), Image.Resampling.BILINEAR)
            )
            for label, quad in zip(labels.tolist(), corners.tolist(), strict=True)
        ]
    ).astype(np.float32)
    threshold = habit["threshold"] + rng.normal(0, 0.03, size=(count, 1, 1))
    ink = np.clip((soft / 255 - threshold) / 0.25, 0, 1) * habit["ink"]
    page = 1 - ink + rng.normal(0, habit["noise"], size=ink.shape) * (0.15 + ink)
    return np.rint(np.clip(page, 0, 1) * 255).astype(np.uint8)[..., None]


def _quads(count: int, habit: dict[str, float], rng: np.random.Generator) -> NDArray[np.float64]:
    """Where the corners of each 28 x 28 image lie on the character's canvas: 8 numbers a sample."""
    turn = habit["turn"] + rng.normal(0, 0.06, count)
    slant = habit["slant"] + rng.normal(0, 0.06, count)
    width = habit["width"] * np.exp(rng.normal(0, 0.07, count))
    height = habit["height"] * np.exp(rng.normal(0, 0.07, count))
    cos, sin = np.cos(turn), np.sin(turn)
    across = np.stack([cos / width, (sin + slant * cos) / width], axis=-1)
    down = np.stack([-sin / height, cos / height], axis=-1)
    places = np.stack([_CORNERS @ across.T, _CORNERS @ down.T], axis=-1).transpose(1, 0, 2)
    places += rng.normal(0, habit["wobble"], size=places.shape)  # every corner by itself: bends the character
    places += rng.normal(0, 0.07, size=(count, 1, 2))
    quads: NDArray[np.float64] = ((places + 1) * _CANVAS / 2).reshape(count, 8)
    return quads


@cache
def _characters(font: str) -> list[Image.Image]:
    """The 62 characters of a font, white on black, centred, and softened so that strokes can vary."""
    path = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / font
    face = ImageFont.truetype(str(path), size=int(_CANVAS * 0.78))
    drawn = []
    for character in CHARACTERS:
        left, top, right, bottom = face.getbbox(character)
        canvas = Image.new("L", (_CANVAS, _CANVAS), 0)
        place = ((_CANVAS - left - right) / 2, (_CANVAS - top - bottom) / 2)
        ImageDraw.Draw(canvas).text(place, character, fill=255, font=face)
        drawn.append(canvas.filter(ImageFilter.GaussianBlur(1.6)))
    return drawn
