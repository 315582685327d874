"""The bench: interleaved, repeated measurements and what they mean."""

from __future__ import annotations

import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from skiptrain_plugin.bench.subjects import Engine, Floor, Plain, bench_data, bench_experiment
from skiptrain_plugin.data import listing
from skiptrain_plugin.engine.memory import keep_freed_memory
from skiptrain_plugin.engine.mixing import Mixer
from skiptrain_plugin.engine.parameters import Layout
from skiptrain_plugin.engine.simulation import Simulation, worker_count
from skiptrain_plugin.errors import RunError
from skiptrain_plugin.kernels.selection import describe
from skiptrain_plugin.models import LeNet
from skiptrain_plugin.processor import cpuinfo

Report = Callable[[str], None]
PRECISIONS = ("fp32", "bf16")


def interleaved(subjects: Mapping[str, Callable[[], float]], repeats: int) -> dict[str, float]:
    """The median of each subject; the subjects take turns, so that a busy moment falls on all of them."""
    times: dict[str, list[float]] = {name: [] for name in subjects}
    for subject in subjects.values():
        subject()
    for _ in range(repeats):
        for name, subject in subjects.items():
            times[name].append(subject())
    return {name: statistics.median(values) for name, values in times.items()}


def measure(quick: bool, say: Report) -> dict[str, Any]:
    """Everything that ``skiptrain bench`` prints."""
    torch.set_num_threads(1)
    keep_freed_memory()
    cores = worker_count(bench_experiment(8, "fp32"))
    repeats, steps = (3, 10) if quick else (9, 20)
    plain, engines = Plain(cores), {name: Engine(name) for name in PRECISIONS}
    in_torch = {name: Engine(name, "torch") for name in PRECISIONS}
    floors = {"fp32": Floor(torch.float32, cores), "bf16": Floor(torch.bfloat16, cores)}
    try:
        say("local step of LeNet, batch 32")
        steps_of: dict[str, Callable[[], float]] = {"plain_ms": lambda: plain.seconds("step", steps) * 1e3}
        for name in PRECISIONS:
            steps_of[f"{name}_ms"] = partial(_step_ms, engines[name], steps)
            steps_of[f"floor_{name}_ms"] = partial(_step_ms, floors[name], steps)
            steps_of[f"torch_{name}_ms"] = partial(_step_ms, in_torch[name], steps)
        step = interleaved(steps_of, repeats)
        say("evaluation of a node on 10 000 images")
        evaluations: dict[str, Callable[[], float]] = {"plain_s": lambda: plain.seconds("evaluate")}
        for name in PRECISIONS:
            evaluations[f"{name}_s"] = engines[name].evaluation_seconds
            evaluations[f"torch_{name}_s"] = in_torch[name].evaluation_seconds
        evaluation = interleaved(evaluations, 1 if quick else 3)
    finally:
        plain.close()
        for engine in (*engines.values(), *in_torch.values()):
            engine.close()
    say("averaging at 256 nodes")
    mixing = measure_mixing(cores, repeats)
    say("start-up and memory")
    startup = measure_startup()
    memory = {name: peak_memory(name) for name in ("cifar_256", "femnist_256")}
    say("cost of a round by the number of nodes")
    sizes = (64, 256, 1024) if quick else (64, 256, 1024, 4096)
    return {
        "local_step": {key: value for key, value in step.items() if not key.startswith("torch_")},
        "evaluation": {key: value for key, value in evaluation.items() if not key.startswith("torch_")},
        "torch_kernels": {key[6:]: value for key, value in (step | evaluation).items() if key.startswith("torch_")},
        "mixing": mixing,
        "startup_s": startup,
        "peak_memory_mb": memory,
        "round_ms_per_node": measure_rounds(sizes),
        "machine": machine(cores),
        "quick": quick,
    }


def _step_ms(subject: Engine | Floor, steps: int) -> float:
    return subject.step_seconds(steps) * 1e3


def measure_mixing(cores: int, repeats: int) -> dict[str, float]:
    """Synchronization rounds a second at 256 nodes, and the share of the memory bandwidth that this uses."""
    experiment = bench_experiment(256, "fp32")
    layout = Layout(LeNet())
    models = torch.randn(256, layout.width)
    mixer = Mixer(experiment.topology.weights, models.dtype, models.device)
    pool = ThreadPoolExecutor(cores)
    source, target = np.ones(1 << 26, dtype=np.float32), np.empty(1 << 26, dtype=np.float32)

    def mix() -> float:
        start = time.perf_counter()
        mixer.mix(models, 1, pool)
        return time.perf_counter() - start

    def copy() -> float:
        parts = np.array_split(np.arange(len(source)), cores)
        start = time.perf_counter()
        list(pool.map(lambda p: np.copyto(target[p[0] : p[-1] + 1], source[p[0] : p[-1] + 1]), parts))
        return time.perf_counter() - start

    seconds = interleaved({"mix": mix, "copy": copy}, repeats)
    bandwidth = 2 * source.nbytes / seconds["copy"]
    moved = 2 * models.numel() * models.element_size() / seconds["mix"]
    return {
        "rounds_per_s": 1 / seconds["mix"],
        "of_bandwidth": moved / bandwidth,
        "bandwidth_gb_s": bandwidth / 1e9,
    }


def measure_startup(limit: float = 120) -> float:
    """Seconds from the command to the first round of the paper's CIFAR configuration, with cached data."""
    dataset = "cifar" if _present("cifar") else "synthetic"
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        command = [sys.executable, "-m", "skiptrain_plugin", "run", "--dataset", dataset, "--scale", "paper"]
        process = subprocess.Popen([*command, "--out", folder], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            while not (Path(folder) / "skiptrain" / "run.json").exists():
                if process.poll() is not None or time.perf_counter() - start > limit:
                    raise RunError("the run that measures start-up did not begin")
                time.sleep(0.01)
            return time.perf_counter() - start
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()


def peak_memory(name: str) -> float:
    """Peak memory in MB of a process that trains, averages and evaluates 256 nodes once."""
    shapes = {"cifar_256": "cifar" if _present("cifar") else "synthetic", "femnist_256": "glyphs"}
    command = [sys.executable, "-m", "skiptrain_plugin.bench.memory", shapes[name]]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RunError(f"the run that measures memory failed: {done.stderr.strip().splitlines()[-1:]}")
    return float(json.loads(done.stdout)["peak_mb"])


def measure_rounds(sizes: tuple[int, ...]) -> dict[str, float]:
    """Milliseconds a node of a round (one local step, sharing, averaging) for several numbers of nodes."""
    simulations = {n: Simulation(bench_experiment(n, "fp32", local_steps=1), bench_data(n, 64, 10)) for n in sizes}

    def round_ms(nodes: int) -> float:
        simulation = simulations[nodes]
        start = time.perf_counter()
        simulation.trainer.train(range(nodes), 0, lambda: False)
        simulation.mixer.mix(simulation.models, 1, simulation.pool)
        return (time.perf_counter() - start) * 1e3 / nodes

    subjects = {str(n): partial(round_ms, n) for n in sizes}
    try:
        return interleaved(subjects, 3)
    finally:
        for simulation in simulations.values():
            simulation.close()


def machine(cores: int) -> dict[str, Any]:
    """What the figures were obtained on."""
    return {
        "processor": cpuinfo("model name") or platform.processor(),
        "cores": cores,
        "memory_gb": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "kernels": describe("auto"),
        "amx": "amx_bf16" in _flags(),
        "avx512_bf16": "avx512_bf16" in _flags(),
    }


def _present(dataset: str) -> bool:
    return any(one.present for one in listing() if one.name == dataset)


def _flags() -> set[str]:
    return set(cpuinfo("flags").split())
