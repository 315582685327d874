"""Communication topologies, their Metropolis-Hastings weights W and the spectrum of W."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import cached_property

import networkx as nx
import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.linalg import LinearOperator, eigsh

from skiptrain_plugin.algorithm.randomness import derived_seed, generator
from skiptrain_plugin.errors import InputError, unknown

_DENSE_SPECTRUM = 512
_SMALL_WORLD_REWIRING = 0.1
_CONNECTED_TRIES = 100


class Topology:
    """An undirected connected graph on nodes 0 … n−1, without self-loops."""

    def __init__(self, nodes: int, edges: Iterable[tuple[int, int]], name: str = "graph") -> None:
        self.nodes = nodes
        self.name = name
        pairs = np.array(sorted({(min(e), max(e)) for e in edges}), dtype=np.int64).reshape(-1, 2)
        self.edges: NDArray[np.int64] = pairs
        """One row (i, j) with i < j for each edge, sorted."""
        if nodes < 1:
            raise InputError(f"{name}: a topology needs at least one node, not {nodes}")
        if len(pairs) and (pairs.min() < 0 or pairs.max() >= nodes):
            bad = pairs[(pairs < 0).any(1) | (pairs >= nodes).any(1)][0]
            raise InputError(f"{name}: edge {bad[0]} {bad[1]} is out of range; nodes are 0 to {nodes - 1}")
        if (pairs[:, 0] == pairs[:, 1]).any():
            raise InputError(f"{name}: node {pairs[pairs[:, 0] == pairs[:, 1]][0, 0]} has a self-loop")
        parts, labels = sparse.csgraph.connected_components(self.adjacency, directed=False)
        if parts > 1:
            lost = int(np.flatnonzero(labels != labels[0])[0])
            raise InputError(
                f"{name}: the graph is not connected ({parts} parts; node {lost} cannot be reached from 0)"
            )

    @cached_property
    def adjacency(self) -> sparse.csr_array:
        """A[i, j] = 1 where i and j are neighbours."""
        i, j = self.edges.T
        ones = np.ones(2 * len(i))
        rows, columns = np.concatenate([i, j]), np.concatenate([j, i])
        return sparse.csr_array((ones, (rows, columns)), shape=(self.nodes, self.nodes))

    @cached_property
    def degrees(self) -> NDArray[np.int64]:
        """The number of neighbours of each node."""
        return np.bincount(self.edges.ravel(), minlength=self.nodes).astype(np.int64)

    def neighbors(self, uid: int) -> list[int]:
        """The neighbours of node ``uid``, ascending."""
        start, end = self.adjacency.indptr[uid : uid + 2]
        return sorted(int(j) for j in self.adjacency.indices[start:end])

    @cached_property
    def weights(self) -> sparse.csr_array:
        """Metropolis-Hastings W: W_ij = 1/(max(deg i, deg j) + 1) on edges, W_ii = 1 − Σ_j W_ij."""
        i, j = self.edges.T
        w = 1.0 / (np.maximum(self.degrees[i], self.degrees[j]) + 1.0)
        off = np.bincount(i, w, self.nodes) + np.bincount(j, w, self.nodes)
        here = np.arange(self.nodes)
        values = np.concatenate([w, w, 1.0 - off])
        rows, columns = np.concatenate([i, j, here]), np.concatenate([j, i, here])
        return sparse.csr_array((values, (rows, columns)), shape=(self.nodes, self.nodes))

    @cached_property
    def uniform_weights(self) -> sparse.csr_array:
        """Plain averaging: W_ij = 1/(deg i + 1) on edges and on the diagonal (rows sum to one)."""
        with_self = self.adjacency + sparse.eye_array(self.nodes, format="csr")
        return sparse.csr_array(sparse.diags_array(1.0 / (self.degrees + 1.0)) @ with_self)

    @cached_property
    def lambda2(self) -> float:
        """|λ2|: the second largest modulus among W's eigenvalues; disagreement shrinks by it each round."""
        if self.nodes == 1:
            return 0.0
        if self.nodes <= _DENSE_SPECTRUM:
            eigenvalues = np.linalg.eigvalsh(self.weights.toarray())
            return float(np.sort(np.abs(eigenvalues))[-2])

        def without_mean(x: NDArray[np.float64]) -> NDArray[np.float64]:
            return np.asarray(self.weights @ x - x.mean())

        operator = LinearOperator((self.nodes, self.nodes), matvec=without_mean, dtype=np.float64)
        start = generator(0, "spectrum").standard_normal(self.nodes)
        return float(abs(eigsh(operator, k=1, which="LM", v0=start, return_eigenvectors=False)[0]))

    def rounds_to_shrink(self, factor: float) -> int:
        """Synchronization rounds after which disagreement is at most 1/``factor`` of what it was.

        The smallest k with |λ2|^k ≤ 1/factor.
        """
        if not 1 < factor < math.inf:
            raise InputError(f"the factor must be a number greater than 1, not {factor:g}")
        if self.lambda2 < 1e-12:
            return 1
        return max(1, math.ceil(math.log(factor) / -math.log(self.lambda2) - 1e-9))


def _connected(nodes: int, seed: int, name: str, make: Callable[[int], nx.Graph]) -> Topology:
    """The first connected graph that ``make`` gives; tries are numbered, so the seed decides."""
    for attempt in range(_CONNECTED_TRIES):
        graph = make(derived_seed(seed, "topology", round=attempt))
        if nx.is_connected(graph):
            return Topology(nodes, graph.edges, name)
    raise InputError(f"{name}: no connected graph in {_CONNECTED_TRIES} tries; raise the degree")


def _regular(nodes: int, degree: int, seed: int) -> Topology:
    name = f"{degree}-regular topology on {nodes} nodes"
    _check_degree(nodes, degree)
    if nodes * degree % 2:
        raise InputError(
            f"no {degree}-regular topology on {nodes} nodes exists: nodes · degree must be even, and"
            f" {nodes} · {degree} = {nodes * degree} is odd"
        )
    if degree == nodes - 1:
        return _complete(nodes, degree, seed)
    return _connected(nodes, seed, name, lambda s: nx.random_regular_graph(degree, nodes, seed=s))


def _ring(nodes: int, degree: int, seed: int) -> Topology:
    return Topology(nodes, ((i, (i + 1) % nodes) for i in range(nodes if nodes > 1 else 0)), "ring")


def _complete(nodes: int, degree: int, seed: int) -> Topology:
    return Topology(nodes, ((i, j) for i in range(nodes) for j in range(i)), "complete topology")


def _star(nodes: int, degree: int, seed: int) -> Topology:
    return Topology(nodes, ((0, i) for i in range(1, nodes)), "star")


def _small_world(nodes: int, degree: int, seed: int) -> Topology:
    _check_degree(nodes, degree)
    if degree % 2:
        raise InputError(f"a small-world topology needs an even degree, not {degree}")
    return _connected(
        nodes,
        seed,
        f"small world of degree {degree} on {nodes} nodes",
        lambda s: nx.watts_strogatz_graph(nodes, degree, _SMALL_WORLD_REWIRING, seed=s),
    )


def _check_degree(nodes: int, degree: int) -> None:
    if degree < 1 or degree >= nodes:
        raise InputError(f"degree {degree} is impossible on {nodes} nodes; allowed: 1 to {nodes - 1}")


TOPOLOGIES: dict[str, Callable[[int, int, int], Topology]] = {
    "regular": _regular,
    "ring": _ring,
    "complete": _complete,
    "star": _star,
    "small_world": _small_world,
}
"""Generators by name, each called with (nodes, degree, seed); ring, complete and star ignore the degree."""


def generate(kind: str, nodes: int, degree: int, seed: int) -> Topology:
    """A connected topology of ``kind``; the same arguments give the same graph everywhere."""
    if kind not in TOPOLOGIES:
        raise unknown("topology", kind, TOPOLOGIES)
    if nodes < 1:
        raise InputError(f"a topology needs at least one node, not {nodes}")
    if nodes == 1:
        return Topology(1, (), "one node")
    return TOPOLOGIES[kind](nodes, degree, seed)
