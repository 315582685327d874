"""The paper's two models, and any ``torch.nn.Module`` class named in the INI."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from skiptrain_plugin.errors import InputError
from skiptrain_plugin.experiment.catalogue import Architecture
from skiptrain_plugin.kernels.block import conv_block

if TYPE_CHECKING:
    from skiptrain_plugin.experiment.experiment import Experiment

IMAGE_SHAPES = {"cifar": (3, 32, 32), "synthetic": (3, 32, 32), "femnist": (1, 28, 28), "glyphs": (1, 28, 28)}
"""Channels, height and width of a dataset's images."""


class LeNet(nn.Module):
    """CIFAR-10: three 5×5 convolutions 3→32→32→64 with GroupNorm(2), ReLU and pooling, then linear 1024→10."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 32, 5, padding="same")
        self.gn1 = nn.GroupNorm(2, 32)
        self.conv2 = nn.Conv2d(32, 32, 5, padding="same")
        self.gn2 = nn.GroupNorm(2, 32)
        self.conv3 = nn.Conv2d(32, 64, 5, padding="same")
        self.gn3 = nn.GroupNorm(2, 64)
        self.fc1 = nn.Linear(64 * 4 * 4, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of a batch of images."""
        x = conv_block(x, self.conv1, self.gn1)
        x = conv_block(x, self.conv2, self.gn2)
        x = conv_block(x, self.conv3, self.gn3)
        return cast(Tensor, self.fc1(torch.flatten(x, 1)))


class CNN(nn.Module):
    """FEMNIST: 5×5 convolutions 1→32→64 with ReLU and pooling, linear 3136→512, ReLU, linear 512→62."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 5, padding="same")
        self.conv2 = nn.Conv2d(32, 64, 5, padding="same")
        self.fc1 = nn.Linear(7 * 7 * 64, 512)
        self.fc2 = nn.Linear(512, 62)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of a batch of images."""
        x = conv_block(x, self.conv1)
        x = conv_block(x, self.conv2)
        x = F.relu(self.fc1(torch.flatten(x, 1)))
        return cast(Tensor, self.fc2(x))


_OURS: dict[str, type[nn.Module]] = {"LeNet": LeNet, "CNN": CNN}


def named_class(package: str, name: str, where: str) -> type:
    """The class ``name`` of module ``package``; ``where`` stands in the error."""
    try:
        found = getattr(importlib.import_module(package), name, None)
    except (ImportError, TypeError, ValueError) as error:
        raise InputError(f"{where}: cannot import {package}: {error}") from None
    if not isinstance(found, type):
        raise InputError(f"{where}: {package} has no class {name}")
    return found


def model_class(experiment: Experiment) -> type[nn.Module]:
    """The class that the INI names."""
    data = experiment.dataset
    if data.model_package is None:
        return _OURS[experiment.architecture.name]
    found = named_class(data.model_package, data.model_class, f"{experiment.origin}, [DATASET] model_class")
    if not issubclass(found, nn.Module):
        raise InputError(f"{experiment.origin}, [DATASET] model_class: {data.model_class} is not a torch.nn.Module")
    return found


def model_size(data: Mapping[str, Any]) -> int:
    """|x| of the model that [DATASET] names, beside its dataset or in ``model_package``, by building it once."""
    package = data.get("model_package") or data["dataset_package"]
    model = named_class(package, data["model_class"], "[DATASET] model_class")()
    return sum(parameter.numel() for parameter in model.parameters())


def build_model(experiment: Experiment) -> nn.Module:
    """The model with the initial weights that ``random_seed`` gives, the same for every node."""
    made = model_class(experiment)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(experiment.dataset.random_seed)
        try:
            return made()
        except TypeError as error:
            raise InputError(
                f"{experiment.origin}, [DATASET] model_class: {made.__name__}() needs arguments: {error}"
            ) from None


def describe(experiment: Experiment) -> Architecture:
    """Size and work of a model by building it and tracing one image."""
    model = build_model(experiment).eval()
    image = torch.zeros(2, *IMAGE_SHAPES[experiment.facts.name])
    counter = FlopCounterMode(display=False)
    try:
        with counter, torch.no_grad():
            model(image)
    except (RuntimeError, TypeError) as error:
        raise InputError(
            f"{experiment.origin}, [DATASET] model_class: {experiment.dataset.model_class} does not take images of"
            f" {tuple(image.shape[1:])}: {str(error).splitlines()[0]}"
        ) from None
    parameters = sum(p.numel() for p in model.parameters())
    return Architecture(experiment.dataset.model_class, parameters, counter.get_total_flops() // 2)
