"""One run from experiment to record: data, memory check, resume, loop, final models."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from skiptrain_plugin.atomic import replacing
from skiptrain_plugin.engine.callbacks import Checkpointer, LossWatch, Recorder, StopOnSignal
from skiptrain_plugin.engine.checkpoint import load_newest
from skiptrain_plugin.engine.node_data import NodeData, load_node_data
from skiptrain_plugin.engine.simulation import Callback, Simulation, worker_count
from skiptrain_plugin.errors import InputError, RunError
from skiptrain_plugin.experiment.experiment import Experiment
from skiptrain_plugin.experiment.plan import check_memory
from skiptrain_plugin.kernels.selection import describe
from skiptrain_plugin.results.consistency import recorded_trace
from skiptrain_plugin.results.lines import cut_lines
from skiptrain_plugin.results.record import (
    FAILED,
    FINISHED,
    INTERRUPTED,
    Run,
    RunDirectory,
    difference,
    disk_error,
    write_node_results,
)

_LOG = logging.getLogger(__name__)


def available_memory() -> int:
    """Bytes that a new process can use without swapping, where the system tells."""
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def run_experiment(
    experiment: Experiment,
    folder: Path,
    *,
    resume: bool = False,
    progress: Callable[[Simulation], list[Callback]] = lambda simulation: [],
    data: NodeData | None = None,
) -> Run:
    """Runs ``experiment`` with its record in ``folder``; returns the record, finished or interrupted."""
    directory = RunDirectory(folder)
    try:
        if directory.exists:
            recorded = Run(folder)
            if not resume:
                raise InputError(f"{folder} already holds a run; go on with --resume or choose another --out")
            unlike = difference(recorded.experiment, experiment)
            if unlike:
                raise InputError(f"{folder} holds another experiment: {unlike}")
            if recorded_trace(recorded, experiment) != experiment.trace:
                raise InputError(f"{folder}: its energies are those of the trace as it stands, which is scaled now")
            if recorded.finished:
                return recorded
        elif (folder / "rounds.jsonl").exists():
            raise InputError(f"{folder} has a rounds.jsonl but no run.json to say of which run; choose another --out")
        check_memory(experiment, worker_count(experiment), available_memory())
        started = time.perf_counter()
        data = data or load_node_data(experiment)
        simulation = Simulation(experiment, data)
        simulation.wall_seconds["data"] = time.perf_counter() - started - simulation.wall_seconds["setup"]
        try:
            _run(simulation, directory, progress)
        except (OSError, SafetensorError) as error:
            raise disk_error(error, folder) from error
        finally:
            simulation.close()
    finally:
        directory.close()
    return Run(folder)


def _run(simulation: Simulation, directory: RunDirectory, progress: Callable[[Simulation], list[Callback]]) -> None:
    resumed = directory.exists
    facts = _facts(simulation)
    if resumed:
        directory.take_up(facts)
        _restore(simulation, directory)
        directory.go_on(facts, simulation.completed_rounds)
    callbacks = progress(simulation)
    if not resumed:
        directory.begin(simulation.experiment, facts)
    rounds, nodes = directory.writers()
    with rounds, nodes, StopOnSignal() as stop:
        recorder = Recorder(rounds, nodes)
        checkpointer = Checkpointer(directory, recorder)
        try:
            finished = simulation.run([recorder, checkpointer, LossWatch(directory), *callbacks], stop)
        except RunError as error:
            recorder.sync()
            _end(simulation, directory, FAILED, str(error))
            raise
        if not finished:
            checkpointer.save(simulation)
            _end(simulation, directory, INTERRUPTED)
            return
    with simulation.timed("save"):
        _save_models(simulation, directory.folder / "models.safetensors")
        write_node_results(Run(directory.folder), simulation.experiment)
    _end(simulation, directory, FINISHED)


def _restore(simulation: Simulation, directory: RunDirectory) -> None:
    """Takes up the newest checkpoint and drops what was recorded after it."""
    state = load_newest(directory.folder / "checkpoints")
    if state is None:
        _LOG.warning("%s has no checkpoint yet; the run begins again at round 1", directory.folder)
    else:
        simulation.restore(state)
    for name in ("rounds.jsonl", "nodes.jsonl"):
        cut_lines(directory.folder / name, simulation.completed_rounds)


def _facts(simulation: Simulation) -> dict[str, object]:
    source = simulation.data.source
    return {
        "engine": "embedded",
        "torch": torch.__version__,
        "kernels": _kernels(simulation),
        "data": {
            "title": source.title,
            "generated": source.generated,
            "source": source.source,
            "sha256": source.digest,
            "checked": "every byte" if source.folder else "not checked",
            "test_samples": len(simulation.data.test),
            "evaluated_nodes": len(simulation.evaluator.uids),
        },
        "parameters": simulation.experiment.architecture.parameters,
        "workers": simulation.workers,
    }


def _kernels(simulation: Simulation) -> str:
    """What computes the models' blocks; says so when it is not the fastest there could be."""
    experiment = simulation.experiment
    if simulation.models.device.type != "cpu" or experiment.dataset.model_package is not None:
        return "torch"
    kernels = describe(experiment.run.kernels)
    if experiment.run.kernels == "auto" and kernels != "native":
        _LOG.warning("kernels: %s; with the native kernel training takes half as long or less", kernels)
    return kernels


def _end(simulation: Simulation, directory: RunDirectory, status: str, reason: str = "") -> None:
    directory.info["status"] = status
    directory.info["completed_rounds"] = simulation.completed_rounds
    directory.info["wall_seconds"] = {key: round(value, 3) for key, value in simulation.wall_seconds.items()}
    if reason:
        directory.info["reason"] = reason
    directory.write_info()


def _save_models(simulation: Simulation, path: Path) -> None:
    """Every parameter and buffer by name, stacked over the nodes."""
    models = simulation.models.cpu()
    with replacing(path) as temporary:
        save_file({slot.name: slot.view(models).contiguous() for slot in simulation.layout.slots}, temporary)
