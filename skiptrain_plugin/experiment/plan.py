"""What a run will do, computed without training: rounds, energy, bytes, memory and work."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from skiptrain_plugin.energy.ledger import COMMUNICATION_WH_PER_BYTE
from skiptrain_plugin.errors import InputError
from skiptrain_plugin.experiment.experiment import Experiment

BYTES_PER_PARAMETER = 4
_BASE_MEMORY = 400 * 2**20
"""Python with torch loaded, bytes."""
_WORKER_MEMORY = 60 * 2**20
"""Activations and gradients of one worker, bytes."""


@dataclass(frozen=True)
class DevicePlan:
    """One device of the trace."""

    name: str
    nodes: int
    wh_per_round: float
    tau: int
    """τ, training rounds, scaled to T."""
    probability: float
    """p, the probability of training in a training round with budget left."""


@dataclass(frozen=True)
class Plan:
    """The figures of one run; energies in Wh."""

    dataset: str
    algorithm: str
    nodes: int
    degree: float
    """Mean number of neighbours."""
    lambda2: float
    rounds: int
    training_rounds: int
    """Rounds in which somebody may train."""
    synchronization_rounds: int
    t_train: float
    """T_train = Γ_train / (Γ_train + Γ_sync) · T."""
    gamma_train: int
    gamma_sync: int
    training_energy_wh: float
    """Training energy of the whole network when every draw goes as its probability says."""
    expected_training_energy_wh: float
    maximal_training_energy_wh: float
    communication_energy_wh: float
    bytes_sent: int
    memory_bytes: int
    training_flop: float
    evaluations: int
    devices: list[DevicePlan]
    notes: list[str]
    """What must be known to read the energies, such as a trace that was scaled."""

    def to_json(self) -> dict[str, Any]:
        """As JSON-ready values."""
        return asdict(self)


def bytes_per_round(experiment: Experiment) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Bytes that each node sends in a round: its model to each neighbour (to everyone for all-reduce)."""
    if experiment.policy().averages_globally:
        receivers = np.full(experiment.nodes, experiment.nodes - 1)
    else:
        receivers = experiment.topology.degrees
    return (receivers * experiment.architecture.parameters * BYTES_PER_PARAMETER).astype(np.int64)


def memory_needed(experiment: Experiment, workers: int) -> int:
    """Estimated peak memory of the embedded engine, bytes: models, averaging blocks, data, workers."""
    models = experiment.nodes * experiment.architecture.parameters * BYTES_PER_PARAMETER
    optimizer_states = _optimizer_states(experiment)
    return int(
        _BASE_MEMORY
        + models * (1 + optimizer_states)
        + models // 8
        + experiment.facts.train_bytes
        + workers * (_WORKER_MEMORY + 4 * experiment.architecture.parameters * BYTES_PER_PARAMETER)
    )


def _optimizer_states(experiment: Experiment) -> int:
    """Copies of the model that the optimizer keeps between rounds."""
    if experiment.run.reset_optimizer:
        return 0
    if experiment.optimizer.optimizer_class == "SGD":
        return 1 if experiment.optimizer.options.get("momentum") else 0
    return 2


def make_plan(experiment: Experiment, workers: int = 2) -> Plan:
    """The plan of ``experiment``."""
    policy = experiment.policy()
    wh = experiment.wh_per_training_round
    expected = policy.expected_training_rounds()
    maximal = policy.maximal_training_rounds()
    training_rounds = sum(
        bool((policy.probabilities(round, remaining) > 0).any()) for round, (remaining, _) in enumerate(policy.replay())
    )
    sent = bytes_per_round(experiment).sum() * experiment.rounds
    flop_per_round = (
        3.0 * experiment.architecture.forward_flop * experiment.train.batch_size * experiment.workload.local_steps
    )
    probability = policy.probabilities(0, policy.settings.budgets)
    devices = [
        DevicePlan(
            row.name,
            len(range(index, experiment.nodes, len(experiment.trace))),
            row.wh_per_round,
            row.budget,
            float(probability[index]) if index < experiment.nodes else 0.0,
        )
        for index, row in enumerate(experiment.trace)
    ]
    return Plan(
        dataset=experiment.facts.name,
        algorithm=policy.name,
        nodes=experiment.nodes,
        degree=float(experiment.topology.degrees.mean()),
        lambda2=0.0 if policy.averages_globally else experiment.topology.lambda2,
        rounds=experiment.rounds,
        training_rounds=training_rounds,
        synchronization_rounds=experiment.rounds - training_rounds,
        t_train=experiment.schedule.nominal_training_rounds(experiment.rounds),
        gamma_train=experiment.schedule.training,
        gamma_sync=experiment.schedule.synchronization,
        training_energy_wh=float(expected @ wh),
        expected_training_energy_wh=float(expected @ wh),
        maximal_training_energy_wh=float(maximal @ wh),
        communication_energy_wh=float(sent * COMMUNICATION_WH_PER_BYTE),
        bytes_sent=int(sent),
        memory_bytes=memory_needed(experiment, workers),
        training_flop=float(expected.sum() * flop_per_round),
        evaluations=-(-experiment.rounds // experiment.test_after),
        devices=devices,
        notes=list(experiment.energy_notes),
    )


def check_memory(experiment: Experiment, workers: int, available: int) -> None:
    """Refuses a run that needs more memory than there is."""
    needed = memory_needed(experiment, workers)
    if needed > available:
        raise InputError(
            f"this run needs about {needed / 2**30:.1f} GiB of memory and {available / 2**30:.1f} GiB are free;"
            " lower RUN.nodes or use a smaller model"
        )
