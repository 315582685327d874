"""How long a run will take, from a few timed local steps and one timed evaluation."""

from __future__ import annotations

import time
from itertools import islice

from skiptrain_plugin.engine.minibatches import minibatch_seed
from skiptrain_plugin.engine.simulation import Simulation
from skiptrain_plugin.engine.training import ThreadedTrainer, round_batches

_TIMED_STEPS = 4


def estimate_seconds(simulation: Simulation) -> float | None:
    """Seconds that the remaining rounds will take; None where training is not on threads."""
    trainer, experiment = simulation.trainer, simulation.experiment
    if not isinstance(trainer, ThreadedTrainer):
        return None
    step = trainer.seconds_per_step(_TIMED_STEPS)
    order = round_batches(experiment, simulation.data, minibatch_seed(0, 0, 0), len(simulation.data.train[0]))
    steps = sum(1 for _ in islice(order, 100_000))
    done = int(simulation.ledger.training_rounds.sum())
    training = max(0.0, float(simulation.policy.expected_training_rounds().sum()) - done) * steps * step
    start = time.perf_counter()
    simulation.evaluator.evaluate_few(simulation.workers)
    one = (time.perf_counter() - start) / simulation.workers
    sets = 2 if simulation.data.validation is not None else 1
    evaluations = -(-(experiment.rounds - simulation.completed_rounds) // experiment.test_after)
    return training + evaluations * (len(simulation.evaluator.uids) * sets + 1) * one
