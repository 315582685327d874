"""What a run measures and charges, against numbers worked out by hand."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from skiptrain_plugin.algorithm.policies import SkipTrainConstrained
from skiptrain_plugin.engine.batched import BatchedTrainer
from skiptrain_plugin.engine.node_data import Samples
from skiptrain_plugin.engine.runner import run_experiment
from skiptrain_plugin.engine.simulation import Simulation
from skiptrain_plugin.errors import InputError, RunError
from skiptrain_plugin.results.record import Run
from tests.test_algorithm import make
from tests.test_engine import tiny
from tests.test_run import Crash, CrashAfter

WH_PER_BYTE = 7 / (256 * 6 * 1000 * 89_834 * 4)
"""The paper's 7 Wh for 256 nodes, 6 neighbours, 1000 rounds and 89 834 float32."""
LINEAR = 192 * 10 + 10
"""Parameters of ``tiny_models.Linear``."""


@pytest.fixture(scope="module")
def constant_models():
    """The evaluation of six models that say the same of every image, on labels 0, 1, 2 in the ratio 1 : 2 : 3.

    All weights are 0. The first three models have the biases 5, 0, 4, 0, …, 0 and say class 0; the others have
    0, 5, 4, 0, …, 0 and say class 1; their average has 2.5, 2.5, 4, 0, …, 0 and says class 2. The 300 samples come in
    order of their labels and are more than one batch of the evaluation, the last of which is smaller.
    """
    experiment, data = tiny("RUN.validate=True", "RUN.train_evaluate_after=1")
    labels = torch.tensor([0] * 50 + [1] * 100 + [2] * 150)
    samples = Samples(torch.zeros(300, 8, 8, 3, dtype=torch.uint8), labels)
    data = replace(data, train=[samples] * 6, test=samples, validation=Samples(samples.x[:50], labels[:50]))
    simulation = Simulation(experiment, data)
    simulation.models.zero_()
    bias = next(slot for slot in simulation.layout.slots if slot.name == "fc.bias").view(simulation.models)
    bias[:3, 0] = bias[3:, 1] = 5
    bias[:, 2] = 4
    try:
        return simulation.evaluator.evaluate(), simulation.evaluator.train_losses()
    finally:
        simulation.close()


PARTITION = math.log(math.exp(5) + math.exp(4) + 8)
"""The logarithm of the sum of exponentials of every model's outputs; a sample's loss is this less its own output."""
MEAN_LOSS = [PARTITION - (50 * 5 + 150 * 4) / 300] * 3 + [PARTITION - (100 * 5 + 150 * 4) / 300] * 3


def test_accuracy_of_the_nodes_and_of_the_mean_of_their_models(constant_models):
    evaluation, _ = constant_models
    assert evaluation.test.accuracy == pytest.approx([100 / 6] * 3 + [200 / 6] * 3)
    assert evaluation.validation.accuracy.tolist() == [100, 100, 100, 0, 0, 0]
    assert evaluation.mean_model_accuracy == pytest.approx(50)


def test_losses_are_means_over_samples(constant_models):
    evaluation, train_losses = constant_models
    assert evaluation.test.loss == pytest.approx(MEAN_LOSS, rel=1e-6)
    assert train_losses == pytest.approx(MEAN_LOSS, rel=1e-6)
    assert evaluation.validation.loss == pytest.approx([PARTITION - 5] * 3 + [PARTITION] * 3, rel=1e-6)


def test_consensus_is_the_root_of_the_mean_square_distance(constant_models):
    evaluation, _ = constant_models
    assert evaluation.consensus == pytest.approx(math.sqrt(2.5**2 + 2.5**2))


def test_record_holds_the_means_over_nodes_of_what_nodes_have(tmp_path):
    experiment, data = tiny("RUN.rounds=3", "RUN.test_after=3", "RUN.validate=True", "RUN.train_evaluate_after=3")
    run = run_experiment(experiment, tmp_path / "a", data=data)
    line, nodes = run.rounds[-1], run.nodes[-1]
    for name in ("test_acc", "test_loss", "validation_acc", "validation_loss", "train_loss"):
        assert line[f"{name}_mean"] == pytest.approx(sum(nodes[name]) / 6)
    spread = sum((value - line["test_acc_mean"]) ** 2 for value in nodes["test_acc"]) / 6
    assert line["test_acc_std"] == pytest.approx(math.sqrt(spread))


@pytest.mark.parametrize(
    ("graph", "algorithm", "receivers"),
    [
        ("ring", "skiptrain", [2] * 6),
        ("star", "skiptrain_constrained", [5, 1, 1, 1, 1, 1]),
        ("ring", "allreduce", [5] * 6),
    ],
)
def test_every_round_sends_models_and_is_charged_for_them(tmp_path, graph, algorithm, receivers):
    experiment, data = tiny("RUN.rounds=6", f"RUN.graph_type={graph}", algorithm=algorithm)
    run = run_experiment(experiment, tmp_path / "a", data=data)
    if algorithm != "allreduce":
        kinds = ["training", "training", "synchronization"] * 2
        assert [line["kind"] for line in run.rounds] == kinds
        assert [line["trained"] for line in run.rounds if line["kind"] == "synchronization"] == [0, 0]
    sent = [count * LINEAR * 4 for count in receivers]
    for line in run.nodes:
        assert np.broadcast_to(line["bytes"], 6).tolist() == sent
    charged = [line["communication_wh"] for line in run.rounds]
    assert charged == pytest.approx([number * sum(sent) * WH_PER_BYTE for number in range(1, 7)], rel=1e-12)
    for uid in range(6):
        result = json.loads((run.folder / "nodes" / f"{uid}_results.json").read_text())
        assert result["total_bytes"] == {str(number): number * sent[uid] for number in range(1, 7)}


def test_communication_goes_on_adding_up_after_a_resume(tmp_path):
    experiment, data = tiny("RUN.rounds=6", "RUN.checkpoint_every=3")
    with pytest.raises(Crash):
        run_experiment(experiment, tmp_path / "a", data=data, progress=lambda simulation: [CrashAfter(4)])
    run = run_experiment(experiment, tmp_path / "a", data=data, resume=True)
    charged = [line["communication_wh"] for line in run.rounds]
    each = 6 * 2 * LINEAR * 4 * WH_PER_BYTE
    assert charged == pytest.approx([number * each for number in range(1, 7)], rel=1e-12)


def test_nodes_draw_anew_in_every_round():
    """200 nodes with p = 1/2 in 200 training rounds, budgets apart: each trains in about half of them, one round's
    choice says nothing about the next one's, and no two rounds have the same choice."""
    policy = make(SkipTrainConstrained, [100] * 200, rounds=400, gammas=(1, 1))
    ample = np.full(200, 400)
    trains = np.array([policy.decide(t, ample) for t in range(0, 400, 2)])
    assert policy.training_probability.tolist() == [0.5] * 200
    by_node = trains.mean(0)
    assert np.abs(by_node - 0.5).max() < 5 * 0.5 / math.sqrt(200)
    assert by_node.std() == pytest.approx(0.5 / math.sqrt(200), rel=0.3)
    assert abs((trains[1:] == trains[:-1]).mean() - 0.5) < 5 * 0.5 / math.sqrt(199 * 200)
    assert len({row.tobytes() for row in trains}) == 200


@pytest.mark.parametrize("batched", [False, True])
def test_divergence_is_found_in_the_round_in_which_it_happens(batched):
    """The first evaluation is after round 9; the second local step of round 1 already has no finite loss."""
    experiment, data = tiny(
        "OPTIMIZER_PARAMS.lr=1e30", "RUN.rounds=9", "RUN.test_after=9", "RUN.workers=1", model="Convolution"
    )
    simulation = Simulation(experiment, data)
    if batched:
        simulation.trainer = BatchedTrainer(experiment, data, simulation.models, simulation.layout)
    try:
        with pytest.raises(RunError, match=r"diverged: the loss of node 0 in round 1 is (nan|inf)"):
            simulation.run([])
    finally:
        simulation.close()


OTHER = {
    "OPTIMIZER_PARAMS.lr": "0.07",
    "OPTIMIZER_PARAMS.momentum": "0.5",
    "TRAIN_PARAMS.rounds": "4",
    "TRAIN_PARAMS.batch_size": "8",
    "NODE.consecutive_training_rounds": "3",
    "NODE.algorithm": "greedy",
    "RUN.rounds": "12",
    "RUN.seed": "12345",
    "RUN.precision": "bf16",
    "RUN.reset_optimizer": "True",
    "RUN.test_after": "7",
    "DATASET.random_seed": "54321",
    "DATASET.model_class": "Convolution",
    "SHARING.sharing_class": "PlainAverageSharing",
}
"""Another value of keys that change what a run computes or records."""


@pytest.fixture(scope="module")
def broken_off(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "a"
    experiment, data = tiny("RUN.checkpoint_every=1")
    with pytest.raises(Crash):
        run_experiment(experiment, folder, data=data, progress=lambda simulation: [CrashAfter(2)])
    return folder, data


@pytest.mark.parametrize("key", OTHER)
def test_a_run_is_not_resumed_as_another_experiment(broken_off, key):
    folder, data = broken_off
    changed, _ = tiny("RUN.checkpoint_every=1", f"{key}={OTHER[key]}")
    before = (folder / "run.json").read_bytes()
    with pytest.raises(InputError, match=rf"holds another experiment: {key} = .* there and {OTHER[key]} here"):
        run_experiment(changed, folder, data=data, resume=True)
    assert (folder / "run.json").read_bytes() == before
    assert len(Run(folder).rounds) == 2
