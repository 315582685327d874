"""Share and average: x_i ← Σ_j W_ij x_j for all nodes, in place, in column blocks."""

from __future__ import annotations

from concurrent.futures import Executor

import numpy as np
import torch
from scipy import sparse
from torch import Tensor
from torch.nn.functional import embedding_bag

_BLOCK_BYTES = 1 << 20
"""Size of a column block over all nodes: small enough to stay in a core's cache."""


class Mixer:
    """Applies a mixing matrix to the matrix of models; ``None`` stands for the global average."""

    def __init__(self, weights: sparse.csr_array | None, dtype: torch.dtype, device: torch.device) -> None:
        self._global = weights is None
        if weights is not None:
            by_row = sparse.csr_array(weights)
            self._starts = torch.from_numpy(by_row.indptr[:-1].astype(np.int64)).to(device)
            self._columns = torch.from_numpy(by_row.indices.astype(np.int64)).to(device)
            self._values = torch.from_numpy(by_row.data).to(device, dtype)

    def mix(self, models: Tensor, times: int, pool: Executor) -> None:
        """Averages ``times`` rounds one after the other; columns are independent, so blocks need no order."""
        if times == 0 or len(models) == 1:
            return
        width = max(16, _BLOCK_BYTES // (models.element_size() * len(models)) // 16 * 16)
        list(pool.map(lambda block: self._mix_block(block, times), torch.split(models, width, dim=1)))

    def _mix_block(self, block: Tensor, times: int) -> None:
        """The sparse product of W and a block of columns: a weighted sum of each row's neighbours."""
        mixed = block.contiguous()
        for _ in range(times):
            if self._global:
                mixed = mixed.mean(0, dtype=torch.float64).to(mixed.dtype).expand_as(mixed)
            else:
                mixed = embedding_bag(self._columns, mixed, self._starts, mode="sum", per_sample_weights=self._values)
        block.copy_(mixed)
