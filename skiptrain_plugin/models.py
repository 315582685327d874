"""The paper's two models, and any ``torch.nn.Module`` that the INI names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from skiptrain_plugin.errors import InputError
from skiptrain_plugin.experiment.catalogue import Architecture
from skiptrain_plugin.kernels.block import conv_block
from skiptrain_plugin.named import first_line, named

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


def model_maker(package: str, name: str, where: str) -> Callable[[], nn.Module]:
    """What ``name`` of module ``package`` is: a model's class, or a function that returns a model."""
    found = named(package, name, where, callable)
    if isinstance(found, type) and not issubclass(found, nn.Module):
        raise InputError(f"{where}: {name} is not a torch.nn.Module")

    def make() -> nn.Module:
        try:
            made = found()
        except Exception as error:
            raise InputError(
                f"{where}: {name}() without arguments does not give a model: {first_line(error)}"
            ) from error
        if not isinstance(made, nn.Module):
            raise InputError(f"{where}: {name}() gives a {type(made).__name__}, not a torch.nn.Module")
        return made

    return make


def new_model(experiment: Experiment) -> nn.Module:
    """The model that the INI names, with weights as torch's generator draws them now."""
    data = experiment.dataset
    if data.model_package is None:
        return _OURS[experiment.architecture.name]()
    return model_maker(data.model_package, data.model_class, f"{experiment.origin}, [DATASET] model_class")()


def model_size(data: Mapping[str, Any]) -> int:
    """|x| of the model that [DATASET] names, beside its dataset or in ``model_package``, by building it once."""
    package = data.get("model_package") or data["dataset_package"]
    model = model_maker(package, data["model_class"], "[DATASET] model_class")()
    return sum(parameter.numel() for parameter in model.parameters())


def build_model(experiment: Experiment) -> nn.Module:
    """The model with the initial weights that ``random_seed`` gives, the same for every node."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(experiment.dataset.random_seed)
        return new_model(experiment)


def describe(experiment: Experiment) -> Architecture:
    """Size and work of a model by building it and tracing one image."""
    model = build_model(experiment).eval()
    image = torch.zeros(2, *IMAGE_SHAPES[experiment.facts.name])
    counter = FlopCounterMode(display=False)
    try:
        with counter, torch.no_grad():
            model(image)
    except Exception as error:
        raise InputError(
            f"{experiment.origin}, [DATASET] model_class: {experiment.dataset.model_class} does not take images of"
            f" {tuple(image.shape[1:])}: {first_line(error)}"
        ) from error
    parameters = sum(p.numel() for p in model.parameters())
    return Architecture(experiment.dataset.model_class, parameters, counter.get_total_flops() // 2)
