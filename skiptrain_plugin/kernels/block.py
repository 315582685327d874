"""The block of the paper's models: convolution 5×5, GroupNorm, 2×2 max-pool, ReLU; native where that is allowed."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from skiptrain_plugin.kernels.library import Unavailable, load_library

_ALLOWED: ContextVar[bool] = ContextVar("native_kernels", default=False)
_LOCAL = threading.local()
_FIRST = 4
"""Images with up to so many channels are a first layer's, whose gradient the kernel does not compute."""


@contextmanager
def native_kernels(allowed: bool) -> Iterator[None]:
    """Whether the blocks computed inside, in this thread, may use the native kernel."""
    token = _ALLOWED.set(allowed)
    try:
        yield
    finally:
        _ALLOWED.reset(token)


def conv_block(x: Tensor, convolution: nn.Conv2d, norm: nn.GroupNorm | None = None) -> Tensor:
    """ReLU(max-pool(norm(convolution(x)))), by the native kernel where it is allowed and can.

    Pooling before ReLU gives the same values and gradients as the other order for a quarter of the work. Torch computes
    whatever is not finite, or so large that a sum could overflow: what diverges does so as it does in torch.
    """
    if _ALLOWED.get():
        shape = _shape_of(x, convolution, norm)
        if shape is not None:
            pooled = _native(shape, x, convolution, norm)
            if pooled is not None:
                return pooled
    y = convolution(x)
    return F.relu(F.max_pool2d(y if norm is None else norm(y), 2))


def _native(shape: _Shape, x: Tensor, convolution: nn.Conv2d, norm: nn.GroupNorm | None) -> Tensor | None:
    """The block by the native kernel; None where a sum could overflow."""
    x = x.permute(0, 2, 3, 1).float().contiguous()
    weight, bias = convolution.weight.permute(0, 2, 3, 1).contiguous(), convolution.bias
    assert bias is not None
    scale, shift = (norm.weight, norm.bias) if norm is not None else (None, None)
    eps = norm.eps if norm is not None else 0.0
    kept = _Kept.empty(shape) if torch.is_grad_enabled() else None
    out = _forward(shape, x, weight, bias, scale, shift, eps, kept)
    if out is not None and kept is not None:
        out = _Block.apply(shape, out, kept, x, weight, bias, scale, shift, eps)  # type: ignore[no-untyped-call]
    return None if out is None else out.permute(0, 3, 1, 2)


class _Shape(NamedTuple):
    """The numbers that ``struct shape`` of the C code has, and what follows from them."""

    images: int
    height: int
    width: int
    channels: int
    out: int
    groups: int
    struct: Any
    workspace: int
    """Floats of scratch memory."""


def _shape_of(x: Tensor, convolution: nn.Conv2d, norm: nn.GroupNorm | None) -> _Shape | None:
    """The block's shape if the native kernel computes it; None where torch has to."""
    plain = (
        x.device.type == "cpu"
        and x.dtype in (torch.float32, torch.bfloat16)
        and convolution.weight.dtype == torch.float32
        and convolution.kernel_size == (5, 5)
        and convolution.padding in ("same", (2, 2))
        and convolution.padding_mode == "zeros"
        and convolution.stride == convolution.dilation == (1, 1)
        and convolution.groups == 1
        and convolution.bias is not None
        and (norm is None or norm.affine)
    )
    if not plain:
        return None
    images, channels, height, width = x.shape
    if channels <= _FIRST and x.requires_grad:
        return None
    return _shape(images, height, width, channels, convolution.out_channels, 0 if norm is None else norm.num_groups)


@lru_cache(maxsize=256)
def _shape(*numbers: int) -> _Shape | None:
    library = load_library()
    if isinstance(library, Unavailable):
        return None
    struct = (ctypes.c_int64 * len(numbers))(*numbers)
    if not library.block_supported(struct):
        return None
    images, height, width, channels, out, groups = numbers
    return _Shape(images, height, width, channels, out, groups, struct, library.block_workspace(struct))


class _Kept(NamedTuple):
    """What the forward pass leaves for the gradients."""

    chosen: Tensor
    """For each pooling window, which of its four places was taken; 4 where ReLU lets nothing through."""
    y: Tensor
    """The convolution's output."""
    stats: Tensor
    """Mean and 1/standard deviation of each image and group."""

    @classmethod
    def empty(cls, shape: _Shape) -> _Kept:
        """Room for it."""
        return cls(
            torch.empty(shape.images, shape.height // 2, shape.width // 2, shape.out, dtype=torch.uint8),
            torch.empty(shape.images, shape.height, shape.width, shape.out),
            torch.empty(shape.images, shape.groups, 2),
        )


def _workspace(floats: int) -> int:
    """The address of this thread's scratch memory, grown if need be."""
    held: Tensor | None = getattr(_LOCAL, "workspace", None)
    if held is None or held.numel() < floats:
        held = _LOCAL.workspace = torch.empty(floats)
    return held.data_ptr()


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _forward(
    shape: _Shape,
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    scale: Tensor | None,
    shift: Tensor | None,
    eps: float,
    kept: _Kept | None,
) -> Tensor | None:
    """See ``block_forward`` in conv_block.c; None where a sum could overflow."""
    out = torch.empty(shape.images, shape.height // 2, shape.width // 2, shape.out)
    library = load_library()
    assert not isinstance(library, Unavailable)
    computed = library.block_forward(
        shape.struct,
        x.data_ptr(),
        weight.data_ptr(),
        bias.data_ptr(),
        _address(scale),
        _address(shift),
        eps,
        out.data_ptr(),
        *((None, None, None) if kept is None else map(Tensor.data_ptr, kept)),
        _workspace(shape.workspace),
    )
    return out if computed else None


class _Block(torch.autograd.Function):
    """The native block with its gradients; images and filters are channels-last."""

    @staticmethod
    def forward(
        ctx: Any,
        shape: _Shape,
        out: Tensor,
        kept: _Kept,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        scale: Tensor | None,
        shift: Tensor | None,
        eps: float,
    ) -> Tensor:
        """Takes ``out``, which has been computed, and what is needed for its gradients."""
        ctx.shape, ctx.eps = shape, eps
        ctx.save_for_backward(x, weight, bias, scale, shift, *kept)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """See ``block_backward`` in conv_block.c."""
        shape: _Shape = ctx.shape
        x, weight, bias, scale, shift, chosen, y, stats = ctx.saved_tensors
        gradient = gradient.contiguous()
        dx = torch.empty_like(x) if ctx.needs_input_grad[3] else None
        dweight, dbias = torch.empty_like(weight), torch.empty(shape.out)
        dscale, dshift = (None, None) if scale is None else (torch.empty(shape.out), torch.empty(shape.out))
        library = load_library()
        assert not isinstance(library, Unavailable)
        computed = library.block_backward(
            shape.struct,
            gradient.data_ptr(),
            x.data_ptr(),
            weight.data_ptr(),
            bias.data_ptr(),
            _address(scale),
            ctx.eps,
            chosen.data_ptr(),
            y.data_ptr(),
            stats.data_ptr(),
            _address(dx),
            dweight.data_ptr(),
            dbias.data_ptr(),
            _address(dscale),
            _address(dshift),
            _workspace(shape.workspace),
        )
        if computed:
            return None, None, None, dx, dweight, dbias, dscale, dshift, None
        inputs = (x, weight, bias, scale, shift)
        wanted = [dx is not None, True, True, scale is not None, shift is not None]
        return None, None, None, *_torch_gradients(shape, inputs, wanted, ctx.eps, gradient), None


def _torch_gradients(
    shape: _Shape, inputs: Iterable[Tensor | None], wanted: list[bool], eps: float, gradient: Tensor
) -> list[Tensor | None]:
    """The gradients of those of ``inputs`` (images, filters, bias, scale, shift) that are wanted, by torch."""
    with torch.enable_grad():
        own = [None if tensor is None else tensor.detach().requires_grad_() for tensor in inputs]
        x, weight, bias, scale, shift = own
        assert x is not None
        assert weight is not None
        y = F.conv2d(x.permute(0, 3, 1, 2), weight.permute(0, 3, 1, 2), bias, padding=2)
        y = F.group_norm(y, shape.groups, scale, shift, eps) if shape.groups else y
        out = F.relu(F.max_pool2d(y, 2)).permute(0, 2, 3, 1)
    found = iter(
        torch.autograd.grad(
            out, [t for t, needed in zip(own, wanted, strict=True) if needed and t is not None], gradient
        )
    )
    return [next(found) if needed else None for needed in wanted]
