"""``skiptrain launch``: one machine's share of a DecentralizePy deployment; ``skiptrain merge``: their records."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any

import click

from skiptrain_plugin.errors import INTERRUPTED_EXIT, InputError, RunError

_PATH = click.Path(path_type=Path)


@click.command()
@click.option("-mid", "--machine_id", type=int, default=0, help="This machine, from 0.")
@click.option("-ps", "--procs_per_machine", type=int, help="Nodes on each machine; by default n / machines.")
@click.option("-ms", "--machines", type=int, default=1, help="Machines in all.")
@click.option("-gf", "--graph_file", type=_PATH, help="The graph; by default as [RUN] says.")
@click.option("-gt", "--graph_type", help="edges or adjacency.")
@click.option("-cf", "--config_file", type=_PATH, default="config.ini", show_default=True, help="The INI.")
@click.option("-is", "--iterations", type=int, help="Rounds T; by default those of [RUN].")
@click.option("-ta", "--test_after", type=int, help="Rounds between evaluations.")
@click.option("-tea", "--train_evaluate_after", type=int, help="Rounds between training losses; 0: never.")
@click.option("-ro", "--reset_optimizer", type=click.Choice(["0", "1"]), help="New optimizer state each round.")
@click.option("-ld", "--log_dir", type=_PATH, help="Directory of logs and record; by default a new one in runs/.")
@click.option("-wsd", "--weights_store_dir", type=_PATH, help="Directory of the final weights.")
@click.option("-ll", "--log_level", default="INFO", show_default=True, help="DEBUG, INFO, WARNING, ERROR, CRITICAL.")
@click.option(
    "--on-failure",
    type=click.Choice(["continue", "stop"]),
    default="stop",
    show_default=True,
    help="When a node dies: the others go on without it, or all are stopped. The exit code is 1 either way.",
)
@click.option("--resume", is_flag=True, help="Go on from the last round of which every node has a checkpoint.")
def launch(
    log_dir: Path | None,
    weights_store_dir: Path | None,
    log_level: str,
    on_failure: str,
    resume: bool,
    **flags: Any,
) -> None:
    """Run this machine's nodes with DecentralizePy, one process each, and watch them.

    The flags are those of DecentralizePy's own driver; what is not given is read from [RUN] of the INI.
    """
    from skiptrain_plugin.deployment.plan import Flags, from_flags
    from skiptrain_plugin.deployment.plan import log_level as checked_level

    level = logging.getLevelName(checked_level(log_level))
    if resume and log_dir is None:
        raise InputError("--resume needs -ld, the directory of the run to go on with")
    for name in ("procs_per_machine", "iterations", "test_after"):
        if flags[name] is not None and flags[name] < 1:
            raise InputError(f"--{name} must be at least 1, not {flags[name]}")
    flags["reset_optimizer"] = None if flags["reset_optimizer"] is None else int(flags["reset_optimizer"])
    deployment = from_flags(Flags(**flags))
    launcher = import_launcher()
    folder = log_dir or Path("runs") / time.strftime("launch-%Y%m%d-%H%M%S")
    logging.basicConfig(format="skiptrain: %(message)s", level=logging.WARNING)
    settings = launcher.Launch(
        folder,
        weights_store_dir or folder / "weights",
        level,
        on_failure,
        resume,
        lambda text: click.echo(text, err=True),
    )
    outcome = launcher.launch(deployment, settings)
    click.echo(f"Records: {folder}")
    if outcome.failures:
        names = ", ".join(str(failure.uid) for failure in outcome.failures)
        ending = "the others were stopped" if outcome.stopped else "the others went on without"
        raise RunError(f"died: node {names}; {ending}")
    if outcome.interrupted:
        click.echo(f"Interrupted; go on with --resume -ld {folder}", err=True)
        raise SystemExit(INTERRUPTED_EXIT)


@click.command()
@click.argument("folders", nargs=-1, required=True, type=_PATH)
@click.option("--out", type=_PATH, required=True, help="Directory of the merged record.")
def merge(folders: tuple[Path, ...], out: Path) -> None:
    """Make one record of the log directories FOLDERS of all machines of a deployment."""
    from skiptrain_plugin.deployment.merge import merge_shares

    run = merge_shares(folders, out)
    click.echo(f"Records: {run.folder} ({run.info['completed_rounds']} rounds of {run.info['nodes']} nodes)")


def import_launcher() -> Any:
    try:
        from skiptrain_plugin import launcher
    except ImportError as error:
        if error.name != "decentralizepy":
            raise
        raise InputError(str(error)) from None
    return launcher
