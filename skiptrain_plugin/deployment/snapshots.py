"""The average of all nodes' models at evaluations, from what the nodes of this machine leave behind."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from skiptrain_plugin.deployment.node_files import save_snapshot


def gather(folder: Path, uids: Iterable[int]) -> None:
    """Replaces the snapshots of each round that all of ``uids`` have left by their mean and consensus distance."""
    wanted = set(uids)
    for place in sorted((folder / "snapshots").glob("*")):
        there = {int(path.stem) for path in place.glob("[0-9]*.npy")}
        if wanted and wanted <= there:
            summary = _summary([place / f"{uid}.npy" for uid in sorted(there)])
            save_snapshot(folder / "means" / f"{place.name}.npy", summary, durable=True)
            shutil.rmtree(place)


def _summary(paths: list[Path]) -> NDArray[np.float32]:
    """Consensus distance sqrt(mean ‖x_i − x̄‖²), then x̄; one model in memory at a time."""
    mean = np.zeros(0)
    for count, path in enumerate(paths, start=1):
        vector = np.load(path, allow_pickle=False).astype(np.float64)
        mean = vector if count == 1 else mean + (vector - mean) / count
    squares = [float(np.square(np.load(path, allow_pickle=False) - mean).sum()) for path in paths]
    return np.concatenate([[np.sqrt(np.mean(squares))], mean]).astype(np.float32)


def drop_after(folder: Path, round: int) -> None:
    """Drops what a resumed run goes through again."""
    shutil.rmtree(folder / "snapshots", ignore_errors=True)
    for path in (folder / "means").glob("*.npy"):
        if int(path.stem) > round:
            path.unlink()


def means(folder: Path) -> dict[int, tuple[float, NDArray[np.float32]]]:
    """Round, counted from 1 → consensus distance and mean parameters."""
    found = {}
    for path in sorted((folder / "means").glob("*.npy")):
        summary = np.load(path, allow_pickle=False)
        found[int(path.stem)] = (float(summary[0]), summary[1:])
    return found
