"""``skiptrain plan``: what a run will do, without training."""

from __future__ import annotations

import json
from typing import Any

import click

from skiptrain_plugin.cli.options import experiment_options, experiments
from skiptrain_plugin.cli.show import console, human_bytes, show_table
from skiptrain_plugin.experiment.plan import Plan, make_plan


@click.command()
@experiment_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON (a list when there are several algorithms).")
def plan(as_json: bool, **options: Any) -> None:
    """Show rounds, energy, bytes, memory and work of a run before running it."""
    plans = [make_plan(experiment) for experiment in experiments(**options)]
    if as_json:
        documents = [p.to_json() for p in plans]
        click.echo(json.dumps(documents[0] if len(documents) == 1 else documents, indent=2))
        return
    for one in plans:
        _show(one)


def _show(p: Plan) -> None:
    rows = [
        ("nodes", f"{p.nodes}, mean degree {p.degree:.4g}, |λ2| {p.lambda2:.3f}"),
        ("rounds", f"{p.rounds}: {p.training_rounds} training, {p.synchronization_rounds} synchronization"),
        ("Γ_train, Γ_sync, T_train", f"{p.gamma_train}, {p.gamma_sync}, {p.t_train:.6g}"),
        ("training energy, expected", f"{p.expected_training_energy_wh:.2f} Wh"),
        ("training energy, at most", f"{p.maximal_training_energy_wh:.2f} Wh"),
        ("communication energy", f"{p.communication_energy_wh:.2f} Wh for {human_bytes(p.bytes_sent)} sent"),
        ("memory (embedded engine)", f"about {human_bytes(p.memory_bytes)}"),
        ("training work", f"{p.training_flop / 1e12:.4g} TFLOP, {p.evaluations} evaluations"),
    ]
    show_table(f"{p.algorithm} on {p.dataset}", ("what", "value"), rows)
    show_table(
        "",
        ("device", "nodes", "mWh per training round", "τ [rounds]", "p"),
        [(d.name, d.nodes, f"{d.wh_per_round * 1000:.3f}", d.tau, f"{d.probability:.4f}") for d in p.devices],
    )
    for note in p.notes:
        console().print(f"Note: {note}.", markup=False)
    console().print()
