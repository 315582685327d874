"""The same experiment on DecentralizePy and on the embedded engine gives the same numbers.

``fixtures/framework_parity.json`` holds a run of the real framework; ``python -m tests.test_plugin_parity`` makes it
anew where the framework is installed.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import numpy as np
import pytest

from skiptrain_plugin import framework
from skiptrain_plugin.engine.node_data import node_data
from skiptrain_plugin.engine.simulation import Simulation
from skiptrain_plugin.experiment.experiment import Experiment, load
from skiptrain_plugin.results.record import decode_mask, encode_mask
from tests.framework_problems import RECORD_FOLDER, tiny_ini
from tests.problems import tiny_images

FIXTURE = Path(__file__).parent / "fixtures" / "framework_parity.json"
ALGORITHMS = ("dpsgd", "allreduce", "greedy", "skiptrain", "skiptrain_constrained")
ROUNDS, NODES, SAMPLES = 8, 8, 6
TOLERANCE = 1e-4
FRAMEWORK_SHARING = "sharing_package = decentralizepy.sharing.Sharing\nsharing_class = Sharing"
OWN_SHARING = "sharing_package = skiptrain_plugin.sharing\nsharing_class = SkipTrainSharing"


def experiment(algorithm: str, folder: Path, sharing: str = OWN_SHARING) -> Experiment:
    path = folder / f"{algorithm}.ini"
    path.write_text(tiny_ini(algorithm, ROUNDS, test_after=1, seed=5).replace(OWN_SHARING, sharing))
    return load(config=path)


class _Recording:
    """Collects every round of the embedded engine."""

    def __init__(self) -> None:
        self.actions: list[str] = []
        self.energy: list[float] = []
        self.models: list[np.ndarray] = []

    def after_round(self, simulation, round):
        simulation.flush()
        self.actions.append(encode_mask(round.trained))
        self.energy.append(round.training_wh)
        rows = [
            np.concatenate([slot.view(simulation.models[uid]).reshape(-1).numpy() for slot in simulation.layout.slots])
            for uid in range(NODES)
        ]
        self.models.append(np.stack(rows))


def embedded(wanted: Experiment) -> _Recording:
    simulation = Simulation(wanted, node_data(wanted, tiny_images()))
    recording = _Recording()
    try:
        assert simulation.run([recording])
    finally:
        simulation.close()
    return recording


def on_framework(wanted: Experiment, folder: Path) -> tuple[list[str], list[float], list[np.ndarray]]:
    """Masks, energy and all models of each round, from a deployment of eight processes on loopback."""
    from skiptrain_plugin.launcher import launch_local

    models = folder / "models"
    models.mkdir(parents=True)
    os.environ[RECORD_FOLDER] = str(models)
    try:
        run = launch_local(wanted, folder / "run")
    finally:
        del os.environ[RECORD_FOLDER]
    assert run.finished
    recorded = [np.stack([np.load(models / f"{n}-{u}.npy") for u in range(NODES)]) for n in range(1, ROUNDS + 1)]
    return [line["trained"] for line in run.nodes], [line["training_wh"] for line in run.rounds], recorded


def places(width: int) -> np.ndarray:
    return np.linspace(0, width - 1, SAMPLES).astype(int)


def data_digest() -> str:
    data = tiny_images()
    return hashlib.sha256(b"".join(a.tobytes() for a in (data.train_x, data.train_y, data.test_x))).hexdigest()


def record(folder: Path) -> dict:
    """The facts of one framework run of each algorithm."""
    facts = {}
    for algorithm in ALGORITHMS:
        actions, energy, models = on_framework(
            experiment(algorithm, folder, FRAMEWORK_SHARING), folder / f"run-{algorithm}"
        )
        facts[algorithm] = {
            "actions": actions,
            "training_wh": energy,
            "norms": [[float(np.linalg.norm(row)) for row in matrix] for matrix in models],
            "samples": [[[float(row[i]) for i in places(len(row))] for row in matrix] for matrix in models],
        }
    return facts


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_embedded_engine_agrees_with_a_recorded_run_of_the_framework(algorithm, tmp_path):
    fixture = json.loads(FIXTURE.read_text())
    assert fixture["data_sha256"] == data_digest(), "tests.problems.tiny_images has changed: record the fixture anew"
    assert fixture["ini"] == tiny_ini("ALGORITHM", ROUNDS, test_after=1, seed=5), "record the fixture anew"
    expected = fixture["algorithms"][algorithm]
    found = embedded(experiment(algorithm, tmp_path))
    assert found.actions == expected["actions"]
    assert found.energy == pytest.approx(expected["training_wh"], rel=1e-12)
    for matrix, norms, samples in zip(found.models, expected["norms"], expected["samples"], strict=True):
        assert np.linalg.norm(matrix, axis=1) == pytest.approx(norms, rel=TOLERANCE)
        scale = float(np.abs(matrix).max())
        assert matrix[:, places(matrix.shape[1])] == pytest.approx(
            np.array(samples), rel=TOLERANCE, abs=TOLERANCE * scale
        )


def test_the_recorded_algorithms_differ():
    fixture = json.loads(FIXTURE.read_text())["algorithms"]
    assert len({str(fixture[name]["norms"][-1]) for name in ALGORITHMS}) == len(ALGORITHMS)
    masks = [decode_mask(mask, NODES).sum() for mask in fixture["skiptrain_constrained"]["actions"]]
    assert 0 < sum(masks) < 4 * NODES, "the constrained run draws"


@pytest.mark.skipif(not framework.installed(), reason=framework.MISSING)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_framework_agrees_with_the_embedded_engine(algorithm, tmp_path):
    wanted = experiment(algorithm, tmp_path)
    actions, energy, models = on_framework(wanted, tmp_path)
    found = embedded(wanted)
    assert actions == found.actions
    assert energy == pytest.approx(found.energy, rel=1e-12)
    for one, other in zip(models, found.models, strict=True):
        distance = np.linalg.norm(one - other, axis=1) / np.linalg.norm(other, axis=1)
        assert distance.max() < TOLERANCE


@pytest.mark.skipif(not framework.installed(), reason=framework.MISSING)
def test_nodes_of_the_framework_hold_the_partition_of_the_embedded_engine(tmp_path):
    from decentralizepy.mappings.Linear import Linear

    from tests.framework_problems import Synthetic

    wanted = experiment("dpsgd", tmp_path)
    parts = node_data(wanted, tiny_images()).train
    for uid in range(NODES):
        dataset = Synthetic(uid, 0, Linear(1, NODES), 11, partition_niid="kshard", shards=2)
        assert np.array_equal(dataset._train_x.numpy(), parts[uid].x.numpy())
        assert np.array_equal(dataset._train_y.numpy(), parts[uid].y.numpy())


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as temporary:
        made = {
            "how": "python -m tests.test_plugin_parity, with DecentralizePy commit a5d46be: eight processes on"
            " loopback, the framework's own Sharing, Training and TCP, SkipTrainNode, tests.problems.tiny_images as"
            " data. For each round: the nodes that trained (hexadecimal mask), training energy so far in Wh, and of"
            " each node's model the 2-norm and six of its numbers, evenly spaced in the order of state_dict.",
            "data_sha256": data_digest(),
            "ini": tiny_ini("ALGORITHM", ROUNDS, test_after=1, seed=5),
            "algorithms": record(Path(temporary)),
        }
    FIXTURE.write_text(json.dumps(made) + "\n")
