"""Which kernel computes the models' blocks: the native one where it can be built and agrees with torch."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor, nn

from skiptrain_plugin.errors import InputError
from skiptrain_plugin.kernels.block import conv_block, native_kernels
from skiptrain_plugin.kernels.library import Unavailable, load_library

_TOLERANCE = 1e-3
"""Largest difference to torch, as a part of the largest value; rounding alone gives a hundredth of it."""


def uses_native(kernels: str) -> bool:
    """Whether [RUN] ``kernels`` means the native kernel on this machine; asking for it in vain is an error."""
    if kernels == "torch":
        return False
    reason = why_not()
    if kernels == "native" and reason:
        raise InputError(f"[RUN] kernels = native: {reason}; allowed here: auto, torch")
    return not reason


def describe(kernels: str) -> str:
    """What computes the models' blocks, in words for a record."""
    if uses_native(kernels):
        return "native"
    return "torch" if kernels == "torch" else f"torch ({why_not()})"


@cache
def why_not() -> str:
    """Why the native kernel cannot be used here; empty where it can. Holds it against torch once a process."""
    library = load_library()
    if isinstance(library, Unavailable):
        return str(library)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for channels in (3, 32):
            convolution, norm = nn.Conv2d(channels, 64, 5, padding=2), nn.GroupNorm(2, 64)
            x = torch.randn(3, channels, 12, 8, requires_grad=channels > 3)
            wanted = [*convolution.parameters(), *norm.parameters(), *([x] if x.requires_grad else [])]
            for native, plain in zip(
                _pass(x, convolution, norm, wanted, True), _pass(x, convolution, norm, wanted, False), strict=True
            ):
                if not float((native - plain).abs().max()) <= _TOLERANCE * float(plain.abs().max()):
                    return "the native kernel's results differ from torch's on this machine"
    return ""


def _pass(x: Tensor, convolution: nn.Conv2d, norm: nn.GroupNorm, wanted: list[Tensor], native: bool) -> list[Tensor]:
    """The block's output and the gradients of ``wanted``."""
    with native_kernels(native), torch.enable_grad():
        out = conv_block(x, convolution, norm)
        return [out.detach(), *torch.autograd.grad(out, wanted, torch.cos(out.detach() * 9))]
