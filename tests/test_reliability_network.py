"""Deployments that lose some of their nodes at random rounds: the rest finish, on time, without a hang."""

from __future__ import annotations

import os
import random
import signal
import time

import numpy as np
import pytest

from skiptrain_plugin import framework
from skiptrain_plugin.deployment.averaging import metropolis_weights, weighted_sum
from skiptrain_plugin.deployment.node_files import lines_path, read_rounds
from skiptrain_plugin.deployment.plan import Flags, from_flags
from skiptrain_plugin.results.record import FINISHED, Run
from tests.framework_problems import tiny_ini
from tests.test_plugin_framework import after_rounds, node_pids, write_ini

needs_framework = pytest.mark.skipif(not framework.installed(), reason=framework.MISSING)

ROUNDS = 60
ALGORITHMS = ("dpsgd", "greedy", "skiptrain", "skiptrain_constrained", "allreduce")


def lose_some(tmp_path, seed: int) -> None:
    """One deployment of eight nodes of which one to three are killed in rounds of their own."""
    from skiptrain_plugin import launcher

    dice = random.Random(seed)
    lost = {rank: dice.randint(1, ROUNDS // 2) for rank in dice.sample(range(8), dice.randint(1, 3))}
    path = write_ini(tmp_path, tiny_ini(dice.choice(ALGORITHMS), ROUNDS, test_after=ROUNDS))
    folder = tmp_path / "run"
    killers = [after_rounds(folder, rank, at, lambda pid: os.kill(pid, signal.SIGKILL)) for rank, at in lost.items()]
    settings = launcher.Launch(folder, folder / "weights", on_failure="continue")
    start = time.monotonic()
    outcome = launcher.launch(from_flags(Flags(path)), settings)
    assert time.monotonic() - start < 90, "the others waited too long"
    for killer in killers:
        killer.join(5)
    assert {failure.uid for failure in outcome.failures} == set(lost)
    assert node_pids(folder) == []
    run = Run(folder)
    assert run.info["status"] == FINISHED
    assert len(run.rounds) == ROUNDS
    assert {int(uid) for uid in run.info["lost_nodes"]} == set(lost)
    for rank in set(range(8)) - set(lost):
        assert sorted(read_rounds(lines_path(folder, rank))) == list(range(1, ROUNDS + 1))


@needs_framework
@pytest.mark.parametrize("seed", range(2))
def test_the_rest_finish_without_the_killed(tmp_path, seed):
    lose_some(tmp_path, seed)


@pytest.mark.long
@needs_framework
@pytest.mark.parametrize("seed", range(2, 22))
def test_twenty_deployments_lose_nodes_at_random_rounds(tmp_path, seed):
    lose_some(tmp_path, seed)


@pytest.mark.parametrize("answered", [[], [1], [1, 2, 5], [1, 2, 3, 4, 5, 6]])
def test_weights_of_whoever_answered_sum_to_one(answered):
    degrees = {1: 6, 2: 3, 3: 6, 4: 9, 5: 6, 6: 1}
    weights = metropolis_weights(6, {uid: degrees[uid] for uid in answered})
    assert weights == {uid: 1 / (max(6, degrees[uid]) + 1) for uid in answered}
    agreed = np.linspace(-3, 3, 50, dtype=np.float32)
    assert np.allclose(weighted_sum(agreed, dict.fromkeys(answered, agreed), weights), agreed, atol=1e-6)
