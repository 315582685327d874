"""Local training on worker threads: each worker takes the next node that is to train."""

from __future__ import annotations

import inspect
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from skiptrain_plugin.engine.minibatches import minibatch_seed, minibatches
from skiptrain_plugin.engine.node_data import NodeData, Samples
from skiptrain_plugin.engine.parameters import BoundModel, Layout
from skiptrain_plugin.errors import InputError, RunError
from skiptrain_plugin.experiment.experiment import Experiment
from skiptrain_plugin.experiment.sections import RunSection
from skiptrain_plugin.kernels.block import native_kernels
from skiptrain_plugin.kernels.selection import uses_native
from skiptrain_plugin.models import build_model
from skiptrain_plugin.named import first_line, named_class

OptimizerState = dict[int, dict[str, Any]]
"""The state of one node's parameters by their index; a parameter that gets no gradient has none."""


class Trainer(Protocol):
    """What trains the nodes of a round; the engine has one for threads and one for batches of nodes."""

    states: dict[int, OptimizerState]
    """The optimizer's state of each node that has one."""

    def train(self, uids: Sequence[int], round: int, stop: Callable[[], bool]) -> list[int]:
        """Trains ``uids`` in place; returns those done, all of them unless ``stop`` turned true."""


def autocast(precision: str, device: str = "cpu") -> AbstractContextManager[Any]:
    """bf16: matrix products and convolutions in bfloat16, parameters and gradients in float32."""
    return torch.autocast(device, dtype=torch.bfloat16) if precision == "bf16" else nullcontext()


@contextmanager
def arithmetic(run: RunSection, device: str = "cpu") -> Iterator[None]:
    """Models inside compute with the kernels and the precision that [RUN] asks for."""
    with native_kernels(device == "cpu" and uses_native(run.kernels)), autocast(run.precision, device):
        yield


def optimizer_factory(experiment: Experiment) -> Callable[[Sequence[nn.Parameter] | Sequence[Tensor]], Any]:
    """Builds the optimizer of the INI; its keys are checked against the class before anything runs."""
    section = experiment.optimizer
    place = f"{experiment.origin}, [OPTIMIZER_PARAMS]"
    found = named_class(section.optimizer_package, section.optimizer_class, f"{place} optimizer_class")
    if not issubclass(found, torch.optim.Optimizer):
        raise InputError(f"{place} optimizer_class: {section.optimizer_class} is not a torch optimizer")
    options = {"lr": section.lr} | section.options
    allowed = [name for name in inspect.signature(found).parameters if name not in ("self", "params")]
    for key in options:
        if key not in allowed:
            raise InputError(f"{place}: {section.optimizer_class} takes no '{key}'; allowed: {', '.join(allowed)}")
    probe = nn.Parameter(torch.zeros(1))
    probe.grad = torch.zeros(1)
    try:
        found([probe], **options).step()
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{place}: {section.optimizer_class} cannot be used so: {error}") from None
    return lambda parameters: found(parameters, **options)


def loss_function(experiment: Experiment) -> nn.Module:
    """The loss of the INI."""
    place = f"{experiment.origin}, [TRAIN_PARAMS] loss_class"
    kind = named_class(experiment.train.loss_package, experiment.train.loss_class, place)
    try:
        made: nn.Module = kind()
    except Exception as error:
        raise InputError(f"{place}: {kind.__name__}() without arguments fails: {first_line(error)}") from error
    return made


def diverged(uid: int, round: int, loss: float) -> RunError:
    """The error for a loss that is not a number any more."""
    return RunError(
        f"training diverged: the loss of node {uid} in round {round + 1} is {loss};"
        " a smaller OPTIMIZER_PARAMS.lr may help"
    )


def kept_state(optimizer: torch.optim.Optimizer, parameters: Sequence[Tensor]) -> OptimizerState:
    """What the optimizer remembers of ``parameters``."""
    return {index: optimizer.state[p] for index, p in enumerate(parameters) if p in optimizer.state}


class _Worker:
    """One thread's model object and optimizer."""

    def __init__(self, trainer: ThreadedTrainer) -> None:
        self._trainer = trainer
        model = build_model(trainer.experiment).to(trainer.models.dtype)
        self._bound = BoundModel(model, trainer.layout)
        self._parameters = list(self._bound.parameters.values())
        self._optimizer = trainer.make_optimizer(self._parameters)
        self._loss = loss_function(trainer.experiment)

    def train(self, uid: int, round: int) -> None:
        """E local steps of node ``uid``."""
        trainer, optimizer = self._trainer, self._optimizer
        optimizer.state.clear()
        for index, state in trainer.states.get(uid, {}).items():
            optimizer.state[self._parameters[index]] = state
        seed = minibatch_seed(trainer.experiment.seed, uid, round)
        if trainer.draws_random_numbers:
            torch.manual_seed(seed)
        samples = trainer.data.train[uid]
        loss = self.steps(trainer.models[uid], samples, trainer.batches(seed, len(samples)))
        if not math.isfinite(loss):
            raise diverged(uid, round, loss)
        if trainer.keeps_state:
            trainer.states[uid] = kept_state(optimizer, self._parameters)

    def steps(self, row: Tensor, samples: Samples, batches: Iterable[Tensor]) -> float:
        """A local step for each of ``batches`` on the model in ``row``; returns the last loss."""
        run, dtype = self._trainer.experiment.run, row.dtype
        model = self._bound.model
        self._bound.bind(row)
        model.train()
        loss = torch.zeros(())
        for indices in batches:
            self._optimizer.zero_grad()
            with arithmetic(run):
                output = model(self._trainer.inputs(samples.x[indices]))
                loss = self._loss(output.to(dtype), samples.y[indices])
            loss.backward()
            self._optimizer.step()
        return loss.item()


class ThreadedTrainer:
    """Trains nodes on worker threads; the result does not depend on how many there are."""

    def __init__(
        self,
        experiment: Experiment,
        data: NodeData,
        models: Tensor,
        layout: Layout,
        pool: ThreadPoolExecutor,
        workers: int,
    ) -> None:
        self.experiment, self.data, self.models, self.layout = experiment, data, models, layout
        self._workers = workers
        self.make_optimizer = optimizer_factory(experiment)
        self.keeps_state = not experiment.run.reset_optimizer
        self.states: dict[int, OptimizerState] = {}
        self._pool = pool
        self._local = threading.local()
        self.draws_random_numbers = _draws_random_numbers(experiment, data)
        """Whether the model uses torch's global generator (dropout): then one worker trains at a time."""
        self._serial = threading.Lock() if self.draws_random_numbers else nullcontext()

    def batches(self, seed: int, samples: int) -> Iterator[Tensor]:
        """The minibatches of one node's training round."""
        return round_batches(self.experiment, self.data, seed, samples)

    def inputs(self, x: Tensor) -> Tensor:
        """Stored images as the model takes them."""
        return self.data.inputs(x).to(self.models.dtype)

    def train(self, uids: Sequence[int], round: int, stop: Callable[[], bool]) -> list[int]:
        def one(uid: int) -> int | None:
            if stop():
                return None
            with self._serial:
                self._worker().train(uid, round)
            return uid

        return [uid for uid in self._pool.map(one, uids) if uid is not None]

    def seconds_per_step(self, steps: int) -> float:
        """Wall time of a local step with all workers busy, measured on copies of node 0's model."""

        def one(row: Tensor) -> float:
            with self._serial, torch.random.fork_rng(devices=[]):
                worker, samples = self._worker(), self.data.train[0]
                order = [batch for batch, _ in zip(self.batches(0, len(samples)), range(steps), strict=False)]
                worker.steps(row, samples, order[:1])
                start = time.perf_counter()
                worker.steps(row, samples, order)
                return (time.perf_counter() - start) / len(order)

        times = list(self._pool.map(one, self.models[0].repeat(self._workers, 1)))
        return sum(times) / self._workers / (1 if self.draws_random_numbers else self._workers)

    def _worker(self) -> _Worker:
        if not hasattr(self._local, "worker"):
            self._local.worker = _Worker(self)
        worker: _Worker = self._local.worker
        return worker


def round_batches(experiment: Experiment, data: NodeData, seed: int, samples: int) -> Iterator[Tensor]:
    """The minibatches of a training round as DecentralizePy's Training takes them."""
    train = experiment.train
    return minibatches(
        seed,
        samples,
        batch_size=train.batch_size,
        steps=train.rounds,
        full_epochs=train.full_epochs,
        shuffle=train.shuffle,
        drop_last=data.source.drop_last,
    )


def _draws_random_numbers(experiment: Experiment, data: NodeData) -> bool:
    """Finds out by one forward pass in training mode whether the model draws from torch's generator.

    The same pass shows whether model and loss fit the data: one number for each class, labels as targets.
    """
    model = build_model(experiment).train()
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        before = torch.get_rng_state()
        output = model(data.inputs(data.train[0].x[:2]))
        drawn = not torch.equal(before, torch.get_rng_state())
    if output.ndim != 2 or output.shape[1] < data.source.classes:
        raise InputError(
            f"{experiment.origin}, [DATASET] model_class: {experiment.dataset.model_class} gives"
            f" {tuple(output.shape[1:])} numbers for an image; {data.source.title} has {data.source.classes} classes"
        )
    try:
        loss_function(experiment)(output, data.train[0].y[:2]).item()
    except (RuntimeError, TypeError, ValueError) as error:
        raise InputError(
            f"{experiment.origin}, [TRAIN_PARAMS] loss_class: {experiment.train.loss_class} does not take class labels:"
            f" {str(error).splitlines()[0]}"
        ) from None
    return drawn
