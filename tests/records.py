"""Hand-written records of runs: real decisions and energies, accuracies by a formula known to the tests."""

from __future__ import annotations

from pathlib import Path

from skiptrain_plugin.energy.ledger import COMMUNICATION_WH_PER_BYTE
from skiptrain_plugin.experiment.experiment import load
from skiptrain_plugin.experiment.plan import bytes_per_round
from skiptrain_plugin.results.record import FINISHED, INTERRUPTED, RunDirectory, encode_mask

DIGEST = "ab" * 32


def accuracy(algorithm: str, number: int, trained: float, degree: int = 6) -> float:
    """The made-up test accuracy after round ``number``, percent; ``trained`` is the mean of training rounds so far."""
    lift = {"skiptrain": 8.0, "skiptrain_constrained": 9.0, "allreduce": 10.0, "greedy": 1.0}.get(algorithm, 0.0)
    return round(10 + lift + 40 * (1 - 0.97**trained) + 0.01 * number + 0.1 * degree, 4)


def around(mean: float, deviation: float, nodes: int) -> list[float]:
    """Values of an even number of nodes with this mean and standard deviation."""
    return [mean + deviation * (-1) ** uid for uid in range(nodes)]


def write_record(
    folder: Path,
    algorithm: str,
    *,
    degree: int = 6,
    gammas: tuple[int, int] | None = None,
    nodes: int = 16,
    rounds: int = 24,
    dataset: str = "cifar",
    title: str = "CIFAR-10",
    settings: list[str] | tuple[str, ...] = (),
    stop: int | None = None,
    average_model: bool = True,
    info: dict | None = None,
):
    """Writes the record of a run that ended after ``stop`` rounds (None: finished); returns its experiment."""
    chosen = [f"RUN.rounds={rounds}", f"RUN.nodes={nodes}", *settings]
    if gammas is not None:
        chosen.append(f"NODE.consecutive_training_rounds={gammas[0]}")
        chosen.append(f"NODE.consecutive_synching_rounds={gammas[1]}")
    experiment = load(dataset=dataset, degree=degree, settings=chosen, algorithm=algorithm)
    data = {"title": title, "generated": dataset in ("glyphs", "synthetic"), "sha256": DIGEST}
    data |= {"source": "tests", "test_samples": 1000, "evaluated_nodes": nodes}
    directory = RunDirectory(folder)
    directory.begin(experiment, {"engine": "embedded", "data": data} | (info or {}))
    policy, cost = experiment.policy(), experiment.wh_per_training_round
    energy = trained = 0.0
    sent = bytes_per_round(experiment)
    lines, details = directory.writers()
    with lines, details:
        for index, (_, trains) in enumerate(policy.replay(stop or rounds)):
            number = index + 1
            energy += float(trains @ cost)
            trained += float(trains.mean())
            line = {"round": number, "kind": policy.kind(index).value, "trained": int(trains.sum())}
            line |= {"training_wh": energy, "communication_wh": float(sent.sum()) * number * COMMUNICATION_WH_PER_BYTE}
            values = {"round": number, "trained": encode_mask(trains), "bytes": sent.tolist()}
            if number % experiment.test_after == 0 or number == rounds:
                value = accuracy(algorithm, number, trained, degree)
                spread = 3.0 if trains.any() else 0.5
                line |= {"test_acc_mean": value, "test_acc_std": spread, "test_loss_mean": 1.5}
                values |= {
                    "uids": list(range(nodes)),
                    "test_acc": around(value, spread, nodes),
                    "test_loss": [1.5] * nodes,
                }
                if average_model:
                    line |= {"mean_model_test_acc": value + 5, "consensus": 1.0}
                if experiment.run.validate_models:
                    line["validation_acc_mean"] = value + 1
                    values["validation_acc"] = around(value + 1, 1.0, nodes)
            details.append(values)
            lines.append(line)
    directory.info["status"] = INTERRUPTED if stop else FINISHED
    directory.info["completed_rounds"] = stop or rounds
    directory.info["wall_seconds"] = {"train": 3.0, "evaluate": 1.5}
    directory.write_info()
    directory.close()
    return experiment


def constrained_set(root: Path) -> None:
    """All five algorithms on two topologies; D-PSGD and Greedy are evaluated in every round."""
    for degree in (6, 8):
        for algorithm in ("dpsgd", "allreduce", "skiptrain", "greedy", "skiptrain_constrained"):
            every = ["RUN.test_after=1"] if algorithm in ("dpsgd", "greedy") else []
            write_record(root / f"{degree}-{algorithm}", algorithm, degree=degree, settings=every)


def grid_set(root: Path) -> None:
    """A grid of Γ_train and Γ_sync from 1 to 2 on two topologies with validation."""
    for degree in (6, 8):
        for training in (1, 2):
            for synching in (1, 2):
                write_record(
                    root / f"{degree}-{training}-{synching}",
                    "skiptrain",
                    degree=degree,
                    gammas=(training, synching),
                    rounds=12,
                    settings=["RUN.validate=True", "RUN.test_after=12"],
                )
