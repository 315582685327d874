"""The plugin's own logic on an in-memory network: rounds, deadlines, weights, checkpoints. No framework needed."""

from __future__ import annotations

import threading
import time
from collections import deque
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from skiptrain_plugin.algorithm.topology import Topology
from skiptrain_plugin.deployment import node_files
from skiptrain_plugin.deployment.averaging import metropolis_weights, weighted_sum
from skiptrain_plugin.deployment.flat import from_vector, to_vector
from skiptrain_plugin.deployment.link import Link
from skiptrain_plugin.deployment.peers import Peers
from skiptrain_plugin.deployment.settings import node_settings
from skiptrain_plugin.errors import InputError, RunError
from tests.framework_problems import MemoryCommunication, MemoryNetwork, MemoryNode, config, ring, run_nodes


@given(st.integers(1, 20), st.dictionaries(st.integers(0, 50), st.integers(1, 20), max_size=20), st.floats(-1e3, 1e3))
@settings(max_examples=60, deadline=None)
def test_weights_sum_to_one_whoever_answers(degree, degrees, value):
    answered = dict(list(degrees.items())[:degree])
    weights = metropolis_weights(degree, answered)
    assert all(weight > 0 for weight in weights.values())
    assert sum(weights.values()) < 1
    same = np.full(5, value, dtype=np.float32)
    assert weighted_sum(same, dict.fromkeys(answered, same), weights) == pytest.approx(same, rel=1e-5, abs=1e-6)


def test_a_synchronization_round_is_a_product_with_the_metropolis_matrix(tmp_path):
    neighbors = [{1, 2, 3}, {0, 2}, {0, 1}, {0}]
    network = MemoryNetwork(4)
    makers = [
        partial(MemoryNode, uid, network, neighbors, tmp_path, config(training=1, sync=3), rounds=4) for uid in range(4)
    ]
    nodes = run_nodes(makers)
    w = Topology(4, [(0, 1), (0, 2), (0, 3), (1, 2)]).weights.toarray()
    trained = (1 + np.arange(4)) / 2
    expected = np.linalg.matrix_power(w, 4) @ trained
    assert [float(to_vector(node.model)[0]) for node in nodes] == pytest.approx(expected, rel=1e-5)
    assert [node.trainer.calls for node in nodes] == [1] * 4


def test_allreduce_talks_to_everyone_and_weighs_uniformly(tmp_path):
    network = MemoryNetwork(5)
    makers = [partial(MemoryNode, uid, network, ring(5), tmp_path, config("allreduce"), rounds=1) for uid in range(5)]
    nodes = run_nodes(makers)
    for node in nodes:
        assert to_vector(node.model) == pytest.approx(np.mean((1 + np.arange(5)) / 2), rel=1e-6)


def test_a_silent_neighbour_is_left_out_and_the_rest_goes_on(tmp_path):
    network = MemoryNetwork(4)

    def mute_after_hello():
        node = MemoryNode(3, network, ring(4), tmp_path, config(training=4, sync=4), deadline=0.2)
        network.mute.add(3)
        return node

    makers = [
        partial(MemoryNode, uid, network, ring(4), tmp_path, config(training=4, sync=4), deadline=0.5)
        for uid in range(3)
    ]
    start = time.monotonic()
    nodes = run_nodes([*makers, mute_after_hello])
    assert time.monotonic() - start < 10
    rounds = node_files.read_rounds(node_files.lines_path(tmp_path, 0))
    assert [rounds[number]["answered"] for number in range(1, 9)] == [1] * 8
    assert len(node_files.read_rounds(node_files.lines_path(tmp_path, 1))) == 8
    assert nodes[0].peers.away == {3}
    w = Topology(4, [(0, 1), (1, 2), (2, 3), (3, 0)]).weights.toarray()
    w[0, 0] += w[0, 3]
    w[2, 2] += w[2, 3]
    w[:3, 3] = 0
    x = np.ones(4)
    for number in range(8):
        x = w @ ((x + np.arange(4)) / 2 if number < 4 else x)
    assert [float(to_vector(node.model)[0]) for node in nodes[:3]] == pytest.approx(x[:3], rel=1e-5)


def test_a_death_that_the_launcher_knows_of_is_not_waited_for(tmp_path):
    gone = bytearray(3)
    network = MemoryNetwork(3)
    link = Link(tmp_path, [0] * 3, gone, 0, {}, False)
    threading.Timer(0.3, gone.__setitem__, (2, 1)).start()
    start = time.monotonic()
    run_nodes(
        [partial(MemoryNode, uid, network, ring(3), tmp_path, config(), link=link, deadline=60) for uid in (0, 1)]
    )
    assert time.monotonic() - start < 10


def message(round: int, value: float = 1.0) -> dict:
    return {
        "CHANNEL": "DPSGD",
        "iteration": round,
        "degree": 1,
        "params": np.full(4, value, dtype=np.float32),
        "kind": "training",
        "remaining": -1,
    }


def peers_of_one() -> tuple[Peers, MemoryCommunication]:
    network = MemoryNetwork(2)
    return Peers(0, MemoryCommunication(0, network)), MemoryCommunication(1, network)


def test_a_late_model_is_dropped_and_its_sender_taken_in_again():
    peers, other = peers_of_one()
    peers.begin_round(0)
    assert peers.wait_for_models([1], 0.05) == {}
    assert peers.away == {1}
    peers.begin_round(1)
    assert peers.wait_for_models([1], 5) == {}, "nobody waits for one who is away"
    other.send(0, message(0))
    other.send(0, message(2))
    peers._take_one()
    assert peers.dropped == 1
    assert peers.away == set(), "it spoke"
    peers.begin_round(2)
    assert set(peers.wait_for_models([1], 5)) == {1}


def test_a_neighbour_that_is_ahead_is_not_waited_for():
    peers, other = peers_of_one()
    other.send(0, message(7))
    peers.begin_round(3)
    start = time.monotonic()
    assert peers.wait_for_models([1], 30) == {}
    assert time.monotonic() - start < 1
    assert peers.newest_round() == 7


def test_malformed_messages_are_dropped_and_counted():
    peers, other = peers_of_one()
    peers.begin_round(0)
    for bad in ({}, {"CHANNEL": "?"}, {"CHANNEL": "DPSGD"}, {"CHANNEL": "DPSGD", "iteration": "x"}):
        other.send(0, bad)
    other.send(0, message(0))
    assert set(peers.wait_for_models([1], 5)) == {1}
    assert peers.dropped == 4


def test_a_model_of_the_wrong_size_or_not_finite_is_left_out(tmp_path):
    node = MemoryNode(0, MemoryNetwork(1), [set()], tmp_path, config())
    node.sharing.get_data_to_send(degree=2)
    short, broken = message(0) | {"params": np.ones(3, dtype=np.float32)}, message(0, float("nan"))
    node.sharing._averaging({1: deque([short]), 2: deque([broken]), 3: deque([message(0, 4.0)])})
    assert to_vector(node.model) == pytest.approx(2 / 3 + 4 / 3)


def test_a_node_left_behind_goes_to_the_round_of_the_others(tmp_path):
    network = MemoryNetwork(2)
    node = MemoryNode(0, network, [set(), set()], tmp_path, config(training=1, sync=1), rounds=10)
    other = MemoryCommunication(1, network)
    node.begin()
    other.send(0, message(6))
    node.peers._take_one()
    node.round()
    assert node.iteration == 7
    assert [line["round"] for line in node_files.read_lines(node_files.lines_path(tmp_path, 0))] == [7]
    node.close()


def test_resuming_gives_what_an_uninterrupted_run_gives(tmp_path):
    def life(folder, rounds, resume):
        folder.mkdir(exist_ok=True)
        network = MemoryNetwork(4)
        link = Link(folder, [0] * 4, bytes(4), 3, resume, True)
        made = [
            partial(MemoryNode, u, network, ring(4), folder, config("skiptrain_constrained"), rounds=12, link=link)
            for u in range(4)
        ]

        def shortened(make):
            node = make()
            node.iterations = rounds
            return node

        nodes = run_nodes([partial(shortened, make) for make in made])
        assert list(link.completed) == [rounds] * 4
        return [to_vector(node.model) for node in nodes]

    whole = life(tmp_path / "whole", 12, {})
    cut = tmp_path / "cut"
    life(cut, 8, {})
    assert node_files.resume_rounds(cut, range(4)) == dict.fromkeys(range(4), 6)
    again = life(cut, 12, node_files.resume_rounds(cut, range(4)))
    assert np.array_equal(whole, again)
    for rank in range(4):
        one, two = (node_files.lines_path(tmp_path / name, rank).read_bytes() for name in ("whole", "cut"))
        assert [line.split(b'"test_acc"')[0] for line in one.splitlines()] == [
            line.split(b'"test_acc"')[0] for line in two.splitlines()
        ]


def test_checkpoints_without_a_common_round_and_damaged_ones(tmp_path):
    def save(uid, round):
        node_files.save_node_checkpoint(
            tmp_path, uid, round, np.ones(3, np.float32), np.array([4]), np.zeros(3, np.int64), {}
        )

    assert node_files.resume_rounds(tmp_path, range(2)) == {}
    save(0, 4)
    save(0, 6)
    save(1, 2)
    assert node_files.resume_rounds(tmp_path, range(2)) == {0: 6, 1: 2}, "each from its own last"
    save(1, 4)
    assert node_files.resume_rounds(tmp_path, range(2)) == {0: 4, 1: 4}
    for path in (tmp_path / "checkpoints").glob("*/*/round-*"):
        path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(RunError, match="damaged"):
        node_files.resume_rounds(tmp_path, range(2))


def test_results_have_the_keys_of_the_framework_and_the_authors(tmp_path):
    import json

    network = MemoryNetwork(2)
    run_nodes(
        [partial(MemoryNode, uid, network, [{1}, {0}], tmp_path, config("greedy"), rounds=10) for uid in range(2)]
    )
    results = json.loads((tmp_path / "1_results.json").read_text())
    assert set(results) == {
        *("test_acc", "test_loss", "validation_acc", "validation_loss", "train_loss"),
        *("total_bytes", "total_meta", "total_data_per_n", "action", "training_prob", "remaining_training_rounds"),
        "training_energy_traces",
    }
    assert list(results["test_acc"]) == ["4", "8", "10"], "every test_after rounds and at the last"
    assert list(results["action"].values()) == ["p"] * 3 + ["np"] * 7
    assert list(results["remaining_training_rounds"].values()) == [2, 1] + [0] * 8
    assert list(results["training_energy_traces"]) == ["0"]


def test_divergence_names_node_and_round(tmp_path):
    node = MemoryNode(0, MemoryNetwork(1), [set()], tmp_path, config())
    node.trainer.train = lambda dataset: from_vector(node.model, np.full(4, np.nan))
    with pytest.raises(RunError, match="node 0 in round 1"):
        node.run()


def test_training_is_seeded_by_seed_uid_and_round(tmp_path):
    from skiptrain_plugin.engine.minibatches import minibatch_seed

    node = MemoryNode(0, MemoryNetwork(1), [set()], tmp_path, config())
    seen = []
    node.trainer.train = lambda dataset: seen.append(torch.initial_seed())
    node.run()
    assert seen == [minibatch_seed(3, 0, round) for round in (0, 1, 4, 5)]


@pytest.mark.parametrize("convert", [str, lambda value: value])
def test_settings_take_typed_values_and_text(convert):
    given = {name: {key: convert(value) for key, value in keys.items()} for name, keys in config().items()}
    one = node_settings(given, 5, 8, 3.0, 100)
    assert one.policy.settings.uids.tolist() == [5]
    assert one.device.name == "Samsung Galaxy S22 Ultra", "device uid mod 4"
    assert one.policy.settings.budgets.tolist() == [32], "324 of 1000 rounds, scaled to 100"
    assert one.seed == 3


def test_settings_of_anybodys_dataset_follow_the_size_of_its_model():
    given = config()
    given["DATASET"] = {"dataset_class": "MovieLens"}
    assert node_settings(given, 0, 4, 2.0, 10).seed == 1234
    whole = node_settings(given, 0, 4, 2.0, 10, parameters=89_834).device.wh_per_round
    assert node_settings(given, 0, 4, 2.0, 10, parameters=2 * 89_834).device.wh_per_round == pytest.approx(2 * whole)
    del given["NODE"]["energy_traces"]
    assert node_settings(given, 0, 4, 2.0, 10, parameters=89_834).device.wh_per_round == whole
    given["ENERGY"] = {"parameters": 3 * 89_834}
    derived = node_settings(given, 0, 4, 2.0, 10, parameters=89_834).device.wh_per_round
    assert derived == pytest.approx(3 * whole), "what the INI says comes before the model's size"


def test_settings_use_tuned_rounds_by_degree_and_refuse_unknown_names():
    given = config()
    del given["NODE"]["consecutive_training_rounds"], given["NODE"]["consecutive_synching_rounds"]
    schedule = node_settings(given, 0, 16, 10.0, 10).policy.settings.schedule
    assert (schedule.training, schedule.synchronization) == (4, 2)
    given["NODE"]["algorithm"] = "skiptrian"
    with pytest.raises(InputError, match="did you mean 'skiptrain'"):
        node_settings(given, 0, 16, 10.0, 10)


@pytest.mark.parametrize("bad", [0, -1, "soon", float("inf"), float("nan")])
def test_a_peer_deadline_that_is_no_time_is_refused(tmp_path, bad):
    with pytest.raises(InputError, match="peer_deadline"):
        MemoryNode(0, MemoryNetwork(1), [set()], tmp_path, config(), deadline=bad)
