"""The resolved experiment: every section typed, every default made explicit, every name checked."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from skiptrain_plugin.algorithm.graph_text import GRAPH_TYPES
from skiptrain_plugin.algorithm.policies import Policy, PolicySettings, policy_class
from skiptrain_plugin.algorithm.schedule import RoundSchedule, tuned_schedule
from skiptrain_plugin.algorithm.topology import TOPOLOGIES, Topology, generate
from skiptrain_plugin.energy.devices import Trace, TraceRow, Workload, derive
from skiptrain_plugin.energy.ledger import assign
from skiptrain_plugin.errors import InputError, unknown
from skiptrain_plugin.experiment.catalogue import (
    OPTIONS,
    PAPER_NODES,
    PARTITIONS,
    Architecture,
    DatasetFacts,
    dataset_facts,
    dataset_of_class,
    scale_values,
)
from skiptrain_plugin.experiment.files import find, read_devices, read_graph, read_trace
from skiptrain_plugin.experiment.ini import Values, apply_settings, format_ini, read_ini, validated
from skiptrain_plugin.experiment.sections import (
    SECTIONS,
    CommunicationSection,
    DatasetSection,
    EnergySection,
    FigureSection,
    NodeSection,
    OptimizerSection,
    RunSection,
    Section,
    SharingSection,
    TrainSection,
    partition_name,
)
from skiptrain_plugin.resources import is_packaged_trace, packaged_trace, template


@dataclass(frozen=True)
class Experiment:
    """One run: data, model, algorithm, topology and energy. Build it with ``load`` or ``from_values``."""

    dataset: DatasetSection
    optimizer: OptimizerSection
    train: TrainSection
    communication: CommunicationSection
    sharing: SharingSection
    node: NodeSection
    run: RunSection
    energy: EnergySection
    figure: FigureSection
    origin: str = field(default="", compare=False)
    """The file the experiment was read from, for messages."""

    @property
    def sections(self) -> dict[str, Section]:
        """The typed sections by their INI names."""
        parts = (self.dataset, self.optimizer, self.train, self.communication)
        rest = (self.sharing, self.node, self.run, self.energy, self.figure)
        return dict(zip(SECTIONS, (*parts, *rest), strict=True))

    def to_ini(self, heading: str = "") -> str:
        """The resolved INI: reading it back gives an equal experiment."""
        kept = {name: s for name, s in self.sections.items() if name != "FIGURE" or s.model_extra}
        return format_ini(kept, heading)

    @cached_property
    def facts(self) -> DatasetFacts:
        """The dataset by its class."""
        return dataset_of_class(self.dataset.dataset_class, f"{self.origin}, [DATASET]")

    @cached_property
    def architecture(self) -> Architecture:
        """The model's size and work; a class named by ``model_package`` is built once to find out."""
        ours = self.facts.architecture
        if self.dataset.model_package is not None:
            from skiptrain_plugin.models import describe

            return describe(self)
        if self.dataset.model_class != ours.name:
            raise InputError(
                f"{self.origin}, [DATASET] model_class: {self.facts.name} comes with the model {ours.name}; for"
                f" '{self.dataset.model_class}' say in model_package where it is"
            )
        return ours

    @property
    def nodes(self) -> int:
        """n."""
        assert self.run.nodes is not None
        return self.run.nodes

    @property
    def rounds(self) -> int:
        """T."""
        assert self.run.rounds is not None
        return self.run.rounds

    @property
    def seed(self) -> int:
        """Seed of participation, minibatches and topology."""
        assert self.run.seed is not None
        return self.run.seed

    @property
    def test_after(self) -> int:
        """Rounds between evaluations."""
        assert self.run.test_after is not None
        return self.run.test_after

    @property
    def partition(self) -> str:
        """How the training data are dealt to the nodes."""
        assert self.dataset.partition_niid is not None
        return self.dataset.partition_niid

    @cached_property
    def sizes(self) -> tuple[float, ...] | None:
        """The nodes' fractions of the training data, where the INI gives them."""
        if self.dataset.sizes is None:
            return None
        try:
            return tuple(float(size) for size in ast.literal_eval(self.dataset.sizes))
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            raise InputError(
                f"{self.origin}, [DATASET] sizes: expected a list of fractions such as [0.5, 0.25, 0.25], not"
                f" '{self.dataset.sizes[:60]}'"
            ) from None

    @cached_property
    def schedule(self) -> RoundSchedule:
        """(Γ_train, Γ_sync)."""
        training, synching = self.node.consecutive_training_rounds, self.node.consecutive_synching_rounds
        assert training is not None
        assert synching is not None
        return RoundSchedule(training, synching)

    @cached_property
    def topology(self) -> Topology:
        """The graph, generated from the seed or read from ``graph_file``."""
        return _topology(self.run, self.seed, self.run.nodes)

    @cached_property
    def workload(self) -> Workload:
        """What a training round computes: |x|, |ξ| and E; passes over the data count as their mean number of steps."""
        assert self.energy.parameters is not None
        steps = self.train.rounds
        if self.train.full_epochs:
            nodes = PAPER_NODES if self.facts.partition == "writer" else self.nodes
            steps *= math.ceil(self.facts.train_samples / nodes / self.train.batch_size)
        return Workload(self.energy.parameters, self.train.batch_size, steps)

    @cached_property
    def trace_file(self) -> Trace | None:
        """The trace that the INI names; None where energy is derived from the device table."""
        if self.node.energy_traces is None:
            return None
        return read_trace(_resource(self.node.energy_traces, [], "energy trace"))

    @property
    def trace_factor(self) -> float:
        """This workload's |x| · |ξ| · E in units of the trace's; 1 for an own file that does not say its own."""
        assert self.trace_file is not None
        made = self.facts.workload if self.trace_file.from_authors else self.trace_file.workload
        return self.workload.work / made.work if made else 1.0

    @cached_property
    def trace(self) -> tuple[TraceRow, ...]:
        """Wh and τ of each device for this workload, τ scaled to T: τ · T / budget_horizon, to the nearest round."""
        if self.trace_file is not None:
            rows = tuple(row.scaled(self.trace_factor) for row in self.trace_file.rows)
        else:
            assert self.energy.battery_share is not None
            share = self.energy.battery_share
            devices = read_devices(_resource(self.energy.devices, [], "device table"))
            rows = tuple(derive(device, self.workload, share) for device in devices)
        return self.over_horizon(rows)

    def over_horizon(self, rows: tuple[TraceRow, ...]) -> tuple[TraceRow, ...]:
        """``rows`` with τ scaled to T: τ · T / budget_horizon, to the nearest round."""
        horizon = self.node.budget_horizon
        if horizon is None:
            return rows
        return tuple(replace(row, budget=round(row.budget * self.rounds / horizon)) for row in rows)

    @cached_property
    def energy_notes(self) -> tuple[str, ...]:
        """What a reader of the energies must know: a trace that was scaled, passes over the data counted as steps."""
        notes = []
        name = f"the energy trace {Path(str(self.node.energy_traces)).name}"
        if self.trace_file is not None and self.trace_factor != 1:
            made = self.trace_file.workload
            origin = f"was made for {made}" if made else f"is taken to be made for the paper's {self.facts.workload}"
            notes.append(f"{name} {origin}; it is scaled by {self.trace_factor:.6g} to this run's {self.workload}")
        elif self.trace_file is not None and not (self.trace_file.workload or self.trace_file.from_authors):
            notes.append(f"{name} does not say for which workload it was made and is taken as it stands")
        if self.train.full_epochs:
            notes.append(f"a training round is charged as {self.workload.local_steps} local steps, the mean over nodes")
        return tuple(notes)

    def devices(self, uids: NDArray[np.int64] | None = None) -> list[TraceRow]:
        """The trace row of each node."""
        return assign(self.trace, np.arange(self.nodes) if uids is None else uids)

    @cached_property
    def wh_per_training_round(self) -> NDArray[np.float64]:
        """What a training round costs each node, Wh."""
        return np.array([row.wh_per_round for row in self.devices()])

    def policy(self, uids: NDArray[np.int64] | None = None) -> Policy:
        """The algorithm for ``uids``, by default all nodes."""
        everyone = np.arange(self.nodes, dtype=np.int64) if uids is None else uids
        budgets = np.array([row.budget for row in self.devices(everyone)], dtype=np.int64)
        settings = PolicySettings(everyone, budgets, self.schedule, self.rounds, self.seed, self.node.options)
        return policy_class(self.node.algorithm)(settings)


def load(
    *,
    config: Path | None = None,
    dataset: str | None = None,
    scale: str | None = None,
    degree: int | None = None,
    seed: int | None = None,
    settings: Sequence[str] = (),
    algorithm: str | None = None,
    beside: Sequence[str] = (),
) -> Experiment:
    """The experiment of an INI file, or of a dataset's template, with options laid over it.

    Later wins: file, scale, degree and seed, ``--set``, ``algorithm``. A template without a scale is run at laptop
    scale. Keys of NODE that only other algorithms of ``beside`` declare are left out.
    """
    if config is None:
        facts = dataset_facts(dataset or "cifar")
        path = template(facts.template)
        scale = scale or "laptop"
    else:
        path = config
    values = read_ini(path)
    named = dataset_of_class(values.get("DATASET", {}).get("dataset_class", ""), f"{path}, [DATASET]").name
    if config is not None and dataset is not None and dataset_facts(dataset).name != named:
        raise InputError(f"--dataset {dataset} contradicts {path}, which is for {named}; give only one of them")
    if scale is not None:
        values = _overlay(values, scale_values(scale, named))
    options: dict[str, dict[str, str]] = {"RUN": {}, "DATASET": {}}
    if degree is not None:
        options["RUN"]["degree"] = str(degree)
    if seed is not None:
        options["RUN"]["seed"] = options["DATASET"]["random_seed"] = str(seed)
    values = apply_settings(_overlay(values, options), settings)
    if algorithm is not None:
        mine = policy_class(algorithm, "--algorithm").option_names
        others = {key for name in beside for key in policy_class(name, "--algorithm").option_names}
        node = {key: value for key, value in values.get("NODE", {}).items() if key not in others - mine}
        values["NODE"] = node | {"algorithm": algorithm}
    return from_values(values, str(path), [path.parent, Path.cwd()])


def from_values(values: Mapping[str, Mapping[str, str]], origin: str, folders: Iterable[Path]) -> Experiment:
    """A resolved and checked experiment; relative files are looked for in ``folders``."""
    objects = {name: validated(name, values.get(name, {}), origin) for name in SECTIONS}
    experiment = Experiment(*objects.values(), origin)  # type: ignore[arg-type, call-arg]
    resolved = _resolve(experiment, list(folders))
    _check(resolved)
    return resolved


def _overlay(values: Values, over: Mapping[str, Mapping[str, str]]) -> Values:
    merged = {section: dict(keys) for section, keys in values.items()}
    for section, keys in over.items():
        merged.setdefault(section, {}).update(keys)
    return merged


def _topology(run: RunSection, seed: int, nodes: int | None) -> Topology:
    if run.graph_file is None:
        return generate(run.graph_type or "regular", nodes or PAPER_NODES, run.degree, seed)
    topology = read_graph(Path(run.graph_file), run.graph_type or "edges")
    if nodes not in (None, topology.nodes):
        raise InputError(f"{run.graph_file} has {topology.nodes} nodes, but [RUN] nodes = {nodes}")
    return topology


def _resource(name: str, folders: list[Path], what: str) -> Path:
    """A bare name of a trace or table that comes with the project means that one; anything else is a path."""
    if is_packaged_trace(name):
        return packaged_trace(name)
    return find(name, folders or [Path.cwd()], what)


def _resolved_name(name: str, folders: list[Path], what: str) -> str:
    """What the resolved INI says: the bare name of a file of the project, or an absolute path."""
    return name if is_packaged_trace(name) else str(_resource(name, folders, what))


def _resolve(experiment: Experiment, folders: list[Path]) -> Experiment:
    """Fills in what depends on something else: nodes, rounds, seed, Γ, partition, files."""
    facts, run, node, data = experiment.facts, experiment.run, experiment.node, experiment.dataset
    graph_file = run.graph_file and str(find(run.graph_file, folders, "graph file"))
    allowed = GRAPH_TYPES if graph_file else tuple(TOPOLOGIES)
    graph_type = run.graph_type or allowed[0]
    if graph_type not in allowed:
        raise unknown("graph_type", graph_type, allowed, f"{experiment.origin}, [RUN]")
    seed = data.random_seed if run.seed is None else run.seed
    run = run.model_copy(update={"graph_file": graph_file, "graph_type": graph_type, "seed": seed})
    topology = _topology(run, seed, run.nodes)
    tuned = tuned_schedule(float(topology.degrees.mean()) if graph_file else run.degree)
    schedule = RoundSchedule(
        tuned.training if node.consecutive_training_rounds is None else node.consecutive_training_rounds,
        tuned.synchronization if node.consecutive_synching_rounds is None else node.consecutive_synching_rounds,
    )
    said = data.partition_niid
    if said is None or (said == "" and facts.partition == "writer"):
        said = facts.partition
    energy = experiment.energy
    return replace(
        experiment,
        dataset=data.model_copy(update={"partition_niid": partition_name(said)}),
        node=node.model_copy(
            update={
                "consecutive_training_rounds": schedule.training,
                "consecutive_synching_rounds": schedule.synchronization,
                "energy_traces": node.energy_traces and _resolved_name(node.energy_traces, folders, "energy trace"),
            }
        ),
        run=run.model_copy(
            update={
                "nodes": topology.nodes,
                "rounds": facts.rounds if run.rounds is None else run.rounds,
                "test_after": schedule.period if run.test_after is None else run.test_after,
            }
        ),
        energy=energy.model_copy(
            update={
                "devices": _resolved_name(energy.devices, folders, "device table"),
                "battery_share": energy.battery_share or facts.battery_share,
                "parameters": energy.parameters or experiment.architecture.parameters,
            }
        ),
    )


def _check(experiment: Experiment) -> None:
    """Everything that can be wrong without reading data or importing torch."""
    place = f"{experiment.origin}, [NODE]"
    policy = policy_class(experiment.node.algorithm, place)
    for key in experiment.node.options:
        if key not in policy.option_names:
            raise unknown("key in [NODE]", key, [*NodeSection.keys(), *policy.option_names], experiment.origin)
    communication, sharing = experiment.communication, experiment.sharing
    for section, package, name, options in (
        ("COMMUNICATION", communication.comm_package, communication.comm_class, communication.options),
        ("SHARING", sharing.sharing_package, sharing.sharing_class, sharing.options),
    ):
        known = OPTIONS.get(f"{package}.{name}")
        for key in options:
            if known is not None and key not in known:
                raise unknown(f"key in [{section}]", key, [*SECTIONS[section].keys(), *known], experiment.origin)
    if experiment.partition not in PARTITIONS:
        raise unknown("partition_niid", experiment.partition, PARTITIONS, f"{experiment.origin}, [DATASET]")
    if experiment.run.eval_nodes > experiment.nodes:
        raise InputError(
            f"{experiment.origin}, [RUN] eval_nodes: {experiment.run.eval_nodes} is more than the"
            f" {experiment.nodes} nodes there are"
        )
    if experiment.sizes is not None and len(experiment.sizes) != experiment.nodes:
        raise InputError(
            f"{experiment.origin}, [DATASET] sizes: {len(experiment.sizes)} fractions for {experiment.nodes} nodes"
        )
    experiment.policy()
