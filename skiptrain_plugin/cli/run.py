"""``skiptrain run``: run one or more algorithms and compare them."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from skiptrain_plugin.atomic import make_folder
from skiptrain_plugin.cli.options import experiment_options, experiments
from skiptrain_plugin.cli.show import console, human_seconds, show_table
from skiptrain_plugin.errors import INTERRUPTED_EXIT, InputError, unknown
from skiptrain_plugin.experiment.experiment import Experiment, load
from skiptrain_plugin.results.readings import read_record
from skiptrain_plugin.results.record import FINISHED, Run, write_atomically

ENGINES = ("embedded", "decentralizepy")


@click.command()
@experiment_options
@click.option("--out", type=click.Path(path_type=Path), help="Directory of the record; by default a new one in runs/.")
@click.option("--resume", is_flag=True, help="Go on with the unfinished runs in --out.")
@click.option("--workers", type=int, help="Worker threads; by default one a core.")
@click.option("--precision", metavar="NAME", help="fp32 or bf16.")
@click.option("--engine", default="embedded", show_default=True, metavar="NAME", help=", ".join(ENGINES) + ".")
@click.option("--tensorboard", is_flag=True, help="Write TensorBoard events beside the record (embedded engine).")
def run(
    out: Path | None,
    resume: bool,
    workers: int | None,
    precision: str | None,
    engine: str,
    tensorboard: bool,
    **options: Any,
) -> None:
    """Run the experiment with each algorithm, write the records, and print the comparison."""
    extra = [f"RUN.workers={workers}"] if workers is not None else []
    extra += [f"RUN.precision={precision}"] if precision is not None else []
    if engine not in ENGINES:
        raise unknown("engine", engine, ENGINES, "--engine")
    if resume and out is None:
        raise InputError("--resume needs --out, the directory of the run to go on with")
    chosen = ("dataset", "config", "scale", "degree", "algorithm", "seed")
    if resume and out is not None and not options["settings"] and all(options[name] is None for name in chosen):
        wanted = [load(config=path, settings=extra) for path in sorted(out.glob("*/config.ini"))]
        if not wanted:
            raise InputError(f"{out} holds no run to go on with")
    else:
        options["settings"] = (*options["settings"], *extra)
        wanted = experiments(**options)
    folder = out or _new_folder(wanted[0])
    if resume:
        _check_resumable(wanted, folder)
    logging.basicConfig(format="skiptrain: %(message)s", level=logging.WARNING)
    results: list[Run] = []
    for experiment in wanted:
        place = folder / experiment.node.algorithm
        if engine == "embedded":
            results.append(_run_embedded(experiment, place, resume, tensorboard, lambda: _announce(wanted, folder)))
        else:
            results.append(_run_on_framework(experiment, place, resume))
        if not results[-1].finished:
            show_results(results)
            info = results[-1].info
            console().print(
                f"Interrupted after round {info['completed_rounds']} of {info['rounds']} of {info['algorithm']}; go on"
                f" with --resume --out {folder}",
                markup=False,
            )
            raise SystemExit(INTERRUPTED_EXIT)
    show_results(results)
    console().print(f"Records: {folder}", markup=False)
    console().print(f"Report: {_report(folder)}", markup=False)


def _run_embedded(
    experiment: Experiment, folder: Path, resume: bool, tensorboard: bool, announce: Callable[[], None]
) -> Run:
    from skiptrain_plugin.cli.progress import RunDisplay
    from skiptrain_plugin.cli.tensorboard import TensorBoard
    from skiptrain_plugin.engine.estimate import estimate_seconds
    from skiptrain_plugin.engine.runner import run_experiment
    from skiptrain_plugin.engine.simulation import Callback, Simulation

    boards = [TensorBoard(folder)] if tensorboard else []
    with RunDisplay() as display:

        def callbacks(simulation: Simulation) -> list[Callback]:
            announce()
            return [display.follow(simulation, estimate_seconds(simulation)), *boards]

        return run_experiment(experiment, folder, resume=resume, progress=callbacks)


def _run_on_framework(experiment: Experiment, folder: Path, resume: bool) -> Run:
    from skiptrain_plugin.cli.launch import import_launcher

    def say(sentence: str) -> None:
        print(sentence, file=sys.stderr, flush=True)

    result: Run = import_launcher().launch_local(experiment, folder, resume, say)
    return result


def _check_resumable(wanted: list[Experiment], folder: Path) -> None:
    """Refuses to begin something new in a directory that holds other runs only."""
    held = [path.parent.name for path in folder.glob("*/config.ini")]
    if held and not any(experiment.node.algorithm in held for experiment in wanted):
        raise InputError(
            f"--resume: {folder} holds {', '.join(sorted(held))}, not"
            f" {', '.join(experiment.node.algorithm for experiment in wanted)}"
        )


def _announce(wanted: list[Experiment], folder: Path) -> None:
    """Notes every experiment before the first begins, so that --resume finds those that never started."""
    for experiment in wanted:
        place = folder / experiment.node.algorithm
        if not (place / "config.ini").exists():
            make_folder(place)
            write_atomically(place / "config.ini", experiment.to_ini())


def _report(folder: Path) -> Path:
    """Writes figures, tables and the page of the runs in ``folder``; returns the page."""
    from skiptrain_plugin.results.report import build, write

    write(build([folder]), folder / "report")
    return folder / "report" / "report.html"


def _new_folder(experiment: Experiment) -> Path:
    stamp = time.strftime("%Y%m%d-%H%M%S")
    return Path("runs") / f"{experiment.facts.name}-{experiment.run.degree}-{stamp}"


def show_results(runs: list[Run]) -> None:
    """The closing table: accuracy, energy, saving against D-PSGD, time."""
    baseline = next((r for r in runs if r.info["algorithm"] == "dpsgd" and r.rounds), None)
    rows = []
    for one in runs:
        last = read_record(one).last
        energy = one.rounds[-1]["training_wh"] if one.rounds else 0.0
        saving = ""
        if baseline is not None and baseline is not one:
            saving = f"{100 * (1 - energy / baseline.rounds[-1]['training_wh']):.1f} %"
        rows.append(
            (
                one.info["algorithm"],
                f"{last.accuracy:.2f} % ± {last.deviation:.2f}" if last else "–",
                f"{last.mean_model:.2f} %" if last and last.mean_model is not None else "–",
                f"{energy:.2f} Wh",
                saving or "–",
                human_seconds(sum(one.info["wall_seconds"].values())),
                f"{one.info['completed_rounds']}/{one.info['rounds']}" if one.info["status"] != FINISHED else "all",
            )
        )
    info, data = runs[0].info, runs[0].info["data"]
    title = f"{data['title']}: {info['nodes']} nodes, {info['rounds']} rounds, {data['test_samples']} test samples"
    show_table(
        title,
        (
            "algorithm",
            "test accuracy",
            "of the mean model",
            "training energy",
            "saved against D-PSGD",
            "time",
            "rounds",
        ),
        rows,
    )
    for one in runs:
        for warning in one.info.get("warnings", ()):
            console().print(f"Warning, {one.info['algorithm']}: {warning}", markup=False)
