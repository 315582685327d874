"""The in-memory stand-in, datasets and models against the real DecentralizePy; a published INI on its own classes."""

from __future__ import annotations

import inspect
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from skiptrain_plugin import framework
from skiptrain_plugin.deployment.plan import Flags, from_flags
from skiptrain_plugin.results.record import Run
from tests import framework_problems as stand_in

pytestmark = pytest.mark.skipif(not framework.installed(), reason=framework.MISSING)


def real_classes():
    from decentralizepy.communication.TCP import TCP
    from decentralizepy.node.DPSGDNode import DPSGDNode
    from decentralizepy.sharing.Sharing import Sharing
    from decentralizepy.training.Training import Training

    from skiptrain_plugin.torchvision_fix import import_torchvision

    import_torchvision()
    from decentralizepy.datasets.CIFAR10 import CIFAR10

    return {
        stand_in.MemoryCommunication: TCP,
        stand_in.MemoryBase: DPSGDNode,
        stand_in.MemorySharingBase: Sharing,
        stand_in.MemoryTrainer: Training,
        stand_in.MemoryDataset: CIFAR10,
    }


def test_the_stand_in_has_the_signatures_of_the_framework():
    for memory, real in real_classes().items():
        for name, method in vars(memory).items():
            if name.startswith("_") or not callable(method):
                continue
            ours = list(inspect.signature(method).parameters)
            theirs = inspect.signature(getattr(real, name)).parameters
            assert ours == list(theirs)[: len(ours)], (memory, name)
            further = list(theirs.values())[len(ours) :]
            assert all(parameter.default is not parameter.empty for parameter in further), (memory, name)


def test_the_framework_calls_what_the_plugin_overrides():
    from decentralizepy.node.DPSGDNode import DPSGDNode

    from skiptrain_plugin.node import SkipTrainNode

    for name in ("run", "get_neighbors", "connect_neighbors", "disconnect_neighbors", "instantiate", "init_comm"):
        ours = list(inspect.signature(getattr(SkipTrainNode, name)).parameters)
        assert ours == list(inspect.signature(getattr(DPSGDNode, name)).parameters), name


def test_models_have_names_and_initial_weights_of_the_framework():
    from skiptrain_plugin.torchvision_fix import import_torchvision

    import_torchvision()
    from decentralizepy.datasets import CIFAR10 as cifar
    from decentralizepy.datasets import Femnist as femnist

    from skiptrain_plugin import datasets

    femnist_module = sys.modules["decentralizepy.datasets.Femnist"]
    assert femnist is not None
    for ours, theirs in ((datasets.LeNet, cifar.LeNet), (datasets.CNN, femnist_module.CNN)):
        torch.manual_seed(5)
        one = ours().state_dict()
        torch.manual_seed(5)
        two = theirs().state_dict()
        assert list(one) == list(two)
        assert all(torch.equal(one[name], two[name]) for name in two)


WRITERS, TRAIN, TEST = 8, 40, 6


def leaf_folders(folder: Path) -> tuple[Path, Path]:
    """FEMNIST in LEAF's form: eight writers, a file each, and one test file."""
    rng = np.random.default_rng(2)

    def samples(count: int) -> dict[str, list]:
        return {"x": (rng.integers(0, 256, (count, 784)) / 255).tolist(), "y": rng.integers(0, 62, count).tolist()}

    train, test = folder / "FEMNIST" / "8_clients", folder / "FEMNIST" / "test"
    for place in (train, test):
        place.mkdir(parents=True)
    names = [f"f{number:04d}" for number in range(WRITERS)]
    for name in names:
        content = {"users": [name], "num_samples": [TRAIN], "user_data": {name: samples(TRAIN)}}
        (train / f"{name}.json").write_text(json.dumps(content))
    held = {"users": names, "num_samples": [TEST] * WRITERS, "user_data": {name: samples(TEST) for name in names}}
    (test / "test.json").write_text(json.dumps(held))
    return train, test


def test_femnist_is_dealt_and_split_as_by_the_framework(tmp_path, monkeypatch):
    from decentralizepy.datasets.Femnist import Femnist as theirs
    from decentralizepy.mappings.Linear import Linear

    from skiptrain_plugin.datasets import Femnist as ours

    monkeypatch.setenv("SKIPTRAIN_DATA", str(tmp_path / "cache"))
    train, test = leaf_folders(tmp_path)
    options = {"train_dir": str(train), "test_dir": str(test), "validation_source": "Test", "validation_size": 0.5}
    for rank in range(WRITERS):
        made = []
        for kind in (theirs, ours):
            np.random.seed(9)
            made.append(kind(rank, 0, Linear(1, WRITERS), 9, **options))
        for get in ("get_trainset", "get_testset", "get_validationset"):
            for (one_x, one_y), (two_x, two_y) in zip(*(getattr(dataset, get)() for dataset in made), strict=True):
                assert torch.equal(one_x, two_x)
                assert torch.equal(one_y, two_y)


PUBLISHED = """
[DATASET]
dataset_package = decentralizepy.datasets.Femnist
dataset_class = Femnist
model_class = CNN
train_dir = ../eval/data/FEMNIST/8_clients/
test_dir = ../eval/data/FEMNIST/test/
; python list of fractions below
sizes =
random_seed = 1234
validation_size = 0.5

[OPTIMIZER_PARAMS]
optimizer_package = torch.optim
optimizer_class = SGD
lr = 0.1

[TRAIN_PARAMS]
training_package = decentralizepy.training.Training
training_class = Training
rounds = 7
full_epochs = False
batch_size = 16
shuffle = True
loss_package = torch.nn
loss_class = CrossEntropyLoss

[COMMUNICATION]
comm_package = decentralizepy.communication.TCP
comm_class = TCP
addresses_filepath = ip.json

[SHARING]
sharing_package = decentralizepy.sharing.Sharing
sharing_class = Sharing

[NODE]
algorithm = skiptrain_constrained
averaging = Metro-Hasting
consecutive_training_rounds = 1
consecutive_synching_rounds = 2
energy_traces = Energy_traces_Femnist.csv
"""


def test_an_ini_of_the_authors_runs_on_the_frameworks_own_femnist(tmp_path, monkeypatch):
    from skiptrain_plugin import launcher

    leaf_folders(tmp_path / "eval" / "data")
    tutorial = tmp_path / "tutorial"
    tutorial.mkdir()
    (tutorial / "config.ini").write_text(PUBLISHED)
    (tutorial / "ip.json").write_text('{"0": "localhost"}')
    (tutorial / "graph.txt").write_text("8\n" + "".join(f"{i} {(i + 1) % 8}\n" for i in range(8)))
    (tutorial / "Energy_traces_Femnist.csv").write_text(
        "Device Name,Energy (Wh),Number of training rounds\nA,0.02,413\nB,0.01,0\n"
    )
    monkeypatch.chdir(tutorial)
    flags = Flags(Path("config.ini"), 0, 1, 8, Path("graph.txt"), "edges", 4, 2, 2, 0)
    outcome = launcher.launch(from_flags(flags), launcher.Launch(tmp_path / "run", tmp_path / "run"))
    assert outcome.failures == [], outcome.failures[0]
    run = Run(tmp_path / "run")
    assert [line["trained"] for line in run.rounds] == [4, 0, 0, 4], "device B has no budget"
    assert run.rounds[-1]["training_wh"] == pytest.approx(8 * 0.02)
    assert [line["round"] for line in run.evaluations] == [2, 4]
    assert (tmp_path / "run" / "3_weight_7.pt").exists()
    results = json.loads((tmp_path / "run" / "7_results.json").read_text())
    assert set(results["remaining_training_rounds"].values()) == {0}
