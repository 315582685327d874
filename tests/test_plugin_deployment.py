"""Launching without the framework: supervision, flags, shares and records, node data, and the missing framework."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from skiptrain_plugin.data.partitions import deal, validation, validation_split
from skiptrain_plugin.data.tensors import gather, gather_labels, to_input
from skiptrain_plugin.deployment import snapshots
from skiptrain_plugin.deployment.images import EvaluationBatches, TrainBatches, parse_sizes, parts_of, score, some_of
from skiptrain_plugin.deployment.link import Link
from skiptrain_plugin.deployment.merge import Share, conclude, merge_shares, read_share
from skiptrain_plugin.deployment.node_files import snapshot_path
from skiptrain_plugin.deployment.plan import Flags, from_experiment, from_flags
from skiptrain_plugin.deployment.supervisor import Supervisor
from skiptrain_plugin.engine.minibatches import minibatches
from skiptrain_plugin.errors import InputError
from skiptrain_plugin.experiment.experiment import load
from skiptrain_plugin.framework import MISSING
from skiptrain_plugin.results.record import FINISHED, Run, RunDirectory, decode_mask
from tests.framework_problems import MemoryNetwork, MemoryNode, config, ring, run_nodes, tiny_ini
from tests.problems import refused, tiny_images

# Supervision.


SLEEP_THEN_EXIT = "import sys, time; time.sleep({}); sys.exit({})"


def watch(plan: list[tuple[float, int]], stop=lambda: False, **options):
    context = multiprocessing.get_context("spawn")
    processes = {
        rank: context.Process(target=exec, args=(SLEEP_THEN_EXIT.format(*what),)) for rank, what in enumerate(plan)
    }
    for process in processes.values():
        process.start()
    said = []
    supervisor = Supervisor(
        processes,
        {rank: rank + 10 for rank in processes},
        [0] * len(plan),
        last_lines=lambda rank: [f"line of {rank}"],
        died=said.append,
        **{"on_failure": "stop"} | options,
    )
    start = time.monotonic()
    outcome = supervisor.watch(stop)
    assert all(process.exitcode is not None for process in processes.values())
    return outcome, said, time.monotonic() - start


def test_all_well():
    outcome, said, _ = watch([(0, 0), (0.1, 0)])
    assert (outcome.failures, outcome.stopped, outcome.interrupted, said) == ([], False, False, [])


def test_a_failure_stops_the_others():
    outcome, said, seconds = watch([(0, 3), (60, 0)])
    assert seconds < 30
    assert outcome.stopped
    assert str(said[0]) == "node 10 died in round 1 (exit code 3); its last words:\n    line of 0"


def test_a_failure_need_not_stop_the_others():
    outcome, _, _ = watch([(0, 1), (0.5, 0)], on_failure="continue")
    assert [failure.uid for failure in outcome.failures] == [10]
    assert not outcome.stopped


def test_one_that_makes_no_progress_is_killed_and_a_request_to_stop_ends_all():
    outcome, _, seconds = watch([(60, 0)], stall_seconds=0.5)
    assert seconds < 30
    assert "no progress" in str(outcome.failures[0])
    outcome, _, seconds = watch([(60, 0), (60, 0)], stop=lambda: True)
    assert seconds < 30
    assert outcome.interrupted
    assert outcome.failures == []


# Flags and INI.


def written(folder: Path, text: str) -> Path:
    path = folder / "x.ini"
    path.write_text(text)
    return path


AUTHORS = """
[DATASET]
dataset_package = decentralizepy.datasets.CIFAR10
dataset_class = CIFAR10
model_class = LeNet
train_dir = data/
test_dir = data/
; python list of fractions below
sizes =
random_seed = 1234
partition_niid = kshard
shards = 2
validation_size = 0.5
validation_source = Test

[OPTIMIZER_PARAMS]
optimizer_package = torch.optim
optimizer_class = SGD
lr = 0.1

[TRAIN_PARAMS]
training_package = decentralizepy.training.Training
training_class = Training
rounds = 20
full_epochs = False
batch_size = 32
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
; Training or TrainingSharing
algorithm = skiptrain
consecutive_training_rounds = 1
consecutive_synching_rounds = 9
averaging = Metro-Hasting
energy_traces = cifar.csv
"""


def test_an_ini_of_the_authors_with_the_flags_of_their_driver(tmp_path):
    (tmp_path / "ip.json").write_text('{"0": "localhost", "1": "localhost"}')
    (tmp_path / "graph.txt").write_text("4\n0 1\n1 2\n2 3\n3 0\n")
    flags = Flags(written(tmp_path, AUTHORS), 1, 2, 2, tmp_path / "graph.txt", "edges", 20, 10, 10, 0)
    share = from_flags(flags)
    assert share.uids == {0: 2, 1: 3}
    assert (share.rounds, share.test_after, share.train_evaluate_after, share.reset_optimizer) == (20, 10, 10, 0)
    assert share.config["DATASET"] == {
        "dataset_package": "decentralizepy.datasets.CIFAR10",
        "dataset_class": "CIFAR10",
        "model_class": "LeNet",
        "train_dir": "data/",
        "test_dir": "data/",
        "random_seed": 1234,
        "partition_niid": "kshard",
        "shards": 2,
        "validation_size": 0.5,
        "validation_source": "Test",
    }
    assert share.config["COMMUNICATION"]["addresses_filepath"] == str(tmp_path / "ip.json")
    assert share.config["RUN"]["validate"] is True


def test_anybodys_dataset_is_passed_on_as_it_is(tmp_path):
    text = AUTHORS.replace("dataset_class = CIFAR10", "dataset_class = Celeba\nimages_dir = pictures")
    text = text.replace("model_class = LeNet", "model_package = tests.tiny_models\nmodel_class = Convolution")
    text = text.replace("addresses_filepath = ip.json", "")
    share = from_flags(Flags(written(tmp_path, text + "[RUN]\nnodes = 6\ndegree = 2\n"), iterations=5))
    assert share.experiment is None
    assert share.config["DATASET"]["images_dir"] == "pictures"
    assert share.config["DATASET"]["random_seed"] == 1234
    assert (share.procs, share.test_after, share.rounds) == (6, 10, 5)


@pytest.mark.parametrize(
    ("change", "flags", "words"),
    [
        (("", ""), {"machine_id": 2, "machines": 2}, "-mid 2"),
        (("", ""), {"machines": 3}, "equally by 3 machines"),
        (("", ""), {"machines": 2}, "addresses_filepath"),
        (("algorithm = skiptrain", "algorithm = skip"), {}, "unknown algorithm"),
        (("random_seed = 11", "random_sead = 11"), {}, "random_sead"),
        (("[NODE]", "NODE"), {}, "x.ini"),
        (("", ""), {"graph_file": Path("nowhere.txt")}, "nowhere.txt"),
        (("", ""), {"procs_per_machine": 3}, "degree 3 is impossible on 3 nodes"),
    ],
)
def test_bad_flags_and_files_are_named(tmp_path, change, flags, words):
    with pytest.raises(InputError, match=words):
        from_flags(Flags(written(tmp_path, tiny_ini().replace(*change)), **flags))


def test_an_experiment_becomes_a_deployment_of_one_machine(tmp_path):
    share = from_experiment(load(config=written(tmp_path, tiny_ini())))
    assert (share.machines, share.procs, share.machine_id) == (1, 8, 0)
    assert share.config["DATASET"]["shards"] == 2
    assert "figure" not in map(str.lower, share.config)


# Records.


def two_shares(tmp_path: Path) -> tuple[list[Share], Path]:
    """Four in-memory nodes whose files lie in the directories of two machines."""
    path = written(tmp_path, tiny_ini("greedy", 8, nodes=4, degree=2))
    network, folders = MemoryNetwork(4), [tmp_path / "m0", tmp_path / "m1"]
    given = config("greedy")
    given["RUN"] = {"seed": 3}

    def make(uid: int) -> MemoryNode:
        node = MemoryNode(uid, network, ring(4), folders[uid // 2], given)
        node.rank = uid % 2
        node.link = Link(folders[uid // 2], [0, 0], bytes(4), 0, {}, True)
        return node

    for folder in folders:
        folder.mkdir()
        (folder / "config.ini").write_text(load(config=path).to_ini())
    run_nodes([partial(make, uid) for uid in range(4)])
    shares = [Share(folder, {0: 2 * m, 1: 2 * m + 1}, 4, FINISHED, {}) for m, folder in enumerate(folders)]
    for share in shares:
        share.save()
    return shares, path


def test_shares_of_machines_make_one_record(tmp_path):
    shares, _ = two_shares(tmp_path)
    assert read_share(shares[1].folder) == shares[1]
    run = merge_shares([share.folder for share in shares], tmp_path / "all")
    assert run.finished
    assert len(run.rounds) == len(run.nodes) == 8
    assert [line["trained"] for line in run.rounds] == [4, 4, 2, 1, 1, 0, 0, 0], "τ = 2, 3, 5, 2"
    experiment = run.experiment
    expected = [trains for _, trains in experiment.policy().replay()]
    assert [decode_mask(line["trained"], 4).tolist() for line in run.nodes] == [e.tolist() for e in expected]
    wh = np.cumsum([trains @ experiment.wh_per_training_round for trains in expected])
    assert [line["training_wh"] for line in run.rounds] == pytest.approx(wh)
    assert [line["round"] for line in run.evaluations] == [4, 8]
    assert run.nodes[3]["uids"] == [0, 1, 2, 3]
    assert run.nodes[0]["bytes"] == 2 * 4 * 4, "two neighbours, four float32"
    assert (run.folder / "models.safetensors").exists()
    results = json.loads((run.folder / "nodes" / "3_results.json").read_text())
    assert results["action"]["1"] == "p"
    with pytest.raises(InputError, match="each once"):
        merge_shares([shares[0].folder], tmp_path / "half")
    with pytest.raises(InputError, match=r"share\.json"):
        merge_shares([tmp_path], tmp_path / "none")


def test_a_lost_node_shortens_nothing_and_is_in_the_record(tmp_path):
    shares, path = two_shares(tmp_path)
    lines = shares[1].folder / "1_rounds.jsonl"
    lines.write_bytes(b"".join(lines.read_bytes().splitlines(keepends=True)[:2]))
    shares[1].lost[3] = "node 3 died in round 3 (killed by SIGKILL)"
    directory = RunDirectory(tmp_path / "record")
    directory.begin(load(config=path), {})
    conclude(directory, load(config=path), shares, FINISHED, {4: {"consensus": 1.0}, 5: {"consensus": 2.0}})
    directory.close()
    run = Run(tmp_path / "record")
    assert len(run.rounds) == 8
    assert run.info["lost_nodes"] == {"3": "node 3 died in round 3 (killed by SIGKILL)"}
    assert run.nodes[3]["uids"] == [0, 1, 2]
    assert run.rounds[3]["consensus"] == 1.0
    assert "consensus" not in run.rounds[4]


def test_snapshots_become_mean_and_consensus(tmp_path):
    vectors = {uid: np.array([uid, 2.0], dtype=np.float32) for uid in range(3)}
    for uid, vector in vectors.items():
        snapshot_path(tmp_path, 4, uid).parent.mkdir(parents=True, exist_ok=True)
        np.save(snapshot_path(tmp_path, 4, uid), vector)
    snapshots.gather(tmp_path, [0, 1, 2, 3])
    assert snapshots.means(tmp_path) == {}, "node 3 is still to come"
    snapshots.gather(tmp_path, [0, 1])
    ((number, (consensus, mean)),) = snapshots.means(tmp_path).items()
    assert number == 4
    assert mean.tolist() == [1.0, 2.0]
    assert consensus == pytest.approx(np.sqrt(2 / 3))
    snapshots.drop_after(tmp_path, 3)
    assert snapshots.means(tmp_path) == {}


# Data of a node.


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("size", [7, 60, 300])
def test_minibatches_come_in_the_order_of_a_dataloader_and_of_the_embedded_engine(shuffle, size):
    data = tiny_images(samples=60)
    x, y = gather(data.train_x), gather_labels(data.train_y)
    loader = DataLoader(TensorDataset(to_input(x, data), y), batch_size=size, shuffle=shuffle)
    ours = TrainBatches(x, y, data, size, shuffle)
    assert len(ours) == len(loader)
    torch.manual_seed(8)
    expected = [batch for _ in range(2) for batch in loader]
    torch.manual_seed(8)
    found = [batch for _ in range(2) for batch in ours]
    indices = minibatches(8, 60, batch_size=size, steps=2, full_epochs=True, shuffle=shuffle, drop_last=False)
    for (one_x, one_y), (two_x, two_y), chosen in zip(expected, found, indices, strict=True):
        assert torch.equal(one_x, two_x)
        assert torch.equal(one_y, two_y)
        assert torch.equal(one_y, y[chosen])


def test_scores_are_those_of_a_loop_over_samples():
    data = tiny_images(tests=50)
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 4))
    chosen = some_of(np.arange(50), 30, 1)
    batches = EvaluationBatches(data.test_x, data.test_y, chosen, data, 16)
    accuracy, loss = score(model, nn.CrossEntropyLoss(), batches)
    x, y = to_input(gather(data.test_x, chosen), data), gather_labels(data.test_y, chosen)
    output = model(x).detach()
    assert accuracy == pytest.approx(100 * sum(int(o.argmax() == t) for o, t in zip(output, y, strict=True)) / 30)
    assert loss == pytest.approx(float(nn.functional.cross_entropy(output, y)), rel=1e-5), "not the mean of two batches"


def test_parts_are_those_of_the_embedded_engine_and_of_the_frameworks_rules():
    data = tiny_images()
    common = {"seed": 4, "shards": 2, "alpha": 1.0, "sizes": None}
    plain = parts_of(data, 1, 4, partition="kshard", **common, validation_source="Test", validation_size=0.5)
    assert np.array_equal(plain.train, deal(data, "kshard", 4, 4)[1])
    assert np.array_equal(plain.validation, validation(data, 0.5, 4)[0])
    held = parts_of(data, 1, 4, partition="iid", **common, validation_source="Train", validation_size=0.25)
    assert np.array_equal(held.validation, validation_split(240, 0.25, 4)[0])
    assert not set(held.train) & set(held.validation)
    assert len(held.train) == 45
    sized = parts_of(
        data, 1, 2, partition="simple", **common | {"sizes": [0.25, 0.75]}, validation_source=None, validation_size=None
    )
    assert sized.train.tolist() == list(range(60, 240))


def test_sizes_are_read_and_not_evaluated():
    assert parse_sizes("[0.5, 0.5]", 2) == [0.5, 0.5]
    assert parse_sizes("", 2) is None
    for bad in ("__import__('os').abort()", "[0.5]", "3", "[", "['a', 'b']"):
        with pytest.raises(InputError, match="sizes"):
            parse_sizes(bad, 2)


# Where the framework is missing.


def without_framework(code: str) -> subprocess.CompletedProcess[str]:
    blocked = f"import sys; sys.modules['decentralizepy'] = None\n{code}"
    return subprocess.run([sys.executable, "-c", blocked], capture_output=True, text=True, timeout=60)


def test_plugin_modules_say_in_one_sentence_that_the_framework_is_missing():
    code = """
import importlib
for name in ("node", "sharing", "datasets", "launcher"):
    try:
        importlib.import_module("skiptrain_plugin." + name)
    except ImportError as error:
        print(error)
import skiptrain_plugin.cli, skiptrain_plugin.engine.runner, skiptrain_plugin.deployment.plan
"""
    result = without_framework(code)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == [MISSING] * 4


def test_launch_says_so_too(tmp_path):
    path = written(tmp_path, tiny_ini())
    code = f"""
from skiptrain_plugin.cli import cli, main
from skiptrain_plugin.cli.launch import launch
cli.add_command(launch)
main(["launch", "-cf", {str(path)!r}, "-ld", {str(tmp_path / "run")!r}])
"""
    result = without_framework(code)
    refused(result, "DecentralizePy is not installed", "github.com/sacs-epfl/decentralizepy")
    assert not (tmp_path / "run").exists()


def test_a_node_process_ends_with_its_launcher(tmp_path):
    """What the nodes rely on: a process notices when the one that started it is killed."""
    code = """
import multiprocessing, os, time
def life(path):
    open(path, "w").write(str(os.getpid()))
    multiprocessing.parent_process().join()
    os._exit(1)
if __name__ == "__main__":
    process = multiprocessing.get_context("spawn").Process(target=life, args=("PATH",))
    process.start()
    time.sleep(60)
"""
    script, mark = tmp_path / "script.py", tmp_path / "pid"
    script.write_text(code.replace("PATH", str(mark)))
    parent = subprocess.Popen([sys.executable, str(script)])
    end = time.monotonic() + 30
    while not (mark.exists() and mark.read_text()) and time.monotonic() < end:
        time.sleep(0.02)
    child = int(mark.read_text())
    parent.send_signal(signal.SIGKILL)
    parent.wait(10)
    while time.monotonic() < end:
        try:
            os.kill(child, 0)
        except ProcessLookupError:
            return
        if Path(f"/proc/{child}/stat").read_text().split()[2] == "Z":
            return
        time.sleep(0.02)
    raise AssertionError("the process outlived its launcher")
