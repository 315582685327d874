"""A record against itself: what stands in ``rounds.jsonl`` is computed again from ``nodes.jsonl`` and the trace."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from skiptrain_plugin.energy.devices import TraceRow
from skiptrain_plugin.energy.ledger import EnergyLedger, assign
from skiptrain_plugin.errors import InputError
from skiptrain_plugin.experiment.experiment import Experiment
from skiptrain_plugin.results.record import Run, decode_mask, inputs_digest

_TOLERANCE = 1e-6
"""Largest difference, as a part of the value, that adding up in another order can explain."""
_TAKEN: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "test_acc_mean": ("test_acc", np.mean),
    "test_acc_std": ("test_acc", np.std),
    "test_loss_mean": ("test_loss", np.mean),
    "validation_acc_mean": ("validation_acc", np.mean),
    "validation_loss_mean": ("validation_loss", np.mean),
    "train_loss_mean": ("train_loss", np.mean),
}
"""Key of ``rounds.jsonl`` → the nodes' values in ``nodes.jsonl`` and what is taken of them."""


def recorded_trace(run: Run, experiment: Experiment) -> tuple[TraceRow, ...]:
    """The trace that the run's energies were computed with; refuses a record made with another topology or trace.

    A record made before energy followed the workload does not hold its trace: it is the trace file as it stands.
    """
    traces = [experiment.trace]
    if "trace" not in run.info and experiment.trace_file is not None:
        traces.append(experiment.over_horizon(experiment.trace_file.rows))
    for trace in traces:
        if run.info.get("inputs_sha256") == inputs_digest(experiment, trace):
            return trace
    raise InputError(f"{run.folder}: the topology or the energy trace has changed since the run began")


def check_consistent(run: Run, experiment: Experiment, trace: tuple[TraceRow, ...]) -> None:
    """Refuses a record whose means, counts or energies do not follow from what it says of each node."""
    nodes = experiment.nodes
    ledger = EnergyLedger(np.array([row.wh_per_round for row in assign(trace, np.arange(nodes))]))
    if len(run.nodes) < len(run.rounds):
        raise InputError(f"{run.folder}: nodes.jsonl has {len(run.nodes)} lines and rounds.jsonl {len(run.rounds)}")
    for line, details in zip(run.rounds, run.nodes, strict=False):
        place = f"{run.folder}, round {line.get('round')}"
        if details.get("round") != line.get("round"):
            raise InputError(f"{place}: nodes.jsonl has round {details.get('round')!r} in its place")
        try:
            trained = decode_mask(details["trained"], nodes)
            ledger.charge(trained, np.broadcast_to(np.array(details["bytes"], dtype=np.int64), nodes))
            expected = {
                "trained": float(trained.sum()),
                "training_wh": float(ledger.training_wh.sum()),
                "communication_wh": float(ledger.communication_wh.sum()),
            } | {key: float(take(details[name])) for key, (name, take) in _TAKEN.items() if details.get(name)}
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"{place}: nodes.jsonl is damaged ({error})") from None
        _compare(line, expected, place)


def _compare(line: dict[str, Any], expected: dict[str, float], place: str) -> None:
    for key in _TAKEN:
        if key in line and key not in expected:
            raise InputError(f"{place}: {key} is recorded, but nodes.jsonl has no value of any node")
    for key, value in expected.items():
        found = line.get(key)
        if not isinstance(found, (int, float)) or not math.isclose(found, value, rel_tol=_TOLERANCE, abs_tol=1e-9):
            raise InputError(f"{place}: {key} is {found!r}, but from the nodes' own values it is {value:.10g}")
