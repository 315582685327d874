"""``skiptrain energy``: show a trace, or derive one from a device table."""

from __future__ import annotations

from pathlib import Path

import click

from skiptrain_plugin.cli.show import show_table
from skiptrain_plugin.energy.devices import TraceRow, Workload, derive
from skiptrain_plugin.energy.trace_csv import format_trace
from skiptrain_plugin.errors import InputError, unknown
from skiptrain_plugin.experiment.files import read_devices, read_trace
from skiptrain_plugin.resources import is_packaged_trace, packaged_trace


@click.group()
def energy() -> None:
    """Energy traces: what a training round costs each phone, and how many it can afford."""


@energy.command()
@click.argument("trace", default="cifar.csv")
def show(trace: str) -> None:
    """Show TRACE: a CSV file, or cifar.csv or femnist.csv of the project."""
    shown = read_trace(packaged_trace(trace) if is_packaged_trace(trace) else Path(trace))
    _show(f"{trace}: {shown.workload or 'it does not say for which workload it was made'}", shown.rows)


@energy.command("derive")
@click.option("--devices", type=click.Path(path_type=Path), help="Device table; by default the project's.")
@click.option("--device", "names", multiple=True, metavar="NAME", help="Only this device (may be repeated).")
@click.option("--parameters", type=int, required=True, help="|x|, number of model parameters.")
@click.option("--batch-size", type=int, required=True, help="Samples of a minibatch.")
@click.option("--local-steps", type=int, required=True, help="SGD steps of a training round.")
@click.option("--battery", type=float, required=True, metavar="PERCENT", help="Share of the battery for training.")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="Write the trace as CSV.")
def derive_trace(
    devices: Path | None,
    names: tuple[str, ...],
    parameters: int,
    batch_size: int,
    local_steps: int,
    battery: float,
    out: Path | None,
) -> None:
    """Derive a trace: ms = MobileNet-v2 ms · |x|/3504872 · 3 · batch · steps; Wh = W · ms / 3.6e6."""
    table = read_devices(devices or packaged_trace("devices.csv"))
    known = {device.name: device for device in table}
    for name in names:
        if name not in known:
            raise unknown("device", name, known)
    workload = Workload(parameters, batch_size, local_steps)
    rows = [derive(known[name], workload, battery / 100) for name in names or known]
    if out is None:
        _show(f"{workload}, {battery:g} % of the battery", rows)
        return
    try:
        out.write_text(format_trace(rows, workload), encoding="utf-8")
    except OSError as error:
        raise InputError(f"--out {out}: cannot be written: {error.strerror}") from None
    click.echo(f"wrote {out}")


def _show(title: str, rows: tuple[TraceRow, ...] | list[TraceRow]) -> None:
    show_table(
        title,
        ("device", "mWh per training round", "τ [training rounds]"),
        [(row.name, f"{row.wh_per_round * 1000:.6f}", row.budget) for row in rows],
    )
