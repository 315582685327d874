"""``skiptrain keys``: make the key files that SecureTCP needs."""

from __future__ import annotations

from pathlib import Path

import click

from skiptrain_plugin.errors import InputError


@click.command()
@click.option("--nodes", type=click.IntRange(1, 100_000), required=True, metavar="N", help="Nodes 0 to N-1.")
@click.option("--out", type=click.Path(path_type=Path), required=True, metavar="DIR", help="A new directory.")
@click.option("--machines", type=click.IntRange(1), default=1, metavar="M", help="Also one folder a machine, to copy.")
@click.option("--services", type=click.IntRange(0, 100), default=0, metavar="K", help="Also servers -1 to -K.")
@click.option("--force", is_flag=True, help="Replace the keys in DIR.")
def keys(nodes: int, out: Path, machines: int, services: int, force: bool) -> None:
    """Make a key pair for every node: DIR/public.json and one private DIR/node-UID.secret a node.

    With several machines, DIR/machine-K holds what machine K needs and nothing more: public.json and the
    secrets of its own nodes (N/M each, in order).
    """
    from skiptrain_plugin.wire.keys import PUBLIC_FILE, make_keys

    if nodes % machines:
        raise InputError(f"--nodes {nodes} cannot be shared evenly among --machines {machines}")
    share = nodes // machines
    groups = [list(range(first, first + share)) for first in range(0, nodes, share)]
    groups[0] += [-1 - number for number in range(services)]
    make_keys(out, groups, force=force)
    click.echo(f"wrote keys of {nodes + services} nodes to {out}")
    click.echo(f"{PUBLIC_FILE} goes to every machine, a node-*.secret only to the machine that runs that node")
