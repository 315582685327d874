"""What every dataset of this project looks like once it is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from skiptrain_plugin.data.store import verify
from skiptrain_plugin.errors import RunError

Images: TypeAlias = NDArray[np.uint8] | NDArray[np.float32]
Labels: TypeAlias = NDArray[np.uint8]
Indices: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True)
class ImageData:
    """Images and labels, memory-mapped read-only from the cache, and what is needed to use them rightly."""

    name: str
    """What the user asked for: ``cifar``, ``femnist``, ``glyphs`` or ``synthetic``."""
    title: str
    """The name in plots and reports; says so when the data are generated."""
    generated: bool
    """True when a program drew the images: no result on them is a result on the real dataset."""
    source: str
    """Where the data came from, in words."""
    digest: str
    """sha256 that changes when any byte, shape or type of the arrays changes."""
    classes: int
    """Number of classes; labels are 0 ... classes - 1."""
    train_x: Images
    """Training images, N x height x width x channels: uint8 0 ... 255, or float32 as the model takes them."""
    train_y: Labels
    """Training labels, N."""
    test_x: Images
    """Test images, shaped and typed as ``train_x``."""
    test_y: Labels
    """Test labels."""
    train_writer: NDArray[np.int32] | None
    """For each training sample the index of its writer in ``writers``; None where data have no writers."""
    writers: tuple[str, ...]
    """Names of the writers, empty where data have none."""
    pixel_offset: float
    """Model input = (pixel - offset) / scale, where pixel is x / 255 for uint8 and x for float32."""
    pixel_scale: float
    """See ``pixel_offset``."""
    drop_last: bool
    """True when a pass over a node's data leaves out the short last batch."""
    folder: Path | None = None
    """The cache entry that the arrays are mapped from; None for data that were never on disk."""

    def check(self) -> None:
        """Reads and hashes every byte of the cache entry: a run must not be recorded under another's sha256."""
        problems = verify(self.folder) if self.folder is not None else []
        if problems:
            found = "; ".join(problems)
            raise RunError(f"the cached data are damaged ({found}); remove {self.folder}, and they are made anew")

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Height, width and channels of one image."""
        _, height, width, channels = self.train_x.shape
        return height, width, channels
