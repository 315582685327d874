"""All models of a network as one n×P matrix; a node's model is views into its row."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

_ALIGNMENT = 16
"""Every tensor begins at a multiple of this many elements, so that kernels see the same alignment in every row."""


@dataclass(frozen=True)
class Slot:
    """Where one parameter or buffer lies in a row."""

    name: str
    offset: int
    shape: torch.Size
    is_parameter: bool

    def view(self, row: Tensor) -> Tensor:
        """The tensor as a view of ``row`` (or of each row of a matrix); 4-d weights are channels_last."""
        flat = row[..., self.offset : self.offset + self.shape.numel()]
        lead = row.shape[:-1]
        if len(self.shape) == 4:
            out, channels, height, width = self.shape
            stored = flat.view(*lead, out, height, width, channels)
            return stored.movedim(-1, -3)
        return flat.view((*lead, *self.shape))


class Layout:
    """The slots of a model's parameters, then of its buffers; buffers are shared and averaged alike."""

    def __init__(self, model: nn.Module) -> None:
        persistent = model.state_dict().keys()
        named: list[tuple[str, Tensor, bool]] = [(name, tensor, True) for name, tensor in model.named_parameters()]
        named += [(name, tensor, False) for name, tensor in model.named_buffers() if name in persistent]
        slots, offset = [], 0
        for name, tensor, is_parameter in named:
            slots.append(Slot(name, offset, tensor.shape, is_parameter))
            offset += -(-tensor.numel() // _ALIGNMENT) * _ALIGNMENT
        self.slots = tuple(slots)
        self.width = offset
        """Elements of a row, padding included."""

    def pack(self, model: nn.Module, dtype: torch.dtype) -> Tensor:
        """A row with the model's present values; padding is zero."""
        row = torch.zeros(self.width, dtype=dtype)
        values = dict(model.named_parameters()) | dict(model.named_buffers())
        with torch.no_grad():
            for slot in self.slots:
                slot.view(row).copy_(values[slot.name])
        return row

    def named(self, rows: Tensor, parameters: bool) -> dict[str, Tensor]:
        """Views of ``rows`` by name: the parameters, or the buffers."""
        return {slot.name: slot.view(rows) for slot in self.slots if slot.is_parameter is parameters}


class BoundModel:
    """One model object whose tensors can be pointed at any node's row."""

    def __init__(self, model: nn.Module, layout: Layout) -> None:
        self.model = model
        self._layout = layout
        self.parameters = dict(model.named_parameters())
        self._owners = {}
        for slot in layout.slots:
            if not slot.is_parameter:
                path, _, leaf = slot.name.rpartition(".")
                self._owners[slot.name] = (model.get_submodule(path), leaf)

    def bind(self, row: Tensor) -> None:
        """Makes the model the one stored in ``row``; what it learns is written there.

        ``data`` gives each tensor a version counter of its own: autograd must not take another worker's writes
        to its rows of the matrix for changes of this model.
        """
        for slot in self._layout.slots:
            view = slot.view(row)
            if slot.is_parameter:
                self.parameters[slot.name].data = view
            else:
                owner, leaf = self._owners[slot.name]
                owner._buffers[leaf] = view.data
