"""The two kinds of datasets in the cache: colour images in CIFAR-10's form, characters by writer in FEMNIST's."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from skiptrain_plugin.data.base import ImageData
from skiptrain_plugin.data.store import Entry


def like_cifar(entry: Entry, name: str, title: str, *, generated: bool) -> ImageData:
    """Ten classes; images enter a model as (x/255 − 0.5)/0.5."""
    return ImageData(
        **_common(entry, name, title, generated),
        classes=10,
        train_writer=None,
        writers=(),
        pixel_offset=0.5,
        pixel_scale=0.5,
        drop_last=False,
    )


def like_femnist(entry: Entry, name: str, title: str, *, generated: bool) -> ImageData:
    """62 classes, samples by writer; images enter a model as x/255, and a pass drops the short last batch."""
    return ImageData(
        **_common(entry, name, title, generated),
        classes=62,
        train_writer=entry.arrays["train_writer"],
        writers=unpack_names(entry.arrays["writers"]),
        pixel_offset=0.0,
        pixel_scale=1.0,
        drop_last=True,
    )


def _common(entry: Entry, name: str, title: str, generated: bool) -> dict[str, Any]:
    kept = ("train_x", "train_y", "test_x", "test_y")
    return {
        "name": name,
        "title": title,
        "generated": generated,
        "source": entry.facts.get("source", "unknown"),
        "digest": entry.digest,
        "folder": entry.folder,
    } | {key: entry.arrays[key] for key in kept}


def pack_names(names: list[str]) -> NDArray[np.uint8]:
    """Names as the bytes of one text, a line each, so that they are an array like the rest."""
    return np.frombuffer("\n".join(names).encode(), dtype=np.uint8)


def unpack_names(packed: NDArray[np.uint8]) -> tuple[str, ...]:
    """The names that ``pack_names`` packed."""
    return tuple(packed.tobytes().decode().split("\n"))
