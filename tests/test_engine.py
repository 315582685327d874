"""The embedded engine against hand-written loops and identities that must hold."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from skiptrain_plugin.algorithm.policies import policy_names
from skiptrain_plugin.engine.batched import BatchedTrainer
from skiptrain_plugin.engine.minibatches import minibatch_seed, minibatches
from skiptrain_plugin.engine.node_data import node_data
from skiptrain_plugin.engine.simulation import Simulation
from skiptrain_plugin.errors import InputError, RunError
from skiptrain_plugin.experiment.catalogue import CNN as CNN_FACTS
from skiptrain_plugin.experiment.catalogue import LENET
from skiptrain_plugin.experiment.experiment import load
from skiptrain_plugin.models import CNN, LeNet, build_model, describe
from tests import tiny_models
from tests.problems import tiny_images

IMAGES = tiny_images()


def tiny(*settings: str, model: str = "Linear", algorithm: str = "skiptrain", images=IMAGES):
    """A small experiment and its data."""
    chosen = [
        "RUN.nodes=6",
        "RUN.degree=2",
        "RUN.rounds=5",
        "RUN.eval_samples=0",
        "RUN.precision=fp32",
        "RUN.workers=2",
        "NODE.budget_horizon=",
        "TRAIN_PARAMS.rounds=3",
        "TRAIN_PARAMS.batch_size=16",
        "NODE.consecutive_training_rounds=2",
        "NODE.consecutive_synching_rounds=1",
        "DATASET.model_package=tests.tiny_models",
        f"DATASET.model_class={model}",
        f"NODE.algorithm={algorithm}",
        *settings,
    ]
    experiment = load(dataset="synthetic", settings=chosen)
    return experiment, node_data(experiment, images)


def simulate(experiment, data, dtype=torch.float32, **kinds):
    simulation = Simulation(experiment, data, dtype)
    try:
        rounds = Collector()
        assert simulation.run([rounds])
    finally:
        simulation.close()
    return simulation, rounds.rounds


class Collector:
    def __init__(self):
        self.rounds = []

    def after_round(self, simulation, round):
        self.rounds.append(round)


def hand_written(experiment, data, rounds, mix):
    """D-PSGD written out: E local steps of SGD on each node, then x_i ← Σ_j W_ij x_j."""
    models = [build_model(experiment).double() for _ in range(experiment.nodes)]
    loss = nn.CrossEntropyLoss()
    for round in range(rounds):
        for uid, model in enumerate(models):
            samples = data.train[uid]
            order = minibatches(
                minibatch_seed(experiment.seed, uid, round),
                len(samples),
                batch_size=16,
                steps=3,
                full_epochs=False,
                shuffle=True,
                drop_last=False,
            )
            for indices in order:
                x = ((samples.x[indices].float() / 255 - 0.5) / 0.5).permute(0, 3, 1, 2).double()
                model.zero_grad()
                loss(model(x), samples.y[indices]).backward()
                with torch.no_grad():
                    for parameter in model.parameters():
                        parameter -= experiment.optimizer.lr * parameter.grad
        before = [[p.detach().clone() for p in model.parameters()] for model in models]
        with torch.no_grad():
            for uid, model in enumerate(models):
                for index, parameter in enumerate(model.parameters()):
                    parameter.copy_(sum(mix[uid][j] * before[j][index] for j in range(len(models))))
    return models


@pytest.mark.parametrize("model", ["Linear", "Convolution"])
def test_three_rounds_of_dpsgd_by_hand_in_float64(model):
    experiment, data = tiny("RUN.rounds=3", algorithm="dpsgd", model=model)
    simulation, _ = simulate(experiment, data, torch.float64)
    expected = hand_written(experiment, data, 3, experiment.topology.weights.toarray())
    for uid, one in enumerate(expected):
        for slot, parameter in zip(simulation.layout.slots, one.parameters(), strict=True):
            assert torch.allclose(slot.view(simulation.models[uid]), parameter, rtol=0, atol=1e-10)


@pytest.mark.parametrize("algorithm", ["dpsgd", "allreduce", "greedy", "skiptrain", "skiptrain_constrained"])
def test_one_node_is_plain_sgd(algorithm):
    experiment, data = tiny("RUN.nodes=1", "RUN.rounds=3", algorithm=algorithm)
    rounds = 2 if algorithm.startswith("skiptrain") else 3
    simulation, recorded = simulate(experiment, data, torch.float64)
    assert [bool(r.trained[0]) for r in recorded] == [
        True,
        True,
        algorithm not in ("skiptrain", "skiptrain_constrained"),
    ]
    (expected,) = hand_written(experiment, data, rounds, [[1.0]])
    assert torch.allclose(simulation.layout.slots[0].view(simulation.models[0]), expected.fc.weight, atol=1e-12)


def test_two_nodes_averaged_by_hand():
    experiment, data = tiny("RUN.nodes=2", "RUN.graph_type=ring", "RUN.rounds=1")
    simulation, _ = simulate(experiment, data, torch.float64)
    expected = hand_written(experiment, data, 1, [[0.5, 0.5], [0.5, 0.5]])
    assert torch.allclose(simulation.layout.slots[0].view(simulation.models[1]), expected[0].fc.weight, atol=1e-12)


def test_complete_graph_reaches_the_average_in_one_round_and_equals_allreduce():
    complete, _ = simulate(*tiny("RUN.graph_type=complete", "RUN.rounds=2", algorithm="dpsgd"), torch.float64)
    reduced, _ = simulate(*tiny("RUN.rounds=2", algorithm="allreduce"), torch.float64)
    assert torch.allclose(complete.models, complete.models.mean(0).expand_as(complete.models), atol=1e-14)
    assert torch.allclose(complete.models, reduced.models, atol=1e-13)
    assert (reduced.models == reduced.models[0]).all()


@pytest.mark.parametrize("model", ["Convolution", "Normalized", "Dropping"])
def test_the_number_of_workers_changes_nothing(model):
    base, data = tiny(model=model)
    runs = []
    for workers in (1, 2, 4):
        experiment = replace(base, run=base.run.model_copy(update={"workers": workers}))
        runs.append(simulate(experiment, data))
    for simulation, rounds in runs[1:]:
        assert torch.equal(simulation.models, runs[0][0].models)
        assert rounds[-1].evaluation.consensus == runs[0][1][-1].evaluation.consensus
        assert (rounds[-1].evaluation.test.loss == runs[0][1][-1].evaluation.test.loss).all()


def test_dropout_is_seeded_by_node_and_round_and_really_drops():
    with_dropout, _ = simulate(*tiny(model="Dropping"))
    without, _ = simulate(*tiny(model="Linear"))
    assert not torch.equal(with_dropout.models, without.models)


def test_buffers_are_averaged_like_parameters():
    experiment, data = tiny("RUN.graph_type=complete", "RUN.rounds=1", model="Normalized")
    simulation, _ = simulate(experiment, data)
    means = next(s for s in simulation.layout.slots if s.name == "norm.running_mean").view(simulation.models)
    assert means.abs().sum() > 0
    assert torch.allclose(means, means[0].expand_as(means), atol=1e-6)


@pytest.mark.parametrize("algorithm", ["greedy", "skiptrain_constrained"])
def test_a_constrained_node_never_trains_more_than_tau_times(algorithm, tmp_path):
    trace = tmp_path / "trace.csv"
    trace.write_text("device,energy per training round [Wh],training rounds [rounds]\na,1,0\nb,2,1\nc,4,3\n")
    settings = [f"NODE.energy_traces={trace}", "RUN.rounds=12", "NODE.budget_horizon="]
    _, rounds = simulate(*tiny(*settings, algorithm=algorithm))
    trained = np.array([r.trained for r in rounds]).sum(0)
    assert (trained <= [0, 1, 3, 0, 1, 3]).all()
    assert rounds[-1].training_wh == pytest.approx(float(trained @ [1, 2, 4, 1, 2, 4]))


def test_energy_of_the_record_is_the_ledgers():
    experiment, data = tiny("RUN.rounds=6")
    _, rounds = simulate(experiment, data)
    assert [int(r.trained.sum()) for r in rounds] == [6, 6, 0, 6, 6, 0]
    assert rounds[-1].training_wh == pytest.approx(4 * experiment.wh_per_training_round.sum())
    assert rounds[0].bytes_sent.tolist() == [2 * 4 * experiment.architecture.parameters] * 6


def test_mean_over_nodes_is_preserved_by_synchronization():
    experiment, data = tiny("RUN.rounds=1", "RUN.graph_type=star", algorithm="dpsgd")
    simulation, _ = simulate(experiment, data, torch.float64)
    mean = simulation.models.mean(0).clone()
    simulation.mixer.mix(simulation.models, 5, _Serial())
    assert torch.allclose(simulation.models.mean(0), mean, atol=1e-14)


class _Serial:
    """An executor that runs everything at once."""

    def map(self, function, *items):
        return map(function, *items)


def test_training_learns():
    _, rounds = simulate(*tiny("RUN.rounds=12", model="Convolution"))
    assert rounds[-1].evaluation.test.accuracy.mean() > 80


def test_bf16_stays_close_and_keeps_float32_parameters():
    exact, _ = simulate(*tiny(model="Convolution"))
    coarse, _ = simulate(*tiny("RUN.precision=bf16", model="Convolution"))
    assert coarse.models.dtype is torch.float32
    assert not torch.equal(exact.models, coarse.models)
    assert torch.allclose(exact.models, coarse.models, atol=0.05)


@pytest.mark.parametrize("model", ["Linear", "Convolution", "Normalized", "Frozen"])
@pytest.mark.parametrize("optimizer", ["SGD", "Adam"])
@pytest.mark.parametrize("full_epochs", [False, True])
def test_batched_training_equals_threaded(model, optimizer, full_epochs):
    images = tiny_images(samples=250)
    experiment, data = tiny(
        f"OPTIMIZER_PARAMS.optimizer_class={optimizer}",
        "OPTIMIZER_PARAMS.lr=0.01",
        f"TRAIN_PARAMS.full_epochs={full_epochs}",
        "TRAIN_PARAMS.rounds=2",
        "DATASET.partition_niid=simple",
        model=model,
        images=images,
    )
    threaded = Simulation(experiment, data, torch.float64)
    batched = Simulation(experiment, data, torch.float64)
    batched.trainer = BatchedTrainer(experiment, data, batched.models, batched.layout)
    for simulation in (threaded, batched):
        assert simulation.run([])
        simulation.close()
    assert torch.allclose(threaded.models, batched.models, atol=1e-9)
    assert threaded.trainer.states.keys() == batched.trainer.states.keys()


def test_optimizer_state_is_kept_or_reset():
    momentum = "OPTIMIZER_PARAMS.momentum=0.9"
    kept, _ = simulate(*tiny(momentum))
    reset, _ = simulate(*tiny(momentum, "RUN.reset_optimizer=True"))
    plain, _ = simulate(*tiny())
    plain_reset, _ = simulate(*tiny("RUN.reset_optimizer=1"))
    assert not torch.equal(kept.models, reset.models)
    assert torch.equal(plain.models, plain_reset.models)
    assert len(kept.trainer.states) == 6
    assert not reset.trainer.states


def test_plain_average_sharing():
    settings = ["SHARING.sharing_class=PlainAverageSharing", "RUN.graph_type=star", "RUN.rounds=1"]
    experiment, data = tiny(*settings, algorithm="dpsgd")
    simulation, _ = simulate(experiment, data, torch.float64)
    expected = hand_written(experiment, data, 1, experiment.topology.uniform_weights.toarray())
    assert torch.allclose(simulation.layout.slots[0].view(simulation.models[3]), expected[3].fc.weight, atol=1e-12)


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("drop_last", [True, False])
def test_minibatches_are_those_of_a_dataloader_seeded_alike(shuffle, drop_last):
    data = TensorDataset(torch.arange(37))
    torch.manual_seed(1234567)
    loader = DataLoader(data, batch_size=8, shuffle=shuffle, drop_last=drop_last)
    expected = [batch[0].tolist() for _ in range(3) for batch in loader]
    per_pass = 4 if drop_last else 5
    options = {"batch_size": 8, "shuffle": shuffle, "drop_last": drop_last}
    ours = minibatches(1234567, 37, steps=3, full_epochs=True, **options)
    assert [indices.tolist() for indices in ours] == expected
    steps = list(minibatches(1234567, 37, steps=per_pass + 2, full_epochs=False, **options))
    assert [indices.tolist() for indices in steps] == expected[: per_pass + 2]


def test_too_few_samples_for_a_batch():
    with pytest.raises(InputError, match="7 training samples, too few for a minibatch of 8"):
        next(minibatches(1, 7, batch_size=8, steps=1, full_epochs=False, shuffle=True, drop_last=True))


def test_part_of_nodes_and_samples_is_fixed_and_recorded():
    experiment, data = tiny("RUN.eval_nodes=3", "RUN.eval_samples=20", "RUN.test_after=2")
    _, rounds = simulate(experiment, data)
    evaluated = [r.evaluation for r in rounds if r.evaluation]
    assert len(data.test) == 20
    assert [r.number for r in rounds if r.evaluation] == [2, 4, 5]
    assert {tuple(e.uids) for e in evaluated} == {tuple(evaluated[0].uids)}
    assert len(evaluated[0].uids) == 3
    assert len(evaluated[0].test.accuracy) == 3


def test_validation_and_test_sets_are_disjoint():
    _, data = tiny("RUN.validate=True")
    assert len(data.test) == len(data.validation) == 30
    rows = {bytes(x.numpy()) for x in data.test.x} & {bytes(x.numpy()) for x in data.validation.x}
    assert not rows


def test_diverging_training_names_node_and_round():
    with pytest.raises(
        RunError, match=r"diverged: the loss of node \d in round \d is (nan|inf).*smaller OPTIMIZER_PARAMS"
    ):
        simulate(*tiny("OPTIMIZER_PARAMS.lr=1e30", model="Convolution"))


def test_models_that_are_not_finite_after_the_last_step_are_found_by_the_evaluation():
    settings = ["OPTIMIZER_PARAMS.lr=1e30", "TRAIN_PARAMS.rounds=1", "RUN.test_after=1"]
    with pytest.raises(RunError, match=r"diverged: the loss of node \d in round 1 is"):
        simulate(*tiny(*settings, model="Convolution"))


def test_optimizer_arguments_may_be_tuples():
    settings = [
        "OPTIMIZER_PARAMS.optimizer_class=Adam",
        "OPTIMIZER_PARAMS.lr=0.01",
        "OPTIMIZER_PARAMS.betas=(0.5, 0.9)",
    ]
    simulation, _ = simulate(*tiny(*settings))
    assert simulation.trainer.make_optimizer([nn.Parameter(torch.zeros(1))]).defaults["betas"] == (0.5, 0.9)


BAD = {
    "optimizer": (["OPTIMIZER_PARAMS.optimizer_class=SDG"], "torch.optim has no class SDG"),
    "argument": (["OPTIMIZER_PARAMS.moment=1"], "SGD takes no 'moment'; allowed: lr, momentum"),
    "value": (["OPTIMIZER_PARAMS.momentum=-1"], "Invalid momentum value"),
    "closure": (["OPTIMIZER_PARAMS.optimizer_class=LBFGS"], "LBFGS cannot be used so"),
    "text": (["OPTIMIZER_PARAMS.momentum=0,9"], "SGD cannot be used so"),
    "labels": (["TRAIN_PARAMS.loss_class=MSELoss"], "MSELoss does not take class labels"),
    "package path": (["DATASET.model_package=./m.py"], "cannot import ./m.py"),
    "package": (["OPTIMIZER_PARAMS.optimizer_package=nowhere"], "cannot import nowhere"),
    "loss": (["TRAIN_PARAMS.loss_class=Nothing"], "torch.nn has no class Nothing"),
    "model": (["DATASET.model_class=Nothing"], "tests.tiny_models has no class Nothing"),
    "classes": (["DATASET.model_class=TwoClasses"], "gives (2,) numbers for an image; tiny images (generated) has 4"),
    "not a module": (["DATASET.model_package=decimal", "DATASET.model_class=Decimal"], "is not a torch.nn.Module"),
    "sharing": (["SHARING.sharing_class=Choco"], "not as Choco; use --engine decentralizepy"),
    "device": (["RUN.device=cuda"], "no CUDA device"),
    "samples": (["RUN.eval_samples=999"], "more than the 30 test samples"),
    "validation": (["DATASET.validation_source=", "RUN.validate=1"], "needs validation_source = Test"),
    "from train": (["DATASET.validation_source=Train"], "from Test only"),
}


@pytest.mark.parametrize("name", [name for name in BAD if name != "device" or not torch.cuda.is_available()])
def test_bad_settings_are_refused_before_anything_runs(name):
    settings, message = BAD[name]
    with pytest.raises(InputError) as error:
        Simulation(*tiny(*settings))
    assert message in str(error.value)


@pytest.mark.parametrize(("dataset", "model", "facts"), [("cifar", LeNet, LENET), ("femnist", CNN, CNN_FACTS)])
def test_model_facts_are_the_real_ones(dataset, model, facts):
    experiment = load(dataset=dataset)
    assert experiment.architecture == facts
    assert describe(experiment) == facts
    assert sum(p.numel() for p in model().parameters()) == facts.parameters


def test_pooling_before_relu_changes_neither_values_nor_gradients():
    torch.manual_seed(0)
    model, x = LeNet().double(), torch.randn(4, 3, 32, 32, dtype=torch.float64)

    def paper_order(x):
        pool = nn.MaxPool2d(2, 2)
        x = pool(torch.relu(model.gn1(model.conv1(x))))
        x = pool(torch.relu(model.gn2(model.conv2(x))))
        x = pool(torch.relu(model.gn3(model.conv3(x))))
        return model.fc1(x.flatten(1))

    gradients = []
    for forward in (model, paper_order):
        model.zero_grad()
        forward(x).square().sum().backward()
        gradients.append([p.grad.clone() for p in model.parameters()])
    assert torch.equal(model(x), paper_order(x))
    assert all(torch.allclose(a, b, rtol=1e-12, atol=1e-12) for a, b in zip(*gradients, strict=True))


def test_initial_weights_are_those_of_the_seed_alone():
    experiment, _ = tiny(model="Convolution")
    torch.manual_seed(experiment.dataset.random_seed)
    expected = tiny_models.Convolution().state_dict()
    torch.manual_seed(5)
    state = torch.get_rng_state()
    built = build_model(experiment).state_dict()
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(built[key], expected[key]) for key in expected)


def test_every_policy_of_the_paper_is_known():
    assert {"dpsgd", "allreduce", "greedy", "skiptrain", "skiptrain_constrained"} <= set(policy_names())
