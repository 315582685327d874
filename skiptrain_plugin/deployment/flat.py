"""A model's whole state as one vector, and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

Vector = NDArray[np.float32]


def to_vector(model: nn.Module) -> Vector:
    """Every tensor of the state, in the order of ``state_dict``, as float32."""
    with torch.no_grad():
        parts = [tensor.detach().reshape(-1).to("cpu", torch.float32) for tensor in model.state_dict().values()]
        return np.asarray(torch.cat(parts).numpy()) if parts else np.empty(0, dtype=np.float32)


def from_vector(model: nn.Module, vector: NDArray[Any]) -> None:
    """Writes ``vector`` into the tensors of ``model``, in place, so that optimizers keep their hold on them."""
    whole = torch.from_numpy(np.array(vector))
    start = 0
    with torch.no_grad():
        for tensor in model.state_dict().values():
            end = start + tensor.numel()
            tensor.copy_(whole[start:end].view(tensor.shape))
            start = end
