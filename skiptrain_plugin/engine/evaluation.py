"""Accuracy and loss of the nodes' models, of their average, and the distance to consensus."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from skiptrain_plugin.algorithm.randomness import generator
from skiptrain_plugin.engine.node_data import NodeData, Samples
from skiptrain_plugin.engine.parameters import BoundModel, Layout
from skiptrain_plugin.engine.training import arithmetic, loss_function
from skiptrain_plugin.experiment.experiment import Experiment
from skiptrain_plugin.kernels.selection import uses_native
from skiptrain_plugin.models import build_model

_BATCH = 250
"""Images of a forward pass: enough for speed, few enough for the cache."""

SENSELESS = 10.0
"""A mean loss above so many times that of guessing, ln(classes), says that training has lost its way."""


def senseless_loss(classes: int) -> float:
    """The mean loss above which a model is worse than anything learned from data.

    Guessing all classes alike has the cross-entropy ln(classes). Models fitted to few classes that see all of them
    exceed it several times; tenfold means that the right class of an image gets, in the geometric mean, a probability
    below classes⁻¹⁰, which only weights that grew without bound give.
    """
    return SENSELESS * math.log(max(classes, 2))


@dataclass(frozen=True)
class Scores:
    """Top-1 accuracy in percent and mean loss, one of each for every evaluated model."""

    accuracy: NDArray[np.float64]
    loss: NDArray[np.float64]


@dataclass(frozen=True)
class Evaluation:
    """What is measured at an evaluation."""

    uids: list[int]
    """The nodes evaluated: all, or the fixed random part that ``eval_nodes`` asks for."""
    test: Scores
    validation: Scores | None
    mean_model_accuracy: float
    """Accuracy of the average of all nodes' models, percent."""
    consensus: float
    """Distance to consensus: sqrt(mean over nodes of ‖x_i − x̄‖²)."""


class MeanLoss:
    """The one definition of a recorded loss, test or training, in both engines: its mean over samples.

    Stands in for the loss of a batch (which is the mean over that batch) and adds up: a short last batch counts for
    its samples and not as much as a whole one. ``loss`` may be anything that is called with outputs and targets.
    """

    def __init__(self, loss: Callable[[Any, Any], Any]) -> None:
        self._loss = loss
        self._total, self.samples = 0.0, 0

    def __call__(self, output: Any, target: Any) -> Any:
        """The loss of one batch, as ``loss`` gives it."""
        value = self._loss(output, target)
        self._total += float(value.item()) * len(target)
        self.samples += len(target)
        return value

    @property
    def mean(self) -> float:
        """The mean over all samples seen."""
        return self._total / self.samples


class _Prepared:
    """Evaluation images converted once."""

    def __init__(self, samples: Samples, data: NodeData, dtype: torch.dtype, device: torch.device) -> None:
        self.x = data.inputs(samples.x).to(device, dtype)
        self.y = samples.y.to(device)


class Evaluator:
    """Evaluates nodes on worker threads, whole batches at a time."""

    def __init__(
        self, experiment: Experiment, data: NodeData, models: Tensor, layout: Layout, pool: ThreadPoolExecutor
    ) -> None:
        self._experiment, self._models, self._layout, self._pool = experiment, models, layout, pool
        self._data = data
        self._local = threading.local()
        native = models.device.type == "cpu" and uses_native(experiment.run.kernels)
        dtype = torch.bfloat16 if experiment.run.precision == "bf16" and not native else models.dtype
        self._test = _Prepared(data.test, data, dtype, models.device)
        self._validation = None
        if data.validation is not None:
            self._validation = _Prepared(data.validation, data, dtype, models.device)
        self.uids = evaluated_nodes(experiment)

    def evaluate(self) -> Evaluation:
        """The evaluation of the present models."""
        mean = self._models.mean(0)
        rows = [self._models[uid] for uid in self.uids]
        results = list(self._pool.map(lambda row: self._scores(row, self._test), [*rows, mean]))
        checked = None
        if self._validation is not None:
            validation = self._validation
            checked = _scores(list(self._pool.map(lambda row: self._scores(row, validation), rows)))
        return Evaluation(self.uids, _scores(results[:-1]), checked, results[-1][0], self._consensus(mean))

    def evaluate_few(self, count: int) -> None:
        """Evaluates ``count`` models at once, for timing."""
        list(self._pool.map(lambda _: self._scores(self._models[0], self._test), range(count)))

    def train_losses(self) -> list[float]:
        """The mean loss of each evaluated node's model on the node's own training samples."""

        def one(uid: int) -> float:
            samples = _Prepared(self._data.train[uid], self._data, self._test.x.dtype, self._models.device)
            return self._scores(self._models[uid], samples)[1]

        return list(self._pool.map(one, self.uids))

    def _scores(self, row: Tensor, samples: _Prepared) -> tuple[float, float]:
        """Accuracy in percent and mean loss of the model in ``row``."""
        if not hasattr(self._local, "bound"):
            model = build_model(self._experiment).to(row.device, row.dtype).eval()
            self._local.bound = BoundModel(model, self._layout)
            self._local.loss = loss_function(self._experiment)
        self._local.bound.bind(row)
        correct, loss = 0, MeanLoss(self._local.loss)
        with torch.inference_mode(), arithmetic(self._experiment.run, row.device.type):
            for x, y in zip(torch.split(samples.x, _BATCH), torch.split(samples.y, _BATCH), strict=True):
                output = self._local.bound.model(x).to(row.dtype)
                loss(output, y)
                correct += int((output.argmax(1) == y).sum())
        return 100.0 * correct / len(samples.y), loss.mean

    def _consensus(self, mean: Tensor) -> float:
        squares = self._pool.map(lambda row: float((row - mean).square().sum(dtype=torch.float64)), self._models)
        return float(np.sqrt(np.mean(list(squares))))


def evaluated_nodes(experiment: Experiment) -> list[int]:
    """All nodes, or the fixed random choice of ``eval_nodes`` of them."""
    count = experiment.run.eval_nodes
    if count in (0, experiment.nodes):
        return list(range(experiment.nodes))
    chosen = generator(experiment.seed, "eval_nodes").choice(experiment.nodes, count, replace=False)
    return sorted(int(uid) for uid in chosen)


def _scores(results: Sequence[tuple[float, float]]) -> Scores:
    accuracy, loss = zip(*results, strict=True)
    return Scores(np.array(accuracy), np.array(loss))
