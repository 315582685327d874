"""``skiptrain topology``: make a graph or read one; show degree, |λ2| and advice; save it."""

from __future__ import annotations

from pathlib import Path

import click

from skiptrain_plugin.algorithm.graph_text import GRAPH_TYPES, format_graph
from skiptrain_plugin.algorithm.schedule import tuned_schedule
from skiptrain_plugin.algorithm.topology import TOPOLOGIES, generate
from skiptrain_plugin.cli.show import show_table
from skiptrain_plugin.errors import InputError, unknown
from skiptrain_plugin.experiment.files import read_graph


@click.command()
@click.argument("kind", metavar=f"[{'|'.join(TOPOLOGIES)}|FILE]", default="regular")
@click.option("--nodes", type=int, default=256, show_default=True)
@click.option("--degree", type=int, default=6, show_default=True)
@click.option("--seed", type=int, default=1234, show_default=True)
@click.option("--graph-type", default="edges", show_default=True, help="Format of files: edges or adjacency.")
@click.option("--factor", type=float, default=10.0, show_default=True, help="By how much disagreement should shrink.")
@click.option("--save", type=click.Path(path_type=Path, dir_okay=False), help="Write DecentralizePy's graph file.")
def topology(kind: str, nodes: int, degree: int, seed: int, graph_type: str, factor: float, save: Path | None) -> None:
    """Make a topology, or read one from a graph file; show its mixing and how many Γ_sync it asks for."""
    if graph_type not in GRAPH_TYPES:
        raise unknown("graph type", graph_type, GRAPH_TYPES, "--graph-type")
    is_name = kind in TOPOLOGIES or not ("/" in kind or "." in kind or Path(kind).is_file())
    graph = generate(kind, nodes, degree, seed) if is_name else read_graph(Path(kind), graph_type)
    degrees = graph.degrees
    span = f"{degrees.min()}" if degrees.min() == degrees.max() else f"{degrees.min()} to {degrees.max()}"
    rounds = graph.rounds_to_shrink(factor)
    tuned = tuned_schedule(float(degrees.mean()))
    rows = [
        ("nodes", graph.nodes),
        ("edges", len(graph.edges)),
        ("degree", span),
        ("|λ2| of Metropolis-Hastings W", f"{graph.lambda2:.4f}"),
        (f"synchronization rounds to shrink disagreement {factor:g} times", rounds),
        ("Γ_train, Γ_sync tuned in the paper (nearest degree)", f"{tuned.training}, {tuned.synchronization}"),
    ]
    show_table(graph.name, ("what", "value"), rows)
    if save is not None:
        try:
            save.write_text(format_graph(graph, graph_type), encoding="ascii")
        except OSError as error:
            raise InputError(f"--save {save}: cannot be written: {error.strerror}") from None
        click.echo(f"wrote {save} ({graph_type})")
