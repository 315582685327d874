"""One machine's share of a deployment, from the framework's flags and INI or from an experiment."""

from __future__ import annotations

import configparser
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from skiptrain_plugin.algorithm.topology import Topology, generate
from skiptrain_plugin.deployment.averaging import PEER_DEADLINE
from skiptrain_plugin.deployment.settings import node_settings, typed
from skiptrain_plugin.errors import InputError, unknown
from skiptrain_plugin.experiment.catalogue import DATASETS
from skiptrain_plugin.experiment.experiment import Experiment, from_values
from skiptrain_plugin.experiment.files import find, read_graph, read_text
from skiptrain_plugin.experiment.ini import Values, parse_ini, validated
from skiptrain_plugin.experiment.sections import RunSection
from skiptrain_plugin.models import model_size
from skiptrain_plugin.wire.addresses import read_addresses

LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
REQUIRED = ("DATASET", "OPTIMIZER_PARAMS", "TRAIN_PARAMS", "SHARING", "NODE")


@dataclass(frozen=True)
class Flags:
    """The framework's flags; None means that the INI's [RUN] says it, or the default of [RUN]."""

    config_file: Path
    machine_id: int = 0
    machines: int = 1
    procs_per_machine: int | None = None
    graph_file: Path | None = None
    graph_type: str | None = None
    iterations: int | None = None
    test_after: int | None = None
    train_evaluate_after: int | None = None
    reset_optimizer: int | None = None


@dataclass(frozen=True)
class Deployment:
    """What one machine runs."""

    config: dict[str, dict[str, Any]]
    """Section → key → value, as the nodes get it; [COMMUNICATION] may lack addresses and offset on one machine."""
    experiment: Experiment | None
    """None when dataset or classes are not this project's: then there is no record but the nodes' own."""
    topology: Topology
    machine_id: int
    machines: int
    procs: int
    """Nodes on this machine."""
    rounds: int
    test_after: int
    train_evaluate_after: int
    reset_optimizer: int
    checkpoint_every: int
    origin: str
    """The INI, for messages."""

    @property
    def uids(self) -> dict[int, int]:
        """Local rank → uid, as the framework's linear mapping gives them."""
        return {rank: self.machine_id * self.procs + rank for rank in range(self.procs)}

    @property
    def has_record(self) -> bool:
        """Whether this machine writes the record of the whole run: it knows the experiment and has all nodes."""
        return self.experiment is not None and self.machines == 1

    @property
    def peer_deadline(self) -> float:
        """Seconds that a silent neighbour is waited for."""
        return float(self.config["SHARING"].get("peer_deadline") or PEER_DEADLINE)

    def with_communication(self, **values: Any) -> Deployment:
        """The same with further keys of [COMMUNICATION]."""
        communication = {**self.config["COMMUNICATION"], **values}
        return replace(self, config={**self.config, "COMMUNICATION": communication})


def from_experiment(experiment: Experiment) -> Deployment:
    """All nodes of ``experiment`` on this machine."""
    return _of_experiment(experiment, 0, 1)


def from_flags(flags: Flags) -> Deployment:
    """One machine's share as the framework's flags and the INI describe it."""
    if flags.machines < 1 or not 0 <= flags.machine_id < flags.machines:
        raise InputError(f"-mid {flags.machine_id} is not one of the machines 0 to {flags.machines - 1} (-ms)")
    path = flags.config_file
    text = read_text(path, "configuration file")
    values = _tolerant(text, str(path))
    folders = [path.parent, Path.cwd()]
    values["RUN"] = {**values.get("RUN", {}), **_run_values(flags)}
    values["COMMUNICATION"] = {**values.get("COMMUNICATION", {}), **_places(values.get("COMMUNICATION", {}), folders)}
    known = {facts.dataset_class for facts in DATASETS.values()}
    if values.get("DATASET", {}).get("dataset_class") in known:
        parse_ini(text, str(path))
        data = values["DATASET"]
        if data.get("validation_size") and data.get("validation_source"):
            values["RUN"].setdefault("validate", "true")
        deployment = _of_experiment(from_values(values, str(path), folders), flags.machine_id, flags.machines)
    else:
        deployment = _foreign(values, str(path), folders, flags)
    _check_addresses(deployment)
    return deployment


def _places(communication: Mapping[str, Any], folders: list[Path]) -> dict[str, str]:
    """Address file and key directory of [COMMUNICATION], looked for in ``folders``."""
    found = {}
    if name := communication.get("addresses_filepath"):
        found["addresses_filepath"] = str(find(name, folders, "address file"))
    if name := communication.get("keys"):
        places = [folder / name for folder in folders]
        found["keys"] = str(next((place.resolve() for place in places if place.is_dir()), places[0]))
    return found


def _run_values(flags: Flags) -> dict[str, str]:
    given: dict[str, Any] = {
        "nodes": flags.machines * flags.procs_per_machine if flags.procs_per_machine else None,
        "graph_file": flags.graph_file and flags.graph_file.absolute(),
        "graph_type": flags.graph_type,
        "rounds": flags.iterations,
        "test_after": flags.test_after,
        "train_evaluate_after": flags.train_evaluate_after,
        "reset_optimizer": flags.reset_optimizer,
    }
    return {key: str(value) for key, value in given.items() if value is not None}


def _of_experiment(experiment: Experiment, machine_id: int, machines: int) -> Deployment:
    config = {name: _given(section.model_dump(by_alias=True)) for name, section in experiment.sections.items()}
    config.pop("FIGURE")
    config["COMMUNICATION"] |= _places(config["COMMUNICATION"], [Path(experiment.origin).parent, Path.cwd()])
    if not experiment.dataset.dataset_package.startswith("skiptrain_plugin."):
        changed = experiment.dataset.model_dump(exclude_defaults=True)
        if changed.get("partition_niid") == "writer":
            del changed["partition_niid"]
        config["DATASET"] = changed | {"dataset_package": experiment.dataset.dataset_package}
        config["DATASET"]["random_seed"] = experiment.dataset.random_seed
    run = experiment.run
    return Deployment(
        typed(config),
        experiment,
        experiment.topology,
        machine_id,
        machines,
        _procs(experiment.nodes, machines),
        experiment.rounds,
        experiment.test_after,
        run.train_evaluate_after,
        int(run.reset_optimizer),
        run.checkpoint_every,
        experiment.origin,
    )


def _foreign(values: Values, origin: str, folders: list[Path], flags: Flags) -> Deployment:
    """A deployment of anybody's classes: only [NODE] and [RUN] are this project's to check."""
    for section in REQUIRED:
        if section not in values:
            raise InputError(f"{origin}: section [{section}] is missing")
    run = validated("RUN", values["RUN"], origin)
    assert isinstance(run, RunSection)
    if run.rounds is None:
        raise InputError(f"{origin}: how many rounds? give -is or rounds in [RUN]")
    topology = _topology(run, values, folders)
    if values["NODE"].get("energy_traces"):
        path = find(values["NODE"]["energy_traces"], folders, "energy trace")
        values["NODE"]["energy_traces"] = str(path) if path.is_file() else values["NODE"]["energy_traces"]
    degree = float(topology.degrees.mean())
    settings = node_settings(values, 0, topology.nodes, degree, run.rounds, model_size(values["DATASET"]))
    return Deployment(
        typed(values),
        None,
        topology,
        flags.machine_id,
        flags.machines,
        _procs(topology.nodes, flags.machines),
        run.rounds,
        run.test_after or settings.policy.settings.schedule.period,
        run.train_evaluate_after,
        int(run.reset_optimizer),
        run.checkpoint_every,
        origin,
    )


def _topology(run: RunSection, values: Values, folders: list[Path]) -> Topology:
    if run.graph_file is None:
        if run.nodes is None:
            raise InputError("how many nodes? give -ps (and -ms), -gf, or nodes in [RUN]")
        seed = run.seed if run.seed is not None else int(values["DATASET"].get("random_seed") or 0)
        return generate(run.graph_type or "regular", run.nodes, run.degree, seed)
    topology = read_graph(find(run.graph_file, folders, "graph file"), run.graph_type or "edges")
    if run.nodes not in (None, topology.nodes):
        raise InputError(f"{run.graph_file} has {topology.nodes} nodes, but -ms · -ps or [RUN] nodes say {run.nodes}")
    return topology


def _procs(nodes: int, machines: int) -> int:
    if nodes % machines:
        raise InputError(f"{nodes} nodes cannot be shared equally by {machines} machines")
    return nodes // machines


def _check_addresses(deployment: Deployment) -> None:
    path = deployment.config["COMMUNICATION"].get("addresses_filepath")
    if not path:
        if deployment.machines > 1:
            raise InputError("[COMMUNICATION] addresses_filepath: this key is missing; more than one machine needs it")
        return
    addresses = read_addresses(Path(path))
    for machine in range(deployment.machines):
        if str(machine) not in addresses:
            raise InputError(f"{path}: there is no address of machine {machine}")


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def _tolerant(text: str, where: str) -> Values:
    """Sections and keys as they stand; whether they are known is for their owners to say."""
    parser = configparser.ConfigParser(interpolation=None, default_section="\0none")
    try:
        parser.read_string(text, source=where)
    except configparser.Error as error:
        raise InputError(f"{where}: {str(error).splitlines()[0]}") from None
    return {name: {key: value.strip() for key, value in parser[name].items()} for name in parser.sections()}


def log_level(name: str) -> str:
    """A log level by the framework's names."""
    if name.upper() not in LOG_LEVELS:
        raise unknown("log level", name, LOG_LEVELS, "-ll")
    return name.upper()
