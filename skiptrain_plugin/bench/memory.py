"""``python -m skiptrain_plugin.bench.memory DATASET``: one round of 256 nodes, then the peak memory as JSON."""

from __future__ import annotations

import json
import resource
import sys
from pathlib import Path

from skiptrain_plugin.engine.node_data import load_node_data
from skiptrain_plugin.engine.simulation import Simulation
from skiptrain_plugin.experiment.experiment import load


def main(dataset: str) -> None:
    """Trains one local step on every node, averages, evaluates all nodes on a few samples."""
    settings = ["TRAIN_PARAMS.rounds=1", "RUN.rounds=1", "RUN.eval_samples=100"]
    experiment = load(dataset=dataset, scale="paper", settings=settings)
    simulation = Simulation(experiment, load_node_data(experiment, progress=False))
    simulation.run([])
    simulation.close()
    print(json.dumps({"peak_mb": peak_mb()}))


def peak_mb() -> float:
    """The largest resident size of this process so far, MB (where the kernel tells it; it counts from exec on)."""
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text(encoding="ascii").splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024 / 1e6
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


if __name__ == "__main__":
    main(sys.argv[1])
