"""Recorded runs as checked numbers: read once, held against their own configuration, grouped by set-up."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from skiptrain_plugin.algorithm.schedule import RoundKind, tuned_schedule
from skiptrain_plugin.errors import InputError, SkipTrainError
from skiptrain_plugin.experiment.experiment import Experiment
from skiptrain_plugin.experiment.sections import NodeSection
from skiptrain_plugin.results import identity
from skiptrain_plugin.results.consistency import check_consistent, recorded_trace
from skiptrain_plugin.results.record import FINISHED, NOT_COMPARED, Run, difference, find_runs
from skiptrain_plugin.results.style import clean

_VARIED = NOT_COMPARED | {
    ("NODE", "algorithm"),
    ("NODE", "consecutive_training_rounds"),
    ("NODE", "consecutive_synching_rounds"),
    ("RUN", "degree"),
    ("RUN", "graph_type"),
    ("RUN", "graph_file"),
    ("RUN", "test_after"),
    ("RUN", "train_evaluate_after"),
    ("RUN", "validate"),
}
"""Keys in which runs of one family may differ: what figures vary, and what only observes."""


INSIDE_CYCLE = "read inside a cycle of training and synchronization rounds, since no evaluation is at the end of one"


@dataclass(frozen=True)
class Reading:
    """One evaluation of a run; accuracies in percent."""

    round: int
    training_wh: float
    """Training energy of all nodes up to and including this round."""
    accuracy: float
    """Mean test accuracy of the nodes."""
    deviation: float
    """Standard deviation of the nodes' test accuracies."""
    mean_model: float | None
    """Test accuracy of the average of all models."""
    validation: float | None
    """Mean validation accuracy of the nodes."""


@dataclass(frozen=True)
class Record:
    """A run that was read whole and found consistent."""

    run: Run
    experiment: Experiment
    title: str
    """The data's name in plots; says so when they are generated."""
    generated: bool
    digest: str
    """sha256 of the data."""
    engine: str
    training_wh: tuple[float, ...]
    """Cumulative training energy after each recorded round."""
    communication_wh: tuple[float, ...]
    kinds: tuple[RoundKind, ...]
    readings: tuple[Reading, ...]

    @property
    def algorithm(self) -> str:
        """Its name in the INI."""
        return self.experiment.node.algorithm

    @property
    def completed(self) -> int:
        """Recorded rounds."""
        return len(self.training_wh)

    @property
    def finished(self) -> bool:
        """Whether the run reached its last round."""
        return self.run.finished

    @property
    def state(self) -> str:
        """``finished``, or how far it got and why it ended."""
        if self.finished:
            return "finished"
        reason = clean(self.run.info.get("reason", ""))
        return f"unfinished: round {self.completed} of {self.experiment.rounds}" + (f" ({reason})" if reason else "")

    @property
    def caveats(self) -> tuple[str, ...]:
        """What must be known to read the run's numbers: lost nodes, what changed on the way, warnings."""
        info = self.run.info
        lost = info.get("lost_nodes")
        named = [f"node {uid} was lost: {reason}" for uid, reason in lost.items()] if isinstance(lost, dict) else []
        warnings = info.get("warnings")
        said = [*named, *identity.describe(info.get("events")), *(warnings if isinstance(warnings, list) else [])]
        return tuple(clean(sentence, 300) for sentence in said)

    @property
    def wall_seconds(self) -> float:
        """Time that the run took, all phases together."""
        phases = self.run.info.get("wall_seconds")
        numbers = phases.values() if isinstance(phases, dict) else ()
        return float(sum(value for value in numbers if isinstance(value, (int, float)) and math.isfinite(value)))

    @property
    def topology(self) -> str:
        """``6-regular``, another kind of graph, or the name of a graph file."""
        run = self.experiment.run
        if run.graph_file:
            return clean("/".join(Path(run.graph_file).parts[-2:]))
        if run.graph_type == "small_world":
            return f"small_world, degree {run.degree}"
        return f"{run.degree}-regular" if run.graph_type == "regular" else str(run.graph_type)

    @property
    def degree(self) -> int | None:
        """The degree of a regular topology made by this project."""
        run = self.experiment.run
        return run.degree if run.graph_type == "regular" and not run.graph_file else None

    @property
    def has_cycles(self) -> bool:
        """Whether the algorithm has synchronization rounds of the whole network."""
        return RoundKind.SYNCHRONIZATION in self.kinds

    @cached_property
    def whole(self) -> tuple[Reading, ...]:
        """The evaluations after whole cycles of Γ_train + Γ_sync rounds; all where the algorithm has no cycles.

        The paper evaluates after whole cycles only: inside one, the models have just trained. Where no
        evaluation falls on a cycle's end, all of them.
        """
        if not self.has_cycles:
            return self.readings
        period = self.experiment.schedule.period
        return tuple(reading for reading in self.readings if reading.round % period == 0) or self.readings

    @property
    def read_inside_cycle(self) -> bool:
        """Whether ``last`` is not at the end of a cycle, because no evaluation is."""
        return self.has_cycles and self.last is not None and self.last.round % self.experiment.schedule.period != 0

    @property
    def last(self) -> Reading | None:
        """The evaluation that stands for the run: the last of ``whole``."""
        return self.whole[-1] if self.whole else None

    def at_energy(self, limit_wh: float) -> Reading | None:
        """The last evaluation whose training energy does not exceed ``limit_wh``; None when that is not known yet."""
        allowance = limit_wh * (1 + 1e-9)
        if not self.finished and not (self.training_wh and self.training_wh[-1] > allowance):
            return None
        within = [reading for reading in self.readings if reading.training_wh <= allowance]
        return within[-1] if within else None


@dataclass(frozen=True)
class Family:
    """Runs that may be compared: the same data, nodes, rounds, seed, model, training and precision."""

    records: tuple[Record, ...]
    distinction: str = ""
    """What tells it from another family of the same data, nodes and rounds, for example ``RUN.seed 1``."""

    @property
    def first(self) -> Record:
        """Any of them, for what they share."""
        return self.records[0]

    @property
    def dataset(self) -> str:
        """The dataset's name on the command line."""
        return self.first.experiment.facts.name

    @property
    def subtitle(self) -> str:
        """Dataset and scale."""
        e = self.first.experiment
        return ", ".join(filter(None, (f"{self.first.title}: {e.nodes} nodes, {e.rounds} rounds", self.distinction)))

    @property
    def data(self) -> str:
        """The dataset, with what tells the family apart where several have it."""
        return ", ".join(filter(None, (self.first.title, self.distinction)))

    @cached_property
    def topologies(self) -> list[str]:
        """The topologies there are, regular ones by degree first."""
        degrees = {record.topology: record.degree for record in self.records}
        return sorted(degrees, key=lambda name: (degrees[name] is None, degrees[name] or 0, name))

    def of(self, algorithm: str, topology: str) -> list[Record]:
        """The runs of an algorithm on a topology."""
        return [r for r in self.records if r.algorithm == algorithm and r.topology == topology]

    def pick(self, algorithm: str, topology: str) -> Record | None:
        """The run of an algorithm on a topology: of several Γ the paper's tuned one and no other.

        Of runs that differ only in how often they were evaluated, a finished one with most evaluations.
        """
        found = self.of(algorithm, topology)
        if any(record.has_cycles for record in found) and len({r.experiment.schedule for r in found}) > 1:
            tuned = tuned_schedule(found[0].degree or 0)
            found = [record for record in found if record.experiment.schedule == tuned]
        return max(found, key=lambda record: (record.finished, len(record.readings)), default=None)


@dataclass(frozen=True)
class Collection:
    """All runs found: the sound ones by family, and what was left out and why."""

    families: tuple[Family, ...]
    problems: tuple[str, ...]

    @property
    def records(self) -> list[Record]:
        """All sound runs."""
        return [record for family in self.families for record in family.records]


def read_record(run: Run) -> Record:
    """The run's numbers; anything missing, impossible or contradictory is an ``InputError``."""
    info, experiment = run.info, run.experiment
    place = run.folder
    for key, expected in (
        ("algorithm", experiment.node.algorithm),
        ("nodes", experiment.nodes),
        ("rounds", experiment.rounds),
        ("dataset", experiment.facts.name),
        ("seed", experiment.seed),
    ):
        if info.get(key) != expected:
            raise InputError(f"{place}: run.json says {key} {info.get(key)!r}, config.ini {expected!r}")
    trace = recorded_trace(run, experiment)
    lines = run.rounds
    if len(lines) > experiment.rounds or (info["status"] == FINISHED and len(lines) != experiment.rounds):
        raise InputError(
            f"{place}: status is '{clean(info['status'])}', but it records {len(lines)} of {experiment.rounds} rounds"
        )
    energies = _rising(lines, "training_wh", place)
    try:
        kinds = tuple(RoundKind(line["kind"]) for line in lines)
    except (KeyError, ValueError):
        raise InputError(f"{place / 'rounds.jsonl'}: a round has no known kind") from None
    policy = experiment.policy()
    for index, kind in enumerate(kinds):
        if kind is not policy.kind(index):
            raise InputError(f"{place}: round {index + 1} is a {kind.value} round, by config.ini it should not be one")
    check_consistent(run, experiment, trace)
    data = info.get("data")
    data = data if isinstance(data, dict) else {}
    return Record(
        run,
        experiment,
        clean(data.get("title", experiment.facts.name)),
        bool(data.get("generated", experiment.facts.name in ("glyphs", "synthetic"))),
        clean(data.get("sha256", "")),
        clean(info.get("engine", "embedded")),
        energies,
        _rising(lines, "communication_wh", place),
        kinds,
        tuple(_reading(line, place) for line in run.evaluations),
    )


def collect(folders: Iterable[Path]) -> Collection:
    """Every run in ``folders``; damaged ones are named, copies of a configuration are left out."""
    return group(find_runs(folders))


def group(runs: Sequence[Run]) -> Collection:
    """``runs`` read and grouped."""
    records: list[Record] = []
    problems: list[str] = []
    for run in dict.fromkeys(runs):
        try:
            record = read_record(run)
        except SkipTrainError as error:
            problems.append(clean(f"left out: {error}", 400))
            continue
        except (OSError, KeyError, TypeError, ValueError) as error:
            problems.append(clean(f"left out: {run.folder} cannot be read: {error}", 400))
            continue
        same = next((r for r in records if r.digest == record.digest and _same(r, record)), None)
        if same is None:
            records.append(record)
            continue
        kept, dropped = sorted((same, record), key=lambda r: (r.finished, r.completed), reverse=True)
        records[records.index(same)] = kept
        problems.append(f"left out: {dropped.run.folder} repeats the configuration of {kept.run.folder}")
    families: dict[str, list[Record]] = {}
    for record in records:
        families.setdefault(json.dumps(_shared(record), sort_keys=True, default=str), []).append(record)
    grouped = _told_apart([Family(tuple(members)) for members in families.values()])
    return Collection(tuple(sorted(grouped, key=_breadth, reverse=True)), tuple(problems))


def _told_apart(families: Sequence[Family]) -> list[Family]:
    """Families of the same data, nodes and rounds say in which settings they differ."""
    told = []
    for family in families:
        alike = [_shared(other.first) for other in families if other.subtitle == family.subtitle]
        own = _shared(family.first)
        keys = [key for key in own if any(other.get(key) != own[key] for other in alike)]
        told.append(replace(family, distinction=", ".join(clean(f"{key} {own[key]}", 60) for key in keys[:4])))
    return told


def _breadth(family: Family) -> int:
    """How many algorithms a family compares; those that compare most are shown first."""
    return len({record.algorithm for record in family.records})


def _same(one: Record, two: Record) -> bool:
    return one.engine == two.engine and difference(one.experiment, two.experiment) is None


def _shared(record: Record) -> dict[str, Any]:
    """What runs must have in common to be compared."""
    own = NodeSection.keys()
    kept: dict[str, Any] = {"title": record.title, "digest": record.digest, "engine": record.engine}
    for name, section in record.experiment.sections.items():
        if name in ("FIGURE", "COMMUNICATION"):
            continue
        for key, value in section.model_dump(by_alias=True).items():
            foreign = name == "NODE" and key not in own
            if (name, key) not in _VARIED and not foreign:
                kept[f"{name}.{key}"] = value
    return kept


def _number(line: dict[str, Any], key: str, place: Path) -> float:
    value = line.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise InputError(f"{place / 'rounds.jsonl'}, round {line.get('round')}: {key} is {value!r}, not a number")
    return float(value)


def _percent(line: dict[str, Any], key: str, place: Path) -> float:
    value = _number(line, key, place)
    if not 0 <= value <= 100:
        raise InputError(f"{place / 'rounds.jsonl'}, round {line.get('round')}: {key} is {value!r} percent")
    return value


def _rising(lines: list[dict[str, Any]], key: str, place: Path) -> tuple[float, ...]:
    """Cumulative energies: never negative, never falling."""
    values = tuple(_number(line, key, place) for line in lines)
    for number, (before, after) in enumerate(zip((0.0, *values), values, strict=False), start=1):
        if after < before - 1e-9:
            raise InputError(f"{place / 'rounds.jsonl'}, round {number}: {key} falls from {before} to {after} Wh")
    return values


def _reading(line: dict[str, Any], place: Path) -> Reading:
    def optional(key: str) -> float | None:
        return _percent(line, key, place) if line.get(key) is not None else None

    return Reading(
        int(line["round"]),
        _number(line, "training_wh", place),
        _percent(line, "test_acc_mean", place),
        _number(line, "test_acc_std", place),
        optional("mean_model_test_acc"),
        optional("validation_acc_mean"),
    )
