"""``skiptrain data``: get, check and list the datasets."""

from __future__ import annotations

import click

from skiptrain_plugin.cli.show import human_bytes, human_seconds, show_table
from skiptrain_plugin.errors import RunError


@click.group()
def data() -> None:
    """The datasets: CIFAR-10, FEMNIST, and two generated ones for trying things out."""


@data.command()
@click.argument("name")
def get(name: str) -> None:
    """Fetch, convert or draw the dataset NAME, verify it and keep it in the cache."""
    from skiptrain_plugin.data import get as fetch

    found = fetch(name)
    click.echo(f"{found.title}: {', '.join(map(str, found.where))} ({human_bytes(found.size)})")


@data.command()
@click.argument("name")
def check(name: str) -> None:
    """Read and hash every byte of the dataset NAME in the cache."""
    from skiptrain_plugin.data import check as verify

    result = verify(name)
    if not result.folders:
        raise RunError(f"{name} is not in the cache; 'skiptrain data get {name}' puts it there")
    if result.problems:
        raise RunError("; ".join(result.problems))
    click.echo(f"{name}: sound, {human_bytes(result.size)} read in {human_seconds(result.seconds)}")


@data.command("list")
def list_datasets() -> None:
    """List the datasets, what is here of them, and how to get the others."""
    from skiptrain_plugin.data import listing

    rows = [
        (
            one.name,
            one.title,
            "here" if one.present else "not here",
            human_bytes(one.size) if one.size else "–",
            ", ".join(map(str, one.where)) or one.how,
        )
        for one in listing()
    ]
    show_table("", ("name", "dataset", "state", "size", "where, or how to get it"), rows)
