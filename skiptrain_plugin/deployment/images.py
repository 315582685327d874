"""One node's part of an image dataset, batch by batch, and whole-batch evaluation."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from skiptrain_plugin.algorithm.randomness import generator
from skiptrain_plugin.data.base import ImageData, Images, Indices, Labels
from skiptrain_plugin.data.partitions import (
    deal,
    dirichlet,
    iid,
    kshard,
    simple,
    validation,
    validation_split,
    validation_split_by_writer,
)
from skiptrain_plugin.data.tensors import to_input
from skiptrain_plugin.engine.evaluation import MeanLoss
from skiptrain_plugin.errors import InputError, unknown
from skiptrain_plugin.experiment.sections import partition_name

SOURCES = ("Test", "Train")
_FORWARD = 250
"""Images of a forward pass at evaluations: enough for speed, few enough for the cache."""


@dataclass(frozen=True)
class Parts:
    """Indices into the arrays of a dataset."""

    train: Indices
    """This node's training samples."""
    test: Indices
    validation: Indices | None
    validation_from_train: bool


def parse_sizes(sizes: Any, nodes: int) -> list[float] | None:
    """The fractions of ``sizes``: a list, or its text in Python's notation; nothing means equal parts."""
    if sizes in (None, ""):
        return None
    try:
        values = ast.literal_eval(sizes) if isinstance(sizes, str) else sizes
        fractions = [float(value) for value in values]
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        raise InputError(f"[DATASET] sizes: expected a list of fractions, not '{str(sizes)[:60]}'") from None
    if len(fractions) != nodes:
        raise InputError(f"[DATASET] sizes: {len(fractions)} fractions for {nodes} nodes")
    return fractions


def parts_of(
    data: ImageData,
    node: int,
    nodes: int,
    *,
    partition: Any,
    seed: int,
    shards: int,
    alpha: float,
    sizes: Sequence[float] | None,
    validation_source: str | None,
    validation_size: float | None,
) -> Parts:
    """The samples of node number ``node`` of ``nodes``, dealt as the framework's own classes do."""
    if validation_source is not None and validation_source not in SOURCES:
        raise unknown("validation_source", validation_source, SOURCES, "[DATASET]")
    everything = np.arange(len(data.test_y), dtype=np.int64)
    source = validation_source if validation_size is not None else None
    if source == "Train":
        assert validation_size is not None
        if data.train_writer is None:
            held_out, rest = validation_split(len(data.train_y), validation_size, seed)
            mine = rest[_deal(data, rest, node, nodes, partition, seed, shards, alpha, sizes)]
        else:
            own = _deal(data, None, node, nodes, partition, seed, shards, alpha, sizes)
            chosen, kept = validation_split_by_writer(len(own), validation_size, seed)
            held_out, mine = own[chosen], own[kept]
        return Parts(mine, everything, held_out, True)
    mine = _deal(data, None, node, nodes, partition, seed, shards, alpha, sizes)
    if source == "Test":
        assert validation_size is not None
        held_out, test = validation(data, validation_size, seed)
        return Parts(mine, test, held_out, False)
    return Parts(mine, everything, None, False)


def _deal(
    data: ImageData,
    among: Indices | None,
    node: int,
    nodes: int,
    partition: Any,
    seed: int,
    shards: int,
    alpha: float,
    sizes: Sequence[float] | None,
) -> Indices:
    """What ``node`` gets of the training samples ``among`` (by default all)."""
    if among is None and sizes is None:
        return deal(data, partition, nodes, seed, shards, alpha)[node]
    labels = data.train_y if among is None else data.train_y[among]
    name = partition_name(partition)
    if name == "kshard":
        return kshard(labels, nodes, shards, seed, sizes)[node]
    if name == "iid":
        return iid(len(labels), nodes, seed, sizes)[node]
    if name == "simple":
        return simple(len(labels), nodes, sizes)[node]
    if name == "dirichlet" and sizes is None:
        return dirichlet(labels, nodes, alpha, seed, data.classes)[node]
    raise InputError(f"[DATASET] sizes: cannot be combined with partition_niid = {partition}")


def some_of(indices: Indices, count: int, seed: int) -> Indices:
    """The fixed random choice of ``count`` of ``indices`` that the embedded engine evaluates on."""
    if count == 0 or count >= len(indices):
        return indices
    return indices[np.sort(generator(seed, "eval_samples").choice(len(indices), count, replace=False))]


class TrainBatches:
    """A node's training samples in minibatches, in the order of a DataLoader under the same torch seed.

    Each pass draws from torch's global generator what a DataLoader draws: its base seed, then that of the shuffle.
    """

    def __init__(self, x: Tensor, y: Tensor, data: ImageData, batch_size: int, shuffle: bool) -> None:
        self._x, self._y, self._data = x, y, data
        self._size, self._shuffle = batch_size, shuffle

    def whole(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Every sample once, in stored order, the short last batch too; draws nothing."""
        for x, y in zip(torch.split(self._x, self._size), torch.split(self._y, self._size), strict=True):
            yield to_input(x, self._data), y

    def __len__(self) -> int:
        whole, rest = divmod(len(self._y), self._size)
        return whole + (rest > 0 and not self._data.drop_last)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        if len(self) == 0:
            raise InputError(f"a node has {len(self._y)} training samples, too few for a minibatch of {self._size}")
        _draw()
        order = torch.arange(len(self._y))
        if self._shuffle:
            order = torch.randperm(len(self._y), generator=torch.Generator().manual_seed(_draw()))
        for start in range(0, len(self) * self._size, self._size):
            chosen = order[start : start + self._size]
            yield to_input(self._x[chosen], self._data), self._y[chosen]


def _draw() -> int:
    return int(torch.empty((), dtype=torch.int64).random_().item())


class EvaluationBatches:
    """Images read from the memory map batch by batch, so that a node holds none of them."""

    def __init__(self, x: Images, y: Labels, indices: Indices, data: ImageData, batch_size: int) -> None:
        self._x, self._y, self._indices, self._data, self._size = x, y, indices, data, batch_size

    def __len__(self) -> int:
        return -(-len(self._indices) // self._size)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for start in range(0, len(self._indices), self._size):
            chosen = self._indices[start : start + self._size]
            images = torch.from_numpy(np.ascontiguousarray(self._x[chosen]))
            yield to_input(images, self._data), torch.from_numpy(self._y[chosen].astype(np.int64))


def score(model: nn.Module, loss: Any, batches: EvaluationBatches) -> tuple[float, float]:
    """Accuracy in percent and mean loss over the samples of ``batches``."""
    model.eval()
    correct, mean = 0, MeanLoss(loss)
    with torch.inference_mode():
        for x, y in batches:
            output = torch.cat([model(part) for part in torch.split(x, _FORWARD)]).float()
            mean(output, y)
            correct += int((output.argmax(1) == y).sum())
    return 100.0 * correct / mean.samples, mean.mean


class EverySample:
    """A dataset whose training set has every sample, in stored order: what a training loss is the mean over.

    Datasets may leave out a short last minibatch when they train (the framework's Femnist does).
    """

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def get_trainset(self, batch_size: int = 1, shuffle: bool = False) -> Any:
        """The training set in batches."""
        batches = self._dataset.get_trainset(batch_size, False)
        if isinstance(batches, TrainBatches):
            return batches.whole()
        if isinstance(batches, DataLoader) and batches.drop_last:
            return DataLoader(batches.dataset, batch_size, collate_fn=batches.collate_fn)
        return batches


def mean_scores(
    evaluate: Callable[[nn.Module, Any], tuple[float, float]], model: nn.Module, loss: Any
) -> tuple[float, float]:
    """Accuracy and mean loss over samples by ``test`` or ``validate`` of anybody's dataset.

    The framework's own datasets average over batches; the loss is therefore taken down batch by batch. A dataset that
    does not ask ``loss`` for it has a definition of its own, which is left to it.
    """
    mean = MeanLoss(loss)
    accuracy, value = evaluate(model, mean)
    return accuracy, mean.mean if mean.samples else value


def mean_training_loss(trainer: Any, dataset: Any) -> float:
    """Mean loss of the trainer's model over the node's training samples, by the trainer's own ``eval_loss``."""
    loss, mean = trainer.loss, MeanLoss(trainer.loss)
    trainer.loss = mean
    try:
        value = trainer.eval_loss(EverySample(dataset))
    finally:
        trainer.loss = loss
    return mean.mean if mean.samples else float(value)
