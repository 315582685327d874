"""DecentralizePy's two graph formats, as text: an edge list or adjacency lines, both headed by n."""

from __future__ import annotations

from skiptrain_plugin.algorithm.topology import Topology
from skiptrain_plugin.errors import InputError, unknown

GRAPH_TYPES = ("edges", "adjacency")
_MOST_NODES = 1_000_000


def parse_graph(text: str, graph_type: str, where: str) -> Topology:
    """The topology that ``text`` describes; ``where`` (a file name) stands in every error."""
    if graph_type not in GRAPH_TYPES:
        raise unknown("graph_type", graph_type, GRAPH_TYPES, where)
    lines = text.splitlines()
    first = lines[0].strip() if lines else ""
    if not (first.isascii() and first.isdigit() and 0 < int(first[:10]) <= _MOST_NODES and len(first) < 10):
        raise InputError(f"{where}, line 1: expected the number of nodes (1 to {_MOST_NODES}), not '{first[:40]}'")
    nodes = int(first)
    edges: set[tuple[int, int]] = set()
    rows = [(number, line.split()) for number, line in enumerate(lines[1:], start=2)]
    if graph_type == "edges":
        for number, fields in rows:
            if not fields:
                continue
            if len(fields) != 2:
                raise InputError(
                    f"{where}, line {number}: expected two nodes, found {len(fields)} values"
                    " (is this an adjacency file? then graph_type = adjacency)"
                )
            edges.add(_edge(fields[0], fields[1], nodes, f"{where}, line {number}"))
    else:
        while rows and not rows[-1][1]:
            rows.pop()
        if len(rows) != nodes:
            raise InputError(f"{where}: line 1 promises {nodes} nodes, but {len(rows)} lines of neighbours follow")
        for uid, (number, fields) in enumerate(rows):
            for value in fields:
                edges.add(_edge(str(uid), value, nodes, f"{where}, line {number}"))
        for i, j in edges:
            if (j, i) not in edges:
                raise InputError(f"{where}: node {i} names {j} as neighbour, but {j} does not name {i}")
    seen = {uid for edge in edges for uid in edge}
    if nodes > 1 and len(seen) != nodes:
        missing = next(uid for uid in range(nodes) if uid not in seen)
        raise InputError(
            f"{where}: line 1 promises {nodes} nodes, but only {len(seen)} have neighbours (node {missing} has none)"
        )
    return Topology(nodes, edges, where)


def _edge(first: str, second: str, nodes: int, place: str) -> tuple[int, int]:
    uids = []
    for value in (first, second):
        if not (value.isascii() and value.isdigit() and len(value) < 10):
            raise InputError(f"{place}: '{value[:40]}' is not a node number")
        if int(value) >= nodes:
            raise InputError(f"{place}: node {int(value)} is out of range; nodes are 0 to {nodes - 1}")
        uids.append(int(value))
    if uids[0] == uids[1]:
        raise InputError(f"{place}: node {uids[0]} has a self-loop")
    return uids[0], uids[1]


def format_graph(topology: Topology, graph_type: str = "edges") -> str:
    """The text that ``parse_graph`` and DecentralizePy's Graph read back to the same topology."""
    if graph_type == "edges":
        body = [f"{i} {j}" for i, j in topology.edges]
    elif graph_type == "adjacency":
        body = [" ".join(map(str, topology.neighbors(uid))) for uid in range(topology.nodes)]
    else:
        raise unknown("graph_type", graph_type, GRAPH_TYPES)
    return "\n".join([str(topology.nodes), *body]) + "\n"
