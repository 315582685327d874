"""``skiptrain sweep``: any grid of settings, with one progress display and a table at the end."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from pathlib import Path

import click

from skiptrain_plugin.cli.figure import end_with, run_jobs, run_settings, say_files, show
from skiptrain_plugin.errors import InputError
from skiptrain_plugin.experiment.experiment import load
from skiptrain_plugin.experiment.ini import apply_settings
from skiptrain_plugin.resources import template
from skiptrain_plugin.results.record import NOT_COMPARED

MOST_RUNS = 10_000


@click.command()
@click.argument("config", type=click.Path(path_type=Path))
@click.option(
    "--vary",
    "varied",
    multiple=True,
    required=True,
    metavar="SECTION.key=v1,v2",
    help="A key and its values (repeat for a grid).",
)
@click.option("--scale", metavar="NAME", help="laptop or paper; by default the sizes in CONFIG.")
@click.option("--out", type=click.Path(path_type=Path), help="Directory of the records; by default in runs/.")
@click.option("--workers", type=int, help="Worker threads; by default one a core.")
@click.option("--precision", metavar="NAME", help="fp32 or bf16.")
@click.option("--set", "settings", multiple=True, metavar="SECTION.key=value", help="Change one key of the INI.")
def sweep(
    config: Path,
    varied: tuple[str, ...],
    scale: str | None,
    out: Path | None,
    workers: int | None,
    precision: str | None,
    settings: tuple[str, ...],
) -> None:
    """Run CONFIG (a file, or a template's name such as cifar.ini) with every combination of the varied values.

    Runs that are finished in --out with the same configuration are reused, unfinished ones go on.
    """
    from skiptrain_plugin.engine.sweep import Job
    from skiptrain_plugin.results.readings import group
    from skiptrain_plugin.results.report import sweep_table

    shipped = config == Path(config.name) and not config.exists() and template(config.name).is_file()
    path = template(config.name) if shipped else config
    axes = [parse_vary(text) for text in varied]
    fixed = [*settings, *run_settings(workers, precision)]
    jobs: list[Job] = []
    for combination in grid(axes):
        pairs = [f"{key}={value}" for key, value in combination]
        experiment = load(config=path, scale=scale, settings=[*fixed, *pairs])
        jobs.append(Job(_folder(pairs, {job.name for job in jobs}), experiment))
    root = out or Path("runs") / f"sweep-{path.stem}"
    runs, failures = run_jobs(jobs, root)
    collection = group(runs)
    order = [run.folder for run in runs]
    records = sorted(collection.records, key=lambda record: order.index(record.run.folder))
    results = sweep_table([key for key, _ in axes], records)
    show(results)
    say_files(results.write(root, "sweep"))
    end_with([*failures, *collection.problems])


def parse_vary(text: str) -> tuple[str, tuple[str, ...]]:
    """``SECTION.key=v1,v2`` as the key and its values; section and key must exist."""
    name, equals, values = text.partition("=")
    chosen = tuple(dict.fromkeys(value.strip() for value in values.split(",") if value.strip()))
    section, dot, key = (part.strip() for part in name.partition("."))
    if not equals or not dot or not key or not chosen:
        raise InputError(f"--vary {text}: expected SECTION.key=v1,v2, for example RUN.degree=6,8,10")
    apply_settings({}, [f"{section}.{key}={chosen[0]}"])
    section, key = section.upper(), key.lower()
    if (section, key) in NOT_COMPARED:
        raise InputError(
            f"--vary {text}: {section}.{key} does not change what a run computes; use --set, or a run each"
        )
    return f"{section}.{key}", chosen


def grid(axes: Sequence[tuple[str, tuple[str, ...]]]) -> list[tuple[tuple[str, str], ...]]:
    """Every combination of the values, the last axis fastest."""
    keys = [key for key, _ in axes]
    for key in keys:
        if keys.count(key) > 1:
            raise InputError(f"--vary {key}: given twice; put all its values in one, separated by commas")
    size = 1
    for _, values in axes:
        size *= len(values)
    if size > MOST_RUNS:
        raise InputError(f"the grid has {size} runs; at most {MOST_RUNS} are allowed")
    return [tuple(zip(keys, values, strict=True)) for values in itertools.product(*(values for _, values in axes))]


def _folder(pairs: Sequence[str], taken: set[str]) -> str:
    """A folder name for the varied settings; different settings get different names."""
    plain = re.sub(r"[^A-Za-z0-9._=,-]+", "_", ",".join(pairs))[:200]
    numbered = (plain if number == 1 else f"{plain}-{number}" for number in itertools.count(1))
    return next(name for name in numbered if name not in taken)
