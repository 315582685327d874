"""Share and average: x_i ← Σ_j W_ij x_j for all nodes, in place, in column blocks."""

from __future__ import annotations

from concurrent.futures import Executor
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor

_BLOCK_BYTES = 1 << 20
"""Size of a column block over all nodes: small enough to stay in a core's cache."""


class Mixer:
    """Applies a mixing matrix to the matrix of models; ``None`` stands for the global average."""

    def __init__(self, weights: sparse.csr_array | None, dtype: torch.dtype) -> None:
        precise = np.float64 if dtype is torch.float64 else np.float32
        self._weights = None if weights is None else sparse.csr_array(weights, dtype=precise)

    def mix(self, models: Tensor, times: int, pool: Executor) -> None:
        """Averages ``times`` rounds one after the other; columns are independent, so blocks need no order."""
        if times == 0 or len(models) == 1:
            return
        if models.device.type != "cpu":
            self._mix_on_device(models, times)
            return
        array = models.numpy()
        width = max(16, _BLOCK_BYTES // (array.itemsize * len(array)) // 16 * 16)
        starts = range(0, array.shape[1], width)
        list(pool.map(lambda start: self._mix_block(array[:, start : start + width], times), starts))

    def _mix_block(self, block: NDArray[Any], times: int) -> None:
        mixed = np.ascontiguousarray(block)
        for _ in range(times):
            if self._weights is None:
                mixed = np.broadcast_to(mixed.mean(0, dtype=np.float64).astype(mixed.dtype), mixed.shape)
            else:
                mixed = self._weights @ mixed
        block[...] = mixed

    def _mix_on_device(self, models: Tensor, times: int) -> None:
        if self._weights is None:
            models[:] = models.mean(0)
            return
        w = self._weights
        on_device = torch.sparse_csr_tensor(w.indptr, w.indices, w.data, w.shape, device=models.device)
        for _ in range(times):
            models.copy_(on_device @ models)
