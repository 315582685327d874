"""``skiptrain figure N`` and ``skiptrain table N``: run what is missing, reuse what is finished, then draw."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from skiptrain_plugin.cli.show import console, human_seconds, show_table
from skiptrain_plugin.errors import INTERRUPTED_EXIT, InputError
from skiptrain_plugin.experiment.figures import WITHOUT_TRAINING, FigurePlan, read_template
from skiptrain_plugin.results.style import algorithm_name

if TYPE_CHECKING:
    from skiptrain_plugin.engine.sweep import Job
    from skiptrain_plugin.results.readings import Collection
    from skiptrain_plugin.results.record import Run
    from skiptrain_plugin.results.tables import Table

Command = TypeVar("Command", bound=Callable[..., Any])

_OPTIONS = (
    click.argument("number", type=int),
    click.option("--scale", default="laptop", show_default=True, metavar="NAME", help="laptop or paper (256 nodes)."),
    click.option("--dataset", metavar="NAMES", help="One of the template's datasets, or several, comma-separated."),
    click.option("--config", type=click.Path(path_type=Path), help="A template of your own in place of the project's."),
    click.option("--out", type=click.Path(path_type=Path), help="Directory of records and files; by default in runs/."),
    click.option("--resume", is_flag=True, help="Refuse to begin anew: --out must hold runs to go on with."),
    click.option("--workers", type=int, help="Worker threads; by default one a core."),
    click.option("--precision", metavar="NAME", help="fp32 or bf16."),
    click.option("--set", "settings", multiple=True, metavar="SECTION.key=value", help="Change one key of the INI."),
)


def _figure_options(command: Command) -> Command:
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@click.command()
@_figure_options
def figure(number: int, **options: Any) -> None:
    """Make figure NUMBER of the paper as PNG, SVG and CSV.

    Runs that are finished in --out with the same configuration are reused, unfinished ones go on.
    """
    _make("figure", number, **options)


@click.command()
@_figure_options
def table(number: int, **options: Any) -> None:
    """Make table NUMBER of the paper as CSV, Markdown and LaTeX, the paper's values beside.

    Runs that are finished in --out with the same configuration are reused, unfinished ones go on.
    """
    _make("table", number, **options)


def _make(
    kind: str,
    number: int,
    scale: str,
    dataset: str | None,
    config: Path | None,
    out: Path | None,
    resume: bool,
    workers: int | None,
    precision: str | None,
    settings: tuple[str, ...],
) -> None:
    from skiptrain_plugin.engine.sweep import Job
    from skiptrain_plugin.results.readings import group

    template = read_template(kind, number, config)
    names = list(dict.fromkeys(name.strip() for name in dataset.split(",") if name.strip())) if dataset else []
    if not names:
        names = ["cifar", "femnist"] if (kind, number) in (("table", 1), ("table", 2)) else template.datasets[:1]
    changes = [*settings, *run_settings(workers, precision)]
    plans = [template.plan(name, scale, changes) for name in names]
    root = out or Path("runs") / f"{kind}{number}-{'-'.join(names)}-{scale}"
    if resume and not any(root.glob("**/run.json")):
        raise InputError(f"--resume: {root} holds no run; there is nothing to go on with")
    name = f"{kind}{number}-{'-'.join(names)}"
    if (kind, number) in WITHOUT_TRAINING:
        files = _without_training(kind, number, plans, root, name)
        say_files(files)
        return
    jobs = [Job(f"{plan.dataset}/{one.name}", one.experiment) for plan in plans for one in plan.variants]
    runs, failures = run_jobs(jobs, root)
    collection = group(runs)
    _show_runs(collection)
    failures += collection.problems
    try:
        say_files(_from_runs(kind, number, collection, root, name))
    except InputError:
        end_with(failures)
        raise
    end_with(failures)


def run_settings(workers: int | None, precision: str | None) -> list[str]:
    """``--workers`` and ``--precision`` as settings."""
    chosen = [f"RUN.workers={workers}"] if workers is not None else []
    return chosen + ([f"RUN.precision={precision}"] if precision is not None else [])


def run_jobs(jobs: Sequence[Job], root: Path) -> tuple[list[Run], list[str]]:
    """Runs what is missing with one display; exits with 130 when interrupted. Returns the runs and the failures."""
    from skiptrain_plugin.cli.sweep_progress import SweepDisplay
    from skiptrain_plugin.engine.sweep import place, run_all

    logging.basicConfig(format="skiptrain: %(message)s", level=logging.WARNING)
    placed = place(jobs, root)
    with SweepDisplay(placed) as display:
        outcome = run_all(placed, display)
    if outcome.interrupted is not None:
        done = sum(run.finished for run in outcome.runs)
        console().print(
            f"Interrupted in {outcome.interrupted.job.name}; {done} of {len(placed)} runs are finished, all are kept in"
            f" {root}. The same command goes on from there.",
            markup=False,
        )
        raise SystemExit(INTERRUPTED_EXIT)
    return outcome.runs, outcome.failures


def end_with(failures: Sequence[str]) -> None:
    """Names failed runs and exits with 1 when there are any."""
    for failure in failures:
        console().print(f"Failed: {failure}", markup=False)
    if failures:
        raise SystemExit(1)


def say_files(files: Sequence[Path]) -> None:
    """Says which files were written."""
    for file in files:
        console().print(f"wrote {file}", markup=False)


def show(one: Table) -> None:
    """Prints a table with its notes."""
    show_table(one.title, one.columns, [[one.text(cell) for cell in row] for row in one.rows])
    for note in one.notes:
        console().print(note, markup=False)


def _without_training(kind: str, number: int, plans: Sequence[FigurePlan], root: Path, name: str) -> list[Path]:
    from skiptrain_plugin.data import listing
    from skiptrain_plugin.data.for_experiment import images_of
    from skiptrain_plugin.results.classes import figure7
    from skiptrain_plugin.results.draw import write_chart
    from skiptrain_plugin.results.figures import figure2_from_policies
    from skiptrain_plugin.results.paper_tables import table1, table2

    if kind == "table":
        experiments = [plan.variants[0].experiment for plan in plans]
        return _write_table((table1 if number == 1 else table2)(experiments), root, name)
    if number == 7:
        sources = []
        for plan in plans:
            experiment = plan.variants[0].experiment
            sources.append((experiment, images_of(experiment)))
        return write_chart(figure7(sources, name, plans[0].nodes_shown), root)
    titles = {one.name: one.title for one in listing()}
    files = []
    for plan in plans:
        experiments = [variant.experiment for variant in plan.variants]
        chart = figure2_from_policies(
            experiments, titles[plan.dataset], f"figure2-{plan.dataset}", plan.nodes_shown, plan.rounds_shown
        )
        files += write_chart(chart, root)
    return files


def _from_runs(kind: str, number: int, collection: Collection, root: Path, name: str) -> list[Path]:
    from skiptrain_plugin.results import figures
    from skiptrain_plugin.results.draw import write_chart
    from skiptrain_plugin.results.paper_tables import table3, table4

    if kind == "table":
        made = (table3 if number == 3 else table4)(collection.families)
        if made is None:
            raise InputError(f"table {number} cannot be made: the runs it compares are not there")
        return _write_table(made, root, name)
    makers = {1: figures.figure1, 3: figures.figure3, 4: figures.figure4, 5: figures.figure5, 6: figures.figure6}
    files = []
    for family in collection.families:
        chart = makers[number](family, f"figure{number}-{family.dataset}")
        if chart is not None:
            files += write_chart(chart, root)
    if not files:
        raise InputError(f"figure {number} cannot be drawn: the runs it needs are not there or have no evaluation")
    return files


def _show_runs(collection: Collection) -> None:
    for family in collection.families:
        rows = []
        for record in family.records:
            schedule, last = record.experiment.schedule, record.last
            rows.append(
                (
                    algorithm_name(record.algorithm),
                    record.topology,
                    f"{schedule.training}/{schedule.synchronization}" if record.has_cycles else "–",
                    f"{last.accuracy:.2f} ± {last.deviation:.2f}" if last else "–",
                    f"{record.training_wh[-1]:.2f}" if record.completed else "–",
                    human_seconds(record.wall_seconds) if record.finished else record.state,
                )
            )
        columns = ("algorithm", "topology", "Γ", "test accuracy [%]", "energy [Wh]", "time")
        show_table(family.subtitle, columns, rows)


def _write_table(made: Table, root: Path, name: str) -> list[Path]:
    from skiptrain_plugin.results.paper_tables import narrow

    try:
        root.mkdir(parents=True, exist_ok=True)
        show(narrow(made) if "Data" in made.columns else made)
        return made.write(root, name)
    except OSError as error:
        raise InputError(f"{root} cannot be written: {error.strerror or error}") from None
