"""Runs one machine's share of a deployment, one process a node, and makes the record of it."""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import shutil
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from skiptrain_plugin import framework

framework.require()

from decentralizepy.graphs.Graph import Graph  # noqa: E402
from decentralizepy.mappings.Linear import Linear  # noqa: E402

from skiptrain_plugin.data.for_experiment import images_of  # noqa: E402
from skiptrain_plugin.deployment import node_files, snapshots  # noqa: E402
from skiptrain_plugin.deployment.conclusion import (  # noqa: E402
    Conclusion,
    any_round,
    is_concluded,
    rounds_are_done,
    tidy,
)
from skiptrain_plugin.deployment.flat import from_vector  # noqa: E402
from skiptrain_plugin.deployment.link import Link  # noqa: E402
from skiptrain_plugin.deployment.merge import Share, forget, has_share, merge_shares, read_share  # noqa: E402
from skiptrain_plugin.deployment.plan import Deployment, from_experiment  # noqa: E402
from skiptrain_plugin.deployment.ports import free_offset  # noqa: E402
from skiptrain_plugin.deployment.preflight import check_classes, check_ports  # noqa: E402
from skiptrain_plugin.deployment.rounds import START_DEADLINE  # noqa: E402
from skiptrain_plugin.deployment.supervisor import STOP, Failure, Outcome, Supervisor  # noqa: E402
from skiptrain_plugin.engine.callbacks import StopOnSignal  # noqa: E402
from skiptrain_plugin.engine.evaluation import evaluated_nodes  # noqa: E402
from skiptrain_plugin.engine.training import arithmetic, loss_function  # noqa: E402
from skiptrain_plugin.errors import InputError, RunError, SkipTrainError  # noqa: E402
from skiptrain_plugin.experiment.experiment import Experiment  # noqa: E402
from skiptrain_plugin.kernels.selection import describe  # noqa: E402
from skiptrain_plugin.models import new_model  # noqa: E402
from skiptrain_plugin.named import named_class  # noqa: E402
from skiptrain_plugin.results.record import (  # noqa: E402
    FAILED,
    FINISHED,
    INTERRUPTED,
    RUNNING,
    Run,
    RunDirectory,
    difference,
    write_atomically,
)

__all__ = ["Launch", "launch", "launch_local", "merge_shares"]

PRELOADED = (
    "skiptrain_plugin.node",
    "skiptrain_plugin.sharing",
    "skiptrain_plugin.datasets",
    "skiptrain_plugin.communication",
    "decentralizepy.communication.TCP",
    "decentralizepy.training.Training",
    "torch._dynamo",
)
"""What is imported once, in the process that all nodes are forked from; the last one is what the first optimizer of
a process imports, which takes seconds."""
_OURS = "skiptrain_plugin."
_LAST_LINES = 8
_HOUSEKEEPING = 1.0
"""Seconds between looks at snapshots and checkpoints."""
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Launch:
    """How a deployment is run on this machine."""

    log_dir: Path
    weights_dir: Path
    log_level: int = logging.INFO
    on_failure: str = STOP
    resume: bool = False
    report: Callable[[str], None] = lambda sentence: None
    """Told about progress and deaths, a sentence each."""


def launch_local(
    experiment: Experiment, folder: Path, resume: bool = False, report: Callable[[str], None] = lambda sentence: None
) -> Run:
    """Runs all nodes of ``experiment`` on this machine; its record, finished or interrupted."""
    settings = Launch(folder, folder / "weights", resume=resume, report=report)
    outcome = launch(from_experiment(experiment), settings)
    if outcome.failures:
        raise RunError(str(outcome.failures[0]))
    return Run(folder)


def launch(deployment: Deployment, settings: Launch) -> Outcome:
    """Runs one machine's share; on a single machine the merged record is written into the log directory."""
    check_classes(deployment)
    folder = settings.log_dir
    directory = RunDirectory(folder)
    try:
        if not any_round(folder):
            forget(folder)
        elif directory.exists or has_share(folder):
            _check_resumable(deployment, settings)
            share = read_share(folder)
            if is_concluded(folder, deployment.has_record):
                tidy(folder)
                return Outcome()
            if rounds_are_done(share, deployment.rounds):
                return _Session(deployment, settings, directory).complete(share)
        return _Session(deployment, settings, directory).run()
    except OSError as error:
        raise RunError(f"{folder} can no longer be written: {error.strerror or error}") from error
    finally:
        directory.close()


def _check_resumable(deployment: Deployment, settings: Launch) -> None:
    folder = settings.log_dir
    if not has_share(folder):
        raise InputError(f"{folder} holds a run that was not launched; choose another directory")
    if not settings.resume:
        raise InputError(f"{folder} already holds a run; go on with --resume or choose another directory")
    if read_share(folder).uids != deployment.uids:
        raise InputError(f"{folder} holds other nodes than those of machine {deployment.machine_id}")
    if deployment.experiment is not None:
        unlike = difference(Run(folder).experiment, deployment.experiment)
        if unlike:
            raise InputError(f"{folder} holds another experiment: {unlike}")


class _Session:
    """One launch, from start to record."""

    def __init__(self, deployment: Deployment, settings: Launch, directory: RunDirectory) -> None:
        self._settings, self._directory, self._folder = settings, directory, settings.log_dir
        self._deployment = _with_addresses(deployment, settings.log_dir)
        self._experiment = deployment.experiment
        self._context = _context()
        self._completed = self._context.RawArray("q", deployment.procs)
        self._gone = self._context.RawArray("b", deployment.topology.nodes)
        self._share = Share(settings.log_dir, deployment.uids, deployment.topology.nodes, RUNNING, {})
        self._housekeeping = self._reported = 0.0

    def run(self) -> Outcome:
        started = time.perf_counter()
        check_ports(self._deployment)
        resume = self._open()
        graph = self._graph()
        every, ours = self._deployment.checkpoint_every, self._deployment.has_record
        link = Link(self._folder, self._completed, self._gone, every, resume, ours)
        processes: dict[int, Any] = {}
        with StopOnSignal() as stop:
            try:
                for rank in self._deployment.uids:
                    processes[rank] = self._start(rank, graph, link)
            finally:
                supervisor = Supervisor(
                    processes,
                    self._deployment.uids,
                    self._completed,
                    on_failure=self._settings.on_failure,
                    last_lines=self._last_lines,
                    died=self._died,
                    tick=self._tick,
                    stall_seconds=4 * self._deployment.peer_deadline + START_DEADLINE,
                )
                if len(processes) < self._deployment.procs:
                    supervisor.end()
            outcome = supervisor.watch(stop)
        self._conclude(outcome, time.perf_counter() - started)
        return outcome

    def complete(self, share: Share) -> Outcome:
        """Makes the record of a run whose nodes have done all their rounds but which was never concluded."""
        self._share.lost.update(share.lost)
        self._open_record(self._deployment.rounds)
        self._conclude(Outcome(), 0.0)
        return Outcome()

    def _open(self) -> dict[int, int]:
        """Prepares the directory; by uid the round to go on from."""
        resume: dict[int, int] = {}
        if has_share(self._folder):
            resume = node_files.resume_rounds(self._folder, self._deployment.uids.values())
            snapshots.drop_after(self._folder, min(resume.values(), default=0))
            if not resume:
                _LOG.warning("%s has no checkpoint yet; the run begins again at round 1", self._folder)
        self._open_record(min(resume.values(), default=0))
        self._share.save()
        return resume

    def _open_record(self, completed: int) -> None:
        """Begins the record, or goes on with it after round ``completed``."""
        if self._experiment is None:
            return
        facts = _facts(self._experiment)
        if self._directory.exists:
            self._directory.take_up(facts)
            self._directory.go_on(facts, completed)
        elif self._deployment.has_record:
            self._directory.begin(self._experiment, facts)
        else:
            write_atomically(self._folder / "config.ini", self._experiment.to_ini())
            write_atomically(self._folder / "facts.json", json.dumps(facts))

    def _graph(self) -> Graph:
        topology = self._deployment.topology
        graph = Graph(topology.nodes)
        for uid in range(topology.nodes):
            graph.adj_list[uid].update(topology.neighbors(uid))
        return graph

    def _start(self, rank: int, graph: Graph, link: Link) -> Any:
        deployment, settings = self._deployment, self._settings
        mapping = Linear(deployment.machines, deployment.procs)
        arguments = (
            rank,
            deployment.machine_id,
            mapping,
            graph,
            deployment.config,
            deployment.rounds,
            str(settings.log_dir),
            str(settings.weights_dir),
            settings.log_level,
            deployment.test_after,
            deployment.train_evaluate_after,
            deployment.reset_optimizer,
            link,
        )
        name = f"node-{deployment.uids[rank]}"
        process = self._context.Process(target=_node_process, args=(arguments, dict(os.environ)), name=name)
        process.start()
        return process

    def _last_lines(self, rank: int) -> list[str]:
        try:
            with (self._folder / f"{rank}.log").open(encoding="utf-8", errors="replace") as file:
                return [line.rstrip("\n") for line in deque(file, maxlen=_LAST_LINES)]
        except OSError:
            return []

    def _died(self, failure: Failure) -> None:
        self._gone[failure.uid] = 1
        self._share.lost[failure.uid] = str(failure).splitlines()[0].split(";")[0]
        self._share.save()
        self._settings.report(str(failure))

    def _tick(self) -> None:
        now = time.monotonic()
        if now - self._housekeeping < _HOUSEKEEPING:
            return
        self._housekeeping = now
        living = [uid for uid in self._deployment.uids.values() if not self._gone[uid]]
        snapshots.gather(self._folder, living)
        _prune_checkpoints(self._folder, living)
        done = min((self._completed[rank] for rank, uid in self._deployment.uids.items() if uid in living), default=0)
        if done >= self._reported + self._deployment.test_after:
            self._reported = done
            self._settings.report(f"round {done} of {self._deployment.rounds}")

    def _conclude(self, outcome: Outcome, seconds: float) -> None:
        status = FINISHED
        if outcome.stopped or len(self._share.lost) == self._deployment.procs:
            status = INTERRUPTED if outcome.interrupted else FAILED
        recorded = self._experiment if self._deployment.has_record else None
        if recorded is not None:
            before = self._directory.info["wall_seconds"].get("deployment", 0.0)
            self._directory.info["wall_seconds"]["deployment"] = round(before + seconds, 3)
        share = replace(self._share, status=status)
        Conclusion(share, self._directory, recorded, self._mean_accuracies).run()

    def _mean_accuracies(self, vectors: Mapping[int, NDArray[np.float32]]) -> dict[int, float]:
        """With this project's data, the accuracy of the mean model at each evaluation."""
        experiment = self._experiment
        assert experiment is not None
        data = experiment.dataset
        kind = named_class(data.dataset_package, data.dataset_class, f"{experiment.origin}, [DATASET] dataset_class")
        if not vectors or not hasattr(kind, "limit_evaluation"):
            return {}
        options = {
            k: v for k, v in self._deployment.config["DATASET"].items() if not k.endswith(("_package", "_class"))
        }
        dataset = kind(0, 0, Linear(1, experiment.nodes), **options)
        dataset.limit_evaluation(experiment.run.eval_samples, experiment.seed)
        model, loss = new_model(experiment), loss_function(experiment)
        accuracies = {}
        for number, vector in vectors.items():
            from_vector(model, vector)
            with arithmetic(experiment.run):
                accuracies[number] = dataset.test(model, loss)[0]
        return accuracies


def _context() -> Any:
    """Processes forked from one that has imported everything, so that n nodes import it once; else fresh ones."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(PRELOADED))
    return context


def _with_addresses(deployment: Deployment, folder: Path) -> Deployment:
    """On a single machine: loopback and free ports, unless the INI says otherwise."""
    communication = deployment.config["COMMUNICATION"]
    given: dict[str, Any] = {}
    if deployment.machines == 1:
        if not communication.get("addresses_filepath"):
            path = folder / "ip.json"
            write_atomically(path, json.dumps({"0": "127.0.0.1"}) + "\n")
            given["addresses_filepath"] = str(path)
        if "offset" not in communication:
            given["offset"] = free_offset(deployment.procs)
    return deployment.with_communication(**given)


def _facts(experiment: Experiment) -> dict[str, Any]:
    """What ``run.json`` says of data and program; gets the data first, so that n nodes do not do it at once."""
    section = experiment.dataset
    data: dict[str, Any] = {
        "title": experiment.facts.dataset_class,
        "generated": False,
        "source": f"{section.dataset_package}, {section.train_dir}",
        "sha256": "",
        "test_samples": 0,
    }
    if section.dataset_package.startswith(_OURS):
        source = images_of(experiment)
        source.check()
        data = {
            "title": source.title,
            "generated": source.generated,
            "source": source.source,
            "sha256": source.digest,
            "checked": "every byte",
            "test_samples": experiment.run.eval_samples or len(source.test_y),
        }
    data["evaluated_nodes"] = len(evaluated_nodes(experiment))
    kernels = describe(experiment.run.kernels)
    return {"engine": "decentralizepy", "torch": torch.__version__, "kernels": kernels, "data": data}


def _prune_checkpoints(folder: Path, living: list[int]) -> None:
    """Keeps the newest round that all living nodes have, the one before it, and all that are newer."""
    places = sorted((folder / "checkpoints").glob("*"), reverse=True)
    whole = [place for place in places if all(any((place / str(uid)).glob("round-*")) for uid in living)]
    for place in [place for place in places if len(whole) > 1 and place < whole[1]]:
        for uid in living:
            shutil.rmtree(place / str(uid), ignore_errors=True)
        if not any(place.iterdir()):
            place.rmdir()


def _node_process(arguments: tuple[Any, ...], environment: dict[str, str]) -> None:
    """The life of one node's process: it leaves Ctrl-C to the launcher, and ends when the launcher does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ.clear()
    os.environ.update(environment)
    threading.Thread(target=_end_with_launcher, daemon=True).start()
    rank, log_dir = arguments[0], arguments[6]
    logging.basicConfig(filename=Path(log_dir) / f"{rank}.log", level=logging.INFO, force=True)
    try:
        from skiptrain_plugin.node import SkipTrainNode

        SkipTrainNode(*arguments)
    except SkipTrainError as error:
        logging.error("%s", error)
        sys.exit(error.exit_code)
    except Exception:
        logging.exception("the node failed")
        sys.exit(1)


def _end_with_launcher() -> None:
    launcher = multiprocessing.parent_process()
    if launcher is not None:
        launcher.join()
        os._exit(1)
