"""What is measured: the plain way, the engine, and the floor, each as 'run k steps on every core, take the time'."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from skiptrain_plugin.data.base import ImageData
from skiptrain_plugin.engine.node_data import NodeData, Samples
from skiptrain_plugin.engine.simulation import Simulation
from skiptrain_plugin.engine.training import ThreadedTrainer
from skiptrain_plugin.experiment.experiment import Experiment, load
from skiptrain_plugin.torchvision_fix import import_torchvision

BATCH, EVALUATED = 32, 10_000
NODE_SAMPLES = 195
"""Samples of a node in the paper's CIFAR-10 set-up."""

_CONVOLUTIONS = ((3, 32, 32, False), (32, 32, 16, True), (32, 64, 8, True))
"""Input channels, output channels, image side, and whether the input's gradient is needed."""


def images(count: int) -> tuple[Tensor, Tensor]:
    """Random images (N×H×W×C, uint8) and labels of CIFAR-10's shape."""
    source = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (count, 32, 32, 3), dtype=torch.uint8, generator=source)
    return x, torch.randint(0, 10, (count,), generator=source)


class PaperLeNet(nn.Module):
    """The paper's LeNet written the plain way: ReLU, then pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.gn1 = nn.Conv2d(3, 32, 5, padding="same"), nn.GroupNorm(2, 32)
        self.conv2, self.gn2 = nn.Conv2d(32, 32, 5, padding="same"), nn.GroupNorm(2, 32)
        self.conv3, self.gn3 = nn.Conv2d(32, 64, 5, padding="same"), nn.GroupNorm(2, 64)
        self.pool, self.fc1 = nn.MaxPool2d(2, 2), nn.Linear(1024, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of a batch of images."""
        x = self.pool(F.relu(self.gn1(self.conv1(x))))
        x = self.pool(F.relu(self.gn2(self.conv2(x))))
        x = self.pool(F.relu(self.gn3(self.conv3(x))))
        out: Tensor = self.fc1(x.flatten(1))
        return out


class _Pictures(Dataset[tuple[Tensor, int]]):
    """Images converted one by one when asked for, as torchvision's CIFAR10 with a transform does."""

    def __init__(self, count: int) -> None:
        from torchvision import transforms

        x, y = images(count)
        self._x, self._y = x.numpy(), y.tolist()
        half = (0.5, 0.5, 0.5)
        self._transform = transforms.Compose([transforms.ToTensor(), transforms.Normalize(half, half)])

    def __len__(self) -> int:
        return len(self._y)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self._transform(Image.fromarray(self._x[index])), self._y[index]


def _plain_process(pipe: Connection) -> None:
    """One core, one thread, the plain way; obeys ("step", count) and ("evaluate", count) and answers seconds."""
    torch.set_num_threads(1)
    import_torchvision()
    model, loss = PaperLeNet(), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = images(NODE_SAMPLES)
    data = TensorDataset((x.permute(0, 3, 1, 2).float() / 255 - 0.5) / 0.5, y)
    pictures = _Pictures(EVALUATED)
    while True:
        what, count = pipe.recv()
        start = time.perf_counter()
        if what == "step":
            _plain_steps(model, optimizer, loss, data, count)
        elif what == "evaluate":
            _plain_evaluation(model, loss, pictures)
        else:
            return
        pipe.send(time.perf_counter() - start)


def _plain_steps(model: nn.Module, optimizer: Any, loss: nn.Module, data: TensorDataset, count: int) -> None:
    model.train()
    done, total = 0, 0.0
    while done < count:
        for x, y in DataLoader(data, batch_size=BATCH, shuffle=True):
            model.zero_grad()
            value = loss(model(x), y)
            value.backward()
            optimizer.step()
            total += value.item()
            done += 1
            if done == count:
                break


def _plain_evaluation(model: nn.Module, loss: nn.Module, data: Dataset[tuple[Tensor, int]]) -> float:
    model.eval()
    correct, total = 0, 0
    with torch.no_grad():
        for x, y in DataLoader(data, batch_size=1024):
            output = model(x)
            loss(output, y).item()
            for label, prediction in zip(y, output.argmax(1), strict=True):
                correct += int(label == prediction)
                total += 1
    return correct / total


class Plain:
    """The plain way: one process a core."""

    def __init__(self, cores: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipes, self._processes = [], []
        for _ in range(cores):
            here, there = context.Pipe()
            process = context.Process(target=_plain_process, args=(there,), daemon=True)
            process.start()
            self._pipes.append(here)
            self._processes.append(process)

    def seconds(self, what: str, count: int = 1) -> float:
        """Wall time of one step (or one node's evaluation) with every core busy, divided among the cores."""
        for pipe in self._pipes:
            pipe.send((what, count))
        times: list[float] = [pipe.recv() for pipe in self._pipes]
        return sum(times) / len(times) / count / len(times)

    def close(self) -> None:
        """Ends the processes."""
        for pipe, process in zip(self._pipes, self._processes, strict=True):
            pipe.send(("end", 0))
            process.join(10)


def bench_data(nodes: int, samples: int, tests: int) -> NodeData:
    """Random data of CIFAR-10's shape: every node has the same ``samples`` images."""
    x, y = images(samples)
    test_x, test_y = images(tests)
    empty = np.zeros((0, 32, 32, 3), dtype=np.uint8)
    labels = np.zeros(0, dtype=np.uint8)
    source = ImageData(
        "synthetic", "random images", True, "bench", "", 10, empty, labels, empty, labels, None, (), 0.5, 0.5, False
    )
    return NodeData(source, [Samples(x, y)] * nodes, Samples(test_x, test_y), None)


def bench_experiment(nodes: int, precision: str, local_steps: int = 20, kernels: str = "auto") -> Experiment:
    """The paper's CIFAR set-up with another number of nodes, on random images, training in every round."""
    return load(
        dataset="synthetic",
        scale="paper",
        degree=6,
        settings=[
            f"RUN.nodes={nodes}",
            f"RUN.precision={precision}",
            f"RUN.kernels={kernels}",
            f"TRAIN_PARAMS.rounds={local_steps}",
            "NODE.algorithm=dpsgd",
        ],
    )


class Engine:
    """The embedded engine with one precision and kernel, on random images."""

    def __init__(self, precision: str, kernels: str = "auto") -> None:
        experiment = bench_experiment(8, precision, kernels=kernels)
        self._simulation = Simulation(experiment, bench_data(8, NODE_SAMPLES, EVALUATED))
        self._trainer = self._simulation.trainer
        assert isinstance(self._trainer, ThreadedTrainer)

    def step_seconds(self, count: int) -> float:
        """Wall time of a local step with every core busy, divided among the cores."""
        assert isinstance(self._trainer, ThreadedTrainer)
        return self._trainer.seconds_per_step(count)

    def evaluation_seconds(self) -> float:
        """Wall time of evaluating one node on 10 000 images, with every core busy, divided among the cores."""
        workers = self._simulation.workers
        start = time.perf_counter()
        self._simulation.evaluator.evaluate_few(workers)
        return (time.perf_counter() - start) / workers

    def close(self) -> None:
        """Ends the worker threads."""
        self._simulation.close()


class Floor:
    """The three convolutions and the linear layer alone, forward and backward, channels_last, on every core."""

    def __init__(self, dtype: torch.dtype, cores: int) -> None:
        self._pool = ThreadPoolExecutor(cores)
        self._cores = cores
        self._work = [self._make(dtype) for _ in range(cores)]

    def _make(self, dtype: torch.dtype) -> list[Callable[[], Any]]:
        last = torch.channels_last
        work = []
        for channels, out, side, needs_input in _CONVOLUTIONS:
            x = torch.randn(BATCH, channels, side, side).to(dtype, memory_format=last).requires_grad_(needs_input)
            weight = torch.randn(out, channels, 5, 5).to(dtype, memory_format=last).requires_grad_()
            bias = torch.zeros(out, dtype=dtype, requires_grad=True)
            gradient = torch.randn(BATCH, out, side, side).to(dtype, memory_format=last)
            work.append(_convolution(x, weight, bias, gradient))
        x = torch.randn(BATCH, 1024).to(dtype).requires_grad_()
        weight = torch.randn(10, 1024).to(dtype).requires_grad_()
        bias = torch.zeros(10, dtype=dtype, requires_grad=True)
        work.append(_linear(x, weight, bias, torch.randn(BATCH, 10).to(dtype)))
        return work

    def step_seconds(self, count: int) -> float:
        """Wall time of one pass through all layers with every core busy, divided among the cores."""

        def one(work: list[Callable[[], Any]]) -> float:
            start = time.perf_counter()
            for _ in range(count):
                for layer in work:
                    layer()
            return (time.perf_counter() - start) / count

        return sum(self._pool.map(one, self._work)) / self._cores / self._cores


def _convolution(x: Tensor, weight: Tensor, bias: Tensor, gradient: Tensor) -> Callable[[], Any]:
    wanted = [weight, bias, x] if x.requires_grad else [weight, bias]
    return lambda: torch.autograd.grad(F.conv2d(x, weight, bias, padding=2), wanted, gradient)


def _linear(x: Tensor, weight: Tensor, bias: Tensor, gradient: Tensor) -> Callable[[], Any]:
    return lambda: torch.autograd.grad(F.linear(x, weight, bias), [weight, bias, x], gradient)
