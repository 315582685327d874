"""``skiptrain run``: run one or more algorithms and compare them."""

from __future__ import annotations

import logging
import sys
import time
from pathlib import Path
from typing import Any

import click

from skiptrain_plugin.cli.options import experiment_options, experiments
from skiptrain_plugin.cli.show import console, human_seconds, show_table
from skiptrain_plugin.errors import InputError, unknown
from skiptrain_plugin.experiment.experiment import Experiment
from skiptrain_plugin.results.record import FINISHED, Run, find_runs

INTERRUPTED_EXIT = 130
ENGINES = ("embedded", "decentralizepy")


@click.command()
@experiment_options
@click.option("--out", type=click.Path(path_type=Path), help="Directory of the record; by default a new one in runs/.")
@click.option("--resume", is_flag=True, help="Go on with the unfinished runs in --out.")
@click.option("--workers", type=int, help="Worker threads; by default one a core.")
@click.option("--precision", metavar="NAME", help="fp32 or bf16.")
@click.option("--engine", default="embedded", show_default=True, metavar="NAME", help=", ".join(ENGINES) + ".")
def run(
    out: Path | None, resume: bool, workers: int | None, precision: str | None, engine: str, **options: Any
) -> None:
    """Run the experiment with each algorithm, write the records, and print the comparison."""
    extra = [f"RUN.workers={workers}"] if workers is not None else []
    extra += [f"RUN.precision={precision}"] if precision is not None else []
    options["settings"] = (*options["settings"], *extra)
    if engine not in ENGINES:
        raise unknown("engine", engine, ENGINES, "--engine")
    if resume and out is None:
        raise InputError("--resume needs --out, the directory of the run to go on with")
    chosen = ("dataset", "config", "scale", "degree", "algorithm", "seed")
    if resume and out is not None and not options["settings"] and all(options[name] is None for name in chosen):
        wanted = [one.experiment for one in find_runs([out])]
        if not wanted:
            raise InputError(f"{out} holds no run to go on with")
    else:
        wanted = experiments(**options)
    folder = out or _new_folder(wanted[0])
    logging.basicConfig(format="skiptrain: %(message)s", level=logging.WARNING)
    run_one = _run_embedded if engine == "embedded" else _run_on_framework
    results = [run_one(experiment, folder / experiment.node.algorithm, resume) for experiment in wanted]
    show_results(results)
    console().print(f"Records: {folder}", markup=False)
    console().print(f"Report: {_report(folder)}", markup=False)


def _run_embedded(experiment: Experiment, folder: Path, resume: bool) -> Run:
    from skiptrain_plugin.cli.progress import RunDisplay
    from skiptrain_plugin.engine.estimate import estimate_seconds
    from skiptrain_plugin.engine.runner import run_experiment

    with RunDisplay() as display:
        result = run_experiment(
            experiment,
            folder,
            resume=resume,
            progress=lambda simulation: [display.follow(simulation, estimate_seconds(simulation))],
        )
    return _finished(result)


def _run_on_framework(experiment: Experiment, folder: Path, resume: bool) -> Run:
    from skiptrain_plugin.cli.launch import import_launcher

    def say(sentence: str) -> None:
        print(sentence, file=sys.stderr, flush=True)

    return _finished(import_launcher().launch_local(experiment, folder, resume, say))


def _finished(result: Run) -> Run:
    """``result``, or the end of the command when it was interrupted."""
    if not result.finished:
        show_results([result])
        console().print(
            f"Interrupted after round {result.info['completed_rounds']} of {result.info['rounds']}; go on with"
            f" --resume --out {result.folder.parent}",
            markup=False,
        )
        raise SystemExit(INTERRUPTED_EXIT)
    return result


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
        last = one.evaluations[-1] if one.evaluations else None
        energy = one.rounds[-1]["training_wh"] if one.rounds else 0.0
        saving = ""
        if baseline is not None and baseline is not one:
            saving = f"{100 * (1 - energy / baseline.rounds[-1]['training_wh']):.1f} %"
        rows.append(
            (
                one.info["algorithm"],
                f"{last['test_acc_mean']:.2f} % ± {last['test_acc_std']:.2f}" if last else "–",
                f"{last['mean_model_test_acc']:.2f} %" if last else "–",
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
