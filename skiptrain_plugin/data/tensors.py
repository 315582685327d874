"""From stored images to the tensors a model takes."""

from __future__ import annotations

import numpy as np
import torch

from skiptrain_plugin.data.base import ImageData, Images, Indices, Labels


def gather(images: Images, indices: Indices | None = None) -> torch.Tensor:
    """A copy in memory of the images at ``indices`` (all of them by default), N x H x W x C, type kept."""
    return torch.from_numpy(np.array(images) if indices is None else images[indices])


def gather_labels(labels: Labels, indices: Indices | None = None) -> torch.Tensor:
    """The labels at ``indices`` (all of them by default) as int64, which torch's losses ask for."""
    return torch.from_numpy((labels if indices is None else labels[indices]).astype(np.int64))


def to_input(images: torch.Tensor, data: ImageData, channels_last: bool = True) -> torch.Tensor:
    """Model input, float32 N x C x H x W, from stored images N x H x W x C.

    Same operations in the same order, so the same rounding, as torchvision's ToTensor and Normalize:
    divide by 255, subtract the offset, divide by the scale. Stored images permuted to N x C x H x W
    already are in torch's channels_last memory order and stay so; ``channels_last=False`` asks for the
    plain order.
    """
    pixels = images.permute(0, 3, 1, 2)
    if pixels.dtype == torch.uint8:
        pixels = pixels.to(torch.float32).div_(255)
    if data.pixel_offset != 0:
        pixels = pixels - data.pixel_offset
    if data.pixel_scale != 1:
        pixels = pixels / data.pixel_scale
    return pixels if channels_last else pixels.contiguous()
