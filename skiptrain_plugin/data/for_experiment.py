"""The images an experiment names, and which of them each node gets."""

from __future__ import annotations

from skiptrain_plugin.data.base import ImageData, Indices
from skiptrain_plugin.data.catalogue import load
from skiptrain_plugin.data.partitions import deal
from skiptrain_plugin.experiment.experiment import Experiment


def images_of(experiment: Experiment, progress: bool = True) -> ImageData:
    """The experiment's dataset, fetched, converted or drawn first if need be."""
    section = experiment.dataset
    return load(
        experiment.facts.name,
        nodes=experiment.nodes,
        seed=section.random_seed,
        train_dir=section.train_dir or "",
        test_dir=section.test_dir or "",
        progress=progress,
    )


def partition_of(experiment: Experiment, images: ImageData) -> list[Indices]:
    """The training samples of each node."""
    section, seed = experiment.dataset, experiment.dataset.random_seed
    return deal(images, experiment.partition, experiment.nodes, seed, section.shards, section.alpha, experiment.sizes)
