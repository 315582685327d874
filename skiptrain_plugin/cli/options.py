"""The options that several commands share, and how they become experiments."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from skiptrain_plugin.errors import InputError
from skiptrain_plugin.experiment.experiment import Experiment, load

Command = TypeVar("Command", bound=Callable[..., Any])

_OPTIONS = (
    click.option("--dataset", metavar="NAME", help="cifar, femnist, glyphs or synthetic."),
    click.option("--degree", type=int, help="Neighbours of each node."),
    click.option("--algorithm", metavar="NAMES", help="One or more of the algorithms, comma-separated."),
    click.option("--scale", metavar="NAME", help="laptop (minutes on two cores) or paper (256 nodes)."),
    click.option("--config", type=click.Path(path_type=Path), help="An INI file instead of a dataset's template."),
    click.option("--set", "settings", multiple=True, metavar="SECTION.key=value", help="Change one key of the INI."),
    click.option("--seed", type=int, help="Seed of everything random."),
)


def experiment_options(command: Command) -> Command:
    """Adds the options that choose an experiment."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def experiments(
    dataset: str | None,
    degree: int | None,
    algorithm: str | None,
    scale: str | None,
    config: Path | None,
    settings: tuple[str, ...],
    seed: int | None,
) -> list[Experiment]:
    """One experiment for each algorithm asked for (by default the INI's)."""
    names: list[str | None] = [None]
    if algorithm is not None:
        names = list(dict.fromkeys(name.strip() for name in algorithm.split(",") if name.strip()))
        if not names:
            raise InputError("--algorithm: expected at least one name")
    return [
        load(
            config=config,
            dataset=dataset,
            scale=scale,
            degree=degree,
            seed=seed,
            settings=settings,
            algorithm=name,
            beside=[other for other in names if other is not None],
        )
        for name in names
    ]
