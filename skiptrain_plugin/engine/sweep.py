"""Many experiments one after another: finished ones are reused, unfinished ones go on where they stopped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from skiptrain_plugin.engine.node_data import NodeData, load_node_data
from skiptrain_plugin.engine.runner import run_experiment
from skiptrain_plugin.engine.simulation import Callback, Simulation
from skiptrain_plugin.errors import InputError, RunError, SkipTrainError
from skiptrain_plugin.experiment.experiment import Experiment
from skiptrain_plugin.results.consistency import recorded_trace
from skiptrain_plugin.results.record import Run, difference, find_runs

_EVALUATED_SAMPLES = 5000
"""Assumed size of a test set, for estimates only."""


@dataclass(frozen=True)
class Job:
    """One run of a sweep."""

    name: str
    """Its folder inside the sweep's."""
    experiment: Experiment


@dataclass(frozen=True)
class Placed:
    """A job with its folder and what is already there."""

    job: Job
    folder: Path
    completed: int
    """Rounds already recorded."""
    finished: bool


@dataclass
class Outcome:
    """What a sweep came to."""

    runs: list[Run] = field(default_factory=list)
    """In the order of the jobs, as far as it got."""
    failures: list[str] = field(default_factory=list)
    """A sentence for each run that failed although its input was valid."""
    interrupted: Placed | None = None
    """The run that a signal stopped."""


class Watcher(Protocol):
    """Follows a sweep."""

    def begin(self, placed: Placed) -> None:
        """Called before each run, finished ones included."""

    def follow(self, simulation: Simulation) -> list[Callback]:
        """Callbacks for the run that begins."""

    def end(self, run: Run | None) -> None:
        """Called after each run; None when it failed."""


def place(jobs: Sequence[Job], root: Path) -> list[Placed]:
    """Where each job runs: in the folder of a recorded run of the same configuration, else in its own.

    A folder that holds another configuration is refused before anything runs.
    """
    recorded: list[tuple[Run, Experiment]] = []
    for run in find_runs([root]) if root.is_dir() else []:
        try:
            recorded.append((run, run.experiment))
        except SkipTrainError:
            continue
    return [_placed(job, root, recorded) for job in jobs]


def _placed(job: Job, root: Path, recorded: Sequence[tuple[Run, Experiment]]) -> Placed:
    same = [run for run, experiment in recorded if difference(experiment, job.experiment) is None]
    for run in sorted(same, key=lambda run: not run.finished):
        recorded_trace(run, job.experiment)
        return Placed(job, run.folder, job.experiment.rounds if run.finished else len(run.rounds), run.finished)
    folder = root / job.name
    if (folder / "run.json").exists():
        unlike = difference(Run(folder).experiment, job.experiment)
        raise InputError(f"{folder} holds another experiment: {unlike}; choose another --out")
    return Placed(job, folder, 0, False)


def run_all(placed: Sequence[Placed], watcher: Watcher) -> Outcome:
    """Runs what is missing. A run that fails is named and the others go on; a signal ends the sweep."""
    outcome = Outcome()
    data: tuple[str, NodeData] | None = None
    for one in placed:
        watcher.begin(one)
        run: Run | None = Run(one.folder)
        if not one.finished:
            key = _data_key(one.job.experiment)
            if data is None or data[0] != key:
                data = key, load_node_data(one.job.experiment)
            try:
                run = run_experiment(one.job.experiment, one.folder, resume=True, progress=watcher.follow, data=data[1])
            except RunError as error:
                outcome.failures.append(f"{one.job.name}: {error}")
                run = None
        watcher.end(run)
        if run is not None:
            outcome.runs.append(run)
            if not run.finished:
                outcome.interrupted = one
                break
    return outcome


def _data_key(experiment: Experiment) -> str:
    """Equal for experiments that train and evaluate on the same samples."""
    run = experiment.run
    return repr((experiment.dataset, experiment.nodes, experiment.seed, run.eval_samples, run.validate_models))


def work(experiment: Experiment) -> NDArray[np.float64]:
    """Work of each round, in forward passes of one sample: a training step counts three, an evaluation one."""
    run, train = experiment.run, experiment.train
    evaluated = (run.eval_nodes or experiment.nodes) * (run.eval_samples or _EVALUATED_SAMPLES)
    evaluated *= 2 if run.validate_models else 1
    rounds = np.empty(experiment.rounds)
    for index, (_, trains) in enumerate(experiment.policy().replay()):
        due = (index + 1) % experiment.test_after == 0 or index + 1 == experiment.rounds
        rounds[index] = 3.0 * trains.sum() * train.rounds * train.batch_size + (evaluated if due else 0.0)
    return rounds
