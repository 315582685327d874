"""The data as the engine uses it: each node's samples, and the test and validation images."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from skiptrain_plugin.algorithm.randomness import generator
from skiptrain_plugin.data.base import ImageData, Images, Indices, Labels
from skiptrain_plugin.data.for_experiment import images_of, partition_of
from skiptrain_plugin.data.partitions import validation
from skiptrain_plugin.data.tensors import gather, gather_labels, to_input
from skiptrain_plugin.errors import InputError
from skiptrain_plugin.experiment.experiment import Experiment


@dataclass(frozen=True)
class Samples:
    """Images as stored (N×H×W×C) and labels."""

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.y)


@dataclass(frozen=True)
class NodeData:
    """Everything that is trained and evaluated on."""

    source: ImageData
    train: list[Samples]
    """The training samples of each node."""
    test: Samples
    validation: Samples | None

    def inputs(self, x: Tensor) -> Tensor:
        """Stored images as the model takes them."""
        return to_input(x, self.source)


def load_node_data(experiment: Experiment, progress: bool = True) -> NodeData:
    """The experiment's data, fetched if need be, every byte checked, and dealt to its nodes."""
    source = images_of(experiment, progress)
    source.check()
    return node_data(experiment, source)


def node_data(experiment: Experiment, source: ImageData) -> NodeData:
    """Deals ``source`` to the nodes and takes the test and validation parts that the experiment asks for."""
    section, seed = experiment.dataset, experiment.dataset.random_seed
    train = [_samples(source.train_x, source.train_y, part) for part in partition_of(experiment, source)]
    everything = np.arange(len(source.test_y))
    test, held_out = everything, None
    if section.validation_size is not None and section.validation_source is not None:
        if section.validation_source == "Train":
            raise InputError(
                f"{experiment.origin}, [DATASET] validation_source: the embedded engine takes the validation set"
                " from Test only"
            )
        held_out, test = validation(source, section.validation_size, seed)
    elif experiment.run.validate_models:
        raise InputError(
            f"{experiment.origin}, [RUN] validate: needs validation_source = Test and validation_size in [DATASET]"
        )
    limit = experiment.run.eval_samples
    if limit > len(test):
        raise InputError(f"{experiment.origin}, [RUN] eval_samples: {limit} is more than the {len(test)} test samples")
    return NodeData(
        source,
        train,
        _samples(source.test_x, source.test_y, _part(test, limit, experiment.seed)),
        _samples(source.test_x, source.test_y, _part(held_out, limit, experiment.seed))
        if held_out is not None and experiment.run.validate_models
        else None,
    )


def _samples(x: Images, y: Labels, indices: Indices) -> Samples:
    return Samples(gather(x, indices), gather_labels(y, indices))


def _part(indices: Indices, limit: int, seed: int) -> Indices:
    """A fixed random choice of ``limit`` of the indices; all of them when ``limit`` is 0."""
    if limit == 0 or limit >= len(indices):
        return indices
    chosen = generator(seed, "eval_samples").choice(len(indices), limit, replace=False)
    return indices[np.sort(chosen)]
