"""Topologies, Metropolis-Hastings weights, spectrum, graph files."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skiptrain_plugin.algorithm.graph_text import format_graph, parse_graph
from skiptrain_plugin.algorithm.topology import Topology, generate
from skiptrain_plugin.errors import InputError
from tests.problems import refused, skiptrain


@st.composite
def topologies(draw):
    kind = draw(st.sampled_from(["regular", "ring", "complete", "star", "small_world"]))
    nodes = draw(st.integers(5, 40))
    degree = draw(st.sampled_from([2, 4])) if kind == "small_world" else draw(st.integers(2, 4))
    if kind == "regular" and nodes * degree % 2:
        nodes += 1
    return generate(kind, nodes, degree, draw(st.integers(0, 1000)))


@settings(max_examples=60, deadline=None)
@given(topologies())
def test_weights_are_symmetric_doubly_stochastic_and_zero_without_an_edge(topology):
    w = topology.weights.toarray()
    assert np.allclose(w, w.T)
    assert np.allclose(w.sum(0), 1)
    assert np.allclose(w.sum(1), 1)
    assert (w >= -1e-15).all()
    off_diagonal = w - np.diag(np.diag(w))
    assert ((off_diagonal != 0) == (topology.adjacency.toarray() != 0)).all()
    assert 0 <= topology.lambda2 < 1
    assert np.allclose(topology.uniform_weights.sum(1), 1)


@settings(max_examples=30, deadline=None)
@given(topologies(), st.sampled_from(["edges", "adjacency"]))
def test_graph_text_round_trip(topology, graph_type):
    again = parse_graph(format_graph(topology, graph_type), graph_type, "x")
    assert (again.edges == topology.edges).all()
    assert again.nodes == topology.nodes


def test_weights_by_hand_on_a_path():
    path = Topology(3, [(0, 1), (1, 2)])
    third = 1 / 3
    assert np.allclose(path.weights.toarray(), [[2 * third, third, 0], [third, third, third], [0, third, 2 * third]])
    assert path.lambda2 == pytest.approx(2 / 3)
    assert path.rounds_to_shrink(1.5) == 1
    assert path.rounds_to_shrink(10) == 6
    assert np.allclose(path.uniform_weights.toarray()[0], [0.5, 0.5, 0])


def test_complete_graph_is_all_reduce():
    complete = generate("complete", 7, 0, 0)
    assert np.allclose(complete.weights.toarray(), 1 / 7)
    assert complete.lambda2 == pytest.approx(0, abs=1e-12)
    assert complete.rounds_to_shrink(1e6) == 1


@pytest.mark.parametrize(("degree", "near"), [(6, 0.76), (8, 0.69), (10, 0.62)])
def test_lambda2_of_the_papers_topologies(degree, near):
    assert generate("regular", 256, degree, 1234).lambda2 == pytest.approx(near, abs=0.03)


def test_sparse_spectrum_agrees_with_dense():
    topology = generate("regular", 600, 6, 3)
    dense = np.sort(np.abs(np.linalg.eigvalsh(topology.weights.toarray())))[-2]
    assert topology.lambda2 == pytest.approx(dense, rel=1e-6)


def test_regular_is_regular_connected_and_seeded():
    first, again, other = (generate("regular", 64, 6, seed) for seed in (1, 1, 2))
    assert (first.degrees == 6).all()
    assert (first.edges == again.edges).all()
    assert not np.array_equal(first.edges, other.edges)
    assert first.neighbors(0) == sorted(set(first.edges[(first.edges == 0).any(1)].ravel()) - {0})


def test_one_and_two_nodes():
    assert generate("regular", 1, 6, 0).weights.toarray().tolist() == [[1.0]]
    assert generate("ring", 2, 0, 0).weights.toarray().tolist() == [[0.5, 0.5], [0.5, 0.5]]


@pytest.mark.parametrize(
    ("kind", "nodes", "degree", "message"),
    [
        ("regular", 5, 3, "15 is odd"),
        ("regular", 6, 6, "allowed: 1 to 5"),
        ("regular", 6, 0, "allowed: 1 to 5"),
        ("small_world", 8, 3, "even degree"),
        ("torus", 8, 3, "unknown topology 'torus'"),
        ("ring", 0, 3, "at least one node"),
    ],
)
def test_impossible_topologies(kind, nodes, degree, message):
    with pytest.raises(InputError, match=message):
        generate(kind, nodes, degree, 0)


BAD_GRAPHS = {
    "node out of range": ("edges", "3\n0 1\n1 3\n", "line 3: node 3 is out of range; nodes are 0 to 2"),
    "self-loop": ("edges", "3\n0 1\n1 1\n", "line 3: node 1 has a self-loop"),
    "wrong count": ("edges", "4\n0 1\n1 2\n", "line 1 promises 4 nodes, but only 3 have neighbours"),
    "not connected": ("edges", "4\n0 1\n2 3\n", "not connected (2 parts; node 2"),
    "no count": ("edges", "0 1\n1 2\n", "line 1: expected the number of nodes"),
    "empty": ("edges", "", "line 1: expected the number of nodes"),
    "huge count": ("edges", "9" * 30 + "\n0 1\n", "line 1: expected the number of nodes"),
    "negative": ("edges", "3\n0 -1\n", "'-1' is not a node number"),
    "three columns": ("edges", "3\n0 1 2\n", "line 2: expected two nodes, found 3"),
    "wrong number of lines": ("adjacency", "3\n1\n0 2\n", "promises 3 nodes, but 2 lines"),
    "one-sided": ("adjacency", "3\n1 2\n0\n1\n", "does not name"),
    "text": ("adjacency", "2\none\nzero\n", "'one' is not a node number"),
}


@pytest.mark.parametrize("name", BAD_GRAPHS)
def test_bad_graph_files(name, tmp_path):
    graph_type, text, message = BAD_GRAPHS[name]
    with pytest.raises(InputError) as error:
        parse_graph(text, graph_type, "graph.txt")
    assert message in str(error.value)
    assert str(error.value).startswith("graph.txt")


def test_command_makes_saves_and_reads(tmp_path):
    made = skiptrain("topology", "regular", "--nodes", "16", "--degree", "4", "--save", tmp_path / "g.txt")
    assert made.returncode == 0, made.stderr
    read = skiptrain("topology", tmp_path / "g.txt")
    row = next(line for line in made.stdout.splitlines() if "λ2" in line)
    assert row in read.stdout
    (tmp_path / "bad.txt").write_text("3\n0 1\n1 7\n")
    refused(skiptrain("topology", tmp_path / "bad.txt"), "bad.txt, line 3", "out of range")
    refused(skiptrain("topology", tmp_path / "none.txt"), "none.txt does not exist")
    refused(skiptrain("topology", "--factor", "nan"), "greater than 1, not nan")
    refused(skiptrain("topology", "regulr"), "unknown topology 'regulr'", "did you mean 'regular'")
    refused(skiptrain("plan", "--set", f"RUN.graph_file={tmp_path / 'bad.txt'}"), "line 3")
    refused(skiptrain("topology", "--save", "/proc/x/g.txt"), "cannot be written")
