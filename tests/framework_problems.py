"""Small deployments for the plugin's tests: an in-memory stand-in for DecentralizePy, and data for the real one."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import pickle
import queue
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn

from skiptrain_plugin import framework
from skiptrain_plugin.deployment.averaging import MetropolisAveraging
from skiptrain_plugin.deployment.flat import to_vector
from skiptrain_plugin.deployment.link import Link
from skiptrain_plugin.deployment.rounds import RoundLoop
from skiptrain_plugin.deployment.settings import node_settings
from tests.problems import tiny_images

RECORD_FOLDER = "SKIPTRAIN_TEST_MODELS"
"""Environment variable: where the test dataset of a node's process leaves each model that it evaluates."""


def tiny_ini(algorithm: str = "skiptrain", rounds: int = 8, **run: Any) -> str:
    """Eight nodes on tiny images, two local steps of eight samples per training round.

    Energy is that of a model as large as it takes for |x| · |ξ| · E to be the paper's on CIFAR-10, so that budgets are.
    """
    keys = {"nodes": 8, "degree": 3, "rounds": rounds, "test_after": 4} | run
    return f"""
[DATASET]
dataset_package = tests.framework_problems
dataset_class = Synthetic
model_package = tests.tiny_models
model_class = Convolution
random_seed = 11
partition_niid = kshard
shards = 2

[OPTIMIZER_PARAMS]
lr = 0.1

[TRAIN_PARAMS]
rounds = 2
batch_size = 8
shuffle = True

[SHARING]
sharing_package = skiptrain_plugin.sharing
sharing_class = SkipTrainSharing

[NODE]
algorithm = {algorithm}
consecutive_training_rounds = 2
consecutive_synching_rounds = 2
energy_traces = cifar.csv
budget_horizon = 1000

[ENERGY]
parameters = 3593360

[RUN]
""" + "".join(f"{key} = {value}\n" for key, value in keys.items())


# An in-memory stand-in for what the plugin uses of the framework.


class MemoryNetwork:
    """One mailbox a node; a node in ``mute`` says nothing to anybody."""

    def __init__(self, nodes: int) -> None:
        self.boxes: list[queue.Queue[tuple[int, dict[str, Any]]]] = [queue.Queue() for _ in range(nodes)]
        self.mute: set[int] = set()


class MemoryCommunication:
    """The framework's Communication without sockets."""

    def __init__(self, uid: int, network: MemoryNetwork) -> None:
        self.uid, self.network = uid, network
        self.total_bytes = 0
        self._connected: set[int] = set()

    def init_connection(self, neighbor):
        self._connected.add(neighbor)

    def already_connected(self, neighbor):
        return neighbor in self._connected

    def destroy_connection(self, neighbor, linger=None):
        self._connected.discard(neighbor)

    def send(self, uid, data):
        if self.uid not in self.network.mute:
            self.network.boxes[uid].put((self.uid, dict(data)))
        self.total_bytes += 4 * len(data["params"]) if "params" in data else 0

    def receive(self, block=True):
        try:
            return self.network.boxes[self.uid].get(timeout=None if block else 0.01)
        except queue.Empty:
            return None

    def terminate(self):
        return


class MemorySharingBase:
    """What the plugin uses of the framework's Sharing."""

    def __init__(self, uid: int, graph: Any, model: nn.Module) -> None:
        self.uid, self.graph, self.model = uid, graph, model
        self.communication_round = 0

    def compress_data(self, data):
        return dict(data)

    def decompress_data(self, data):
        return data


class MemorySharing(MetropolisAveraging, MemorySharingBase):
    """The plugin's averaging on the stand-in."""


class MemoryTrainer:
    """Moves the model halfway to the node's own number: x ← x + (uid − x)/2."""

    def __init__(self, uid: int, model: nn.Module) -> None:
        self.uid, self.model, self.calls = uid, model, 0

    def train(self, dataset):
        self.calls += 1
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter += (self.uid - parameter) / 2

    def eval_loss(self, dataset):
        return 0.5

    def reset_optimizer(self, optimizer):
        self.optimizer = optimizer


class MemoryDataset:
    """Counts how often it is asked."""

    def __init__(self) -> None:
        self.__testing__, self.__validating__ = True, False

    def test(self, model, loss):
        return float(to_vector(model).mean()), 1.0

    def validate(self, model, loss):
        raise AssertionError("there is no validation set")


class MemoryBase:
    """What the plugin uses of the framework's DPSGDNode."""

    def connect_neighbor(self, neighbor):
        self.communication.init_connection(neighbor)
        self.communication.send(neighbor, {"HELLO": self.uid, "CHANNEL": "CONNECT"})


class MemoryNode(RoundLoop, MemoryBase):
    """A SkipTrain node without the framework."""

    def __init__(
        self,
        uid: int,
        network: MemoryNetwork,
        neighbors: list[set[int]],
        folder: Path,
        config: dict[str, dict[str, Any]],
        rounds: int = 8,
        test_after: int = 4,
        link: Link | None = None,
        deadline: float = 20.0,
        start: float = 1.0,
    ) -> None:
        nodes = len(neighbors)
        self.graph = SimpleNamespace(n_procs=nodes, neighbors=lambda node: neighbors[node])
        self.mapping = SimpleNamespace(get_n_procs=lambda: nodes)
        degree = float(np.mean([len(n) for n in neighbors]))
        self.prepare(node_settings(config, uid, nodes, degree, rounds), link)
        self.uid = self.rank = uid
        self.iterations, self.test_after, self.train_evaluate_after, self.reset_optimizer = rounds, test_after, 0, 0
        self.log_dir = self.weights_store_dir = str(folder)
        self.model = nn.Linear(3, 1)
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.fill_(start)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.trainer, self.dataset, self.loss = MemoryTrainer(uid, self.model), MemoryDataset(), None
        self.communication = MemoryCommunication(uid, network)
        self.sharing = MemorySharing(uid, self.graph, self.model)
        self.sharing.set_deadline(deadline)
        self.connect_neighbors()


def config(algorithm: str = "skiptrain", training: int = 2, sync: int = 2, **run: Any) -> dict[str, dict[str, Any]]:
    """What a node reads."""
    return {
        "DATASET": {"dataset_class": "Synthetic", "random_seed": 3},
        "TRAIN_PARAMS": {"rounds": 20, "batch_size": 32},
        "NODE": {
            "algorithm": algorithm,
            "consecutive_training_rounds": training,
            "consecutive_synching_rounds": sync,
            "energy_traces": "cifar.csv",
            "budget_horizon": 1000,
        },
        "RUN": run,
    }


def ring(nodes: int) -> list[set[int]]:
    return [{(uid - 1) % nodes, (uid + 1) % nodes} for uid in range(nodes)]


def run_nodes(makers: list[Any], seconds: float = 30.0) -> list[MemoryNode]:
    """Builds and runs each node in a thread of its own; what one raises is raised here."""
    nodes: dict[int, MemoryNode] = {}
    errors: list[BaseException] = []

    def life(index: int, make: Any) -> None:
        try:
            nodes[index] = make()
            nodes[index].run()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=life, args=(index, make), daemon=True) for index, make in enumerate(makers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds)
        assert not thread.is_alive(), "a node hangs"
    if errors:
        raise errors[0]
    return [nodes[index] for index in sorted(nodes)]


if framework.installed():
    from skiptrain_plugin.datasets import ImageDataset

    class Synthetic(ImageDataset):
        """Tiny images as a dataset of the framework; may record the models it evaluates."""

        name = "synthetic"
        _evaluations = 0

        def load_images(self):
            return tiny_images()

        def test(self, model, loss):
            self._evaluations += 1
            if os.environ.get(RECORD_FOLDER) and multiprocessing.parent_process() is not None:
                place = Path(os.environ[RECORD_FOLDER]) / f"{self._evaluations}-{self.uid}.npy"
                np.save(place, to_vector(model))
            return super().test(model, loss)

    from decentralizepy.models.Model import Model

    from tests import tiny_models

    class Convolution(tiny_models.Convolution, Model):
        """A tiny model that JWINS can keep its notes in."""


# Data files for the framework's own CIFAR10 class.


def write_cifar_batches(folder: Path, samples: int = 20) -> dict[str, str]:
    """A tiny ``cifar-10-batches-py`` in torchvision's format: five training batches and a test batch of ``samples``.

    Returns, for ``as_official``, the md5 of each file → the one that torchvision expects in its place.
    """
    from skiptrain_plugin.torchvision_fix import import_torchvision

    official = import_torchvision().datasets.CIFAR10
    place = folder / official.base_folder
    place.mkdir(parents=True)
    rng, known = np.random.default_rng(0), {}
    for name, md5 in (*official.train_list, *official.test_list):
        y = [int(label) for label in np.arange(samples) % 10]
        x = rng.integers(0, 200, (samples, 3072), dtype=np.uint8) + 5 * np.array(y, dtype=np.uint8)[:, None]
        (place / name).write_bytes(pickle.dumps({"data": x, "labels": y}))
        known[hashlib.md5((place / name).read_bytes()).hexdigest()] = md5
    meta = official.meta
    (place / meta["filename"]).write_bytes(pickle.dumps({meta["key"]: [f"class {label}" for label in range(10)]}))
    known[hashlib.md5((place / meta["filename"]).read_bytes()).hexdigest()] = meta["md5"]
    return known


def as_official(known: dict[str, str], folder: Path) -> Path:
    """A folder for PYTHONPATH with which a process takes the tiny files for the official ones; nothing else differs."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(
        f"""
import hashlib

known, plain = {known!r}, hashlib.md5


class Md5:
    def __init__(self, *arguments, **options):
        self._hash = plain(*arguments, **options)
        self.update, self.digest = self._hash.update, self._hash.digest

    def hexdigest(self):
        return known.get(self._hash.hexdigest(), self._hash.hexdigest())


hashlib.md5 = Md5
"""
    )
    return folder
