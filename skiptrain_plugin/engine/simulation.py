"""The loop of the embedded engine: decide, train, share and average, record, evaluate."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from skiptrain_plugin.algorithm.schedule import RoundKind
from skiptrain_plugin.energy.ledger import EnergyLedger
from skiptrain_plugin.engine.batched import BatchedTrainer
from skiptrain_plugin.engine.checkpoint import State
from skiptrain_plugin.engine.evaluation import Evaluation, Evaluator
from skiptrain_plugin.engine.memory import keep_freed_memory
from skiptrain_plugin.engine.mixing import Mixer
from skiptrain_plugin.engine.node_data import NodeData
from skiptrain_plugin.engine.parameters import Layout
from skiptrain_plugin.engine.training import ThreadedTrainer, Trainer, diverged
from skiptrain_plugin.errors import InputError
from skiptrain_plugin.experiment.experiment import Experiment
from skiptrain_plugin.experiment.plan import bytes_per_round
from skiptrain_plugin.models import build_model
from skiptrain_plugin.processor import usable_cores

_METROPOLIS = {"SkipTrainSharing", "Sharing"}


@dataclass(frozen=True)
class Round:
    """A completed round."""

    number: int
    """Completed rounds, counted from 1."""
    kind: RoundKind
    trained: NDArray[np.bool_]
    bytes_sent: NDArray[np.int64]
    """Bytes that each node sent in this round."""
    training_wh: float
    """Training energy of all nodes so far, Wh."""
    communication_wh: float
    evaluation: Evaluation | None
    train_losses: list[float] | None


class Callback(Protocol):
    """Something that happens beside the loop: recording, progress, checkpoints, stopping."""

    def after_round(self, simulation: Simulation, round: Round) -> None:
        """Called when a round is complete."""


def worker_count(experiment: Experiment) -> int:
    """Worker threads: as many as asked for, or one a core that this process may use."""
    return experiment.run.workers or usable_cores()


class Simulation:
    """All nodes of one experiment and their state."""

    def __init__(self, experiment: Experiment, data: NodeData, dtype: torch.dtype = torch.float32) -> None:
        self.experiment, self.data = experiment, data
        self.policy = experiment.policy()
        self.wall_seconds: dict[str, float] = {}
        torch.set_num_threads(1)
        keep_freed_memory()
        self.workers = worker_count(experiment)
        self.pool = ThreadPoolExecutor(self.workers, thread_name_prefix="worker")
        with self.timed("setup"):
            device = _device(experiment)
            model = build_model(experiment)
            self.layout = Layout(model)
            self.models = self.layout.pack(model, dtype).to(device).repeat(experiment.nodes, 1)
            self.mixer = Mixer(_weights(experiment, self.policy.averages_globally), dtype, device)
            self.trainer: Trainer
            if device.type == "cpu":
                self.trainer = ThreadedTrainer(experiment, data, self.models, self.layout, self.pool, self.workers)
            else:
                self.trainer = BatchedTrainer(experiment, data, self.models, self.layout)
            self.evaluator = Evaluator(experiment, data, self.models, self.layout, self.pool)
        self.ledger = EnergyLedger(experiment.wh_per_training_round)
        self.remaining = self.policy.settings.budgets.copy()
        self.bytes_per_round = bytes_per_round(experiment)
        self.completed_rounds = 0
        self._trained_already = np.zeros(experiment.nodes, dtype=bool)
        self._pending_averages = 0

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Adds the time spent inside to ``wall_seconds[phase]``."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.wall_seconds[phase] = self.wall_seconds.get(phase, 0.0) + time.perf_counter() - start

    def run(self, callbacks: Sequence[Callback], stop: Callable[[], bool] = lambda: False) -> bool:
        """Runs the remaining rounds; returns False when ``stop`` ended it early, with the state kept whole."""
        while self.completed_rounds < self.experiment.rounds:
            round = self._round(stop)
            if round is None:
                return False
            for callback in callbacks:
                callback.after_round(self, round)
            if stop() and self.completed_rounds < self.experiment.rounds:
                return False
        self.flush()
        return True

    def flush(self) -> None:
        """Does the averaging that consecutive synchronization rounds have put off."""
        with self.timed("average"):
            self.mixer.mix(self.models, self._pending_averages, self.pool)
        self._pending_averages = 0

    def state(self) -> State:
        """The state between two calls of the loop, for a checkpoint."""
        self.flush()
        return State(
            self.completed_rounds,
            self.models,
            self.remaining,
            self.ledger.training_rounds,
            self.ledger.bytes_sent,
            self._trained_already,
            self.trainer.states,
            self.wall_seconds,
        )

    def restore(self, state: State) -> None:
        """Goes on from a checkpoint."""
        if state.models.shape != self.models.shape or state.models.dtype != self.models.dtype:
            raise InputError(
                f"the checkpoint holds {tuple(state.models.shape)} {state.models.dtype} parameters; this experiment"
                f" has {tuple(self.models.shape)} {self.models.dtype}"
            )
        self.models.copy_(state.models)
        self.remaining = state.remaining
        self.ledger.training_rounds[:] = state.training_rounds
        self.ledger.bytes_sent[:] = state.bytes_sent
        self._trained_already = state.trained_already
        for parameters in state.optimizer.values():
            for kept in parameters.values():
                kept |= {key: value.to(self.models.device) for key, value in kept.items() if torch.is_tensor(value)}
        self.trainer.states.update(state.optimizer)
        self.completed_rounds = state.completed_rounds
        self.wall_seconds = dict(state.wall_seconds)

    def close(self) -> None:
        """Ends the worker threads."""
        self.pool.shutdown(cancel_futures=True)

    def _round(self, stop: Callable[[], bool]) -> Round | None:
        """One round: decide, train, share and average, charge, evaluate; None when stopped while training."""
        index = self.completed_rounds
        trains = self.policy.decide(index, self.remaining)
        waiting = [int(uid) for uid in np.flatnonzero(trains & ~self._trained_already)]
        if waiting:
            self.flush()
            with self.timed("train"):
                done = self.trainer.train(waiting, index, stop)
            self._trained_already[done] = True
            if len(done) < len(waiting):
                return None
        self._trained_already[:] = False
        self._pending_averages += 1
        self.ledger.charge(trains, self.bytes_per_round)
        self.remaining = self.policy.spend(self.remaining, trains)
        number = index + 1
        completed = Round(
            number,
            self.policy.kind(index),
            trains,
            self.bytes_per_round,
            float(self.ledger.training_wh.sum()),
            float(self.ledger.communication_wh.sum()),
            self._evaluate() if self._due(number, self.experiment.test_after) else None,
            self._train_losses() if self._due(number, self.experiment.run.train_evaluate_after) else None,
        )
        self.completed_rounds = number
        return completed

    def _due(self, number: int, every: int) -> bool:
        """Whether something that happens ``every`` rounds (0: never) happens now; the last round always counts."""
        return every > 0 and (number % every == 0 or number == self.experiment.rounds)

    def _evaluate(self) -> Evaluation:
        self.flush()
        with self.timed("evaluate"):
            evaluation = self.evaluator.evaluate()
        self._check_losses(evaluation.test.loss)
        if not np.isfinite(evaluation.consensus):
            raise diverged(self.evaluator.uids[0], self.completed_rounds, evaluation.consensus)
        return evaluation

    def _train_losses(self) -> list[float]:
        self.flush()
        with self.timed("evaluate"):
            losses = self.evaluator.train_losses()
        self._check_losses(np.array(losses))
        return losses

    def _check_losses(self, losses: NDArray[np.float64]) -> None:
        """Stops when a node's model gives no finite loss any more."""
        for uid, loss in zip(self.evaluator.uids, losses, strict=True):
            if not np.isfinite(loss):
                raise diverged(uid, self.completed_rounds, float(loss))


def _device(experiment: Experiment) -> torch.device:
    if experiment.run.device == "cuda" and not torch.cuda.is_available():
        raise InputError(f"{experiment.origin}, [RUN] device: torch finds no CUDA device here; allowed: cpu")
    return torch.device(experiment.run.device)


def _weights(experiment: Experiment, globally: bool) -> Any:
    """The mixing matrix of the SHARING class; None for the global average."""
    if globally:
        return None
    name = experiment.sharing.sharing_class
    if name in _METROPOLIS and not experiment.sharing.options.get("compress"):
        return experiment.topology.weights
    if name == "PlainAverageSharing":
        return experiment.topology.uniform_weights
    raise InputError(
        f"{experiment.origin}, [SHARING]: the embedded engine averages as SkipTrainSharing, Sharing or"
        f" PlainAverageSharing without compression, not as {name}; use --engine decentralizepy"
    )
