"""Figures 1 to 6 of the paper from recorded runs; each is None where its runs are not there."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from skiptrain_plugin.algorithm.schedule import RoundKind
from skiptrain_plugin.experiment.experiment import Experiment
from skiptrain_plugin.results.charts import Chart, HeatPanel, LinePanel, Mark, OperationPanel, Series
from skiptrain_plugin.results.readings import INSIDE_CYCLE, Family, Reading, Record
from skiptrain_plugin.results.record import decode_mask
from skiptrain_plugin.results.style import algorithm_name, style_of

ROUNDS = "Rounds"
ENERGY = "Training energy of all nodes [Wh]"
ACCURACY = "Test accuracy [%]"
OPERATIONS = ("dpsgd", "skiptrain", "skiptrain_constrained")
NODES_SHOWN = 4
ROUNDS_SHOWN = 16


def figure1(family: Family, name: str) -> Chart | None:
    """D-PSGD's mean over nodes, the accuracy of the average of its models, and the all-reduce run."""
    panels, notes = [], []
    for topology in family.topologies:
        record = family.pick("dpsgd", topology)
        reduced = family.pick("allreduce", topology)
        if record is None or not record.readings:
            continue
        series = [_series("D-PSGD: mean of the nodes", record)]
        averaged = [r for r in record.readings if r.mean_model is not None]
        if averaged:
            mean = tuple(r.mean_model for r in averaged if r.mean_model is not None)
            rounds = tuple(float(r.round) for r in averaged)
            series.append(Series("D-PSGD: average of all models", "mean_model", rounds, mean))
        else:
            notes.append(f"{topology}: the record has no accuracy of the average model")
        if reduced is not None and reduced.readings:
            series.append(_series("D-PSGD with all-reduce in every round", reduced))
        else:
            notes.append(f"{topology}: no run of algorithm allreduce")
        notes += _unfinished([record, reduced])
        if len(series) > 1:
            panels.append(LinePanel(topology, ROUNDS, ACCURACY, tuple(series)))
    if not panels:
        return None
    caption = (
        "Mean test accuracy of the nodes under D-PSGD, the test accuracy of the average of their models at the same"
        " rounds, and D-PSGD whose nodes all take that average in every round."
    )
    return Chart(
        name, "Figure 1: what all-reduce adds to D-PSGD", family.subtitle, caption, panels, len(panels), tuple(notes)
    )


def figure2(family: Family, name: str) -> Chart | None:
    """What each node did in each round, from the recorded masks."""
    panels: list[OperationPanel] = []
    notes: list[str] = []
    topology = next((t for t in family.topologies if sum(bool(family.pick(a, t)) for a in OPERATIONS) > 1), None)
    if topology is None:
        return None
    for algorithm in OPERATIONS:
        record = family.pick(algorithm, topology)
        if record is None or not record.completed:
            notes.append(f"no run of algorithm {algorithm}")
            continue
        panels.append(_operations(algorithm, record.experiment, _masks(record, ROUNDS_SHOWN)))
    return _figure2(panels, family.subtitle, name, tuple(notes)) if panels else None


def figure2_from_policies(
    experiments: Sequence[Experiment], title: str, name: str, nodes: int = NODES_SHOWN, rounds: int = ROUNDS_SHOWN
) -> Chart:
    """What each node will do, from the policies' own decisions; nothing needs to be trained."""
    panels = []
    for experiment in experiments:
        masks = [trains.tolist() for _, trains in experiment.policy().replay(min(rounds, experiment.rounds))]
        panels.append(_operations(experiment.node.algorithm, experiment, masks, nodes))
    first = experiments[0]
    return _figure2(panels, f"{title}: {first.nodes} nodes, {first.rounds} rounds", name, ())


def _figure2(panels: Sequence[OperationPanel], subtitle: str, name: str, notes: tuple[str, ...]) -> Chart:
    caption = (
        "What the first nodes do in the first rounds. A training node trains, shares and averages; a synchronizing"
        " one only shares and averages."
    )
    return Chart(name, "Figure 2: operations by round", subtitle, caption, panels, 1, notes)


def _operations(
    algorithm: str, experiment: Experiment, masks: list[list[bool]], nodes: int = NODES_SHOWN
) -> OperationPanel:
    shown = min(nodes, experiment.nodes)
    names = tuple(f"Node {uid} ({row.name})" for uid, row in enumerate(experiment.devices()[:shown]))
    schedule = experiment.schedule
    suffix = f", Γ_train {schedule.training}, Γ_sync {schedule.synchronization}" if "skiptrain" in algorithm else ""
    rows = tuple(tuple(bool(mask[uid]) for mask in masks) for uid in range(shown))
    return OperationPanel(algorithm_name(algorithm) + suffix, names, 1, rows)


def _masks(record: Record, rounds: int) -> list[list[bool]]:
    """Who trained in each of the first rounds."""
    nodes = record.experiment.nodes
    return [[bool(value) for value in decode_mask(line["trained"], nodes)] for line in record.run.nodes[:rounds]]


def figure3(family: Family, name: str) -> Chart | None:
    """Validation accuracy by Γ_train and Γ_sync for each degree, and the energy."""
    panels: list[HeatPanel] = []
    notes: list[str] = []
    missing: dict[tuple[str, tuple[int, int]], str] = {}
    energies: dict[tuple[int, int], float] = {}
    for topology in family.topologies:
        cells: dict[tuple[int, int], tuple[float, float]] = {}
        for record in family.of("skiptrain", topology):
            schedule = record.experiment.schedule
            gamma = (schedule.training, schedule.synchronization)
            validation = record.last.validation if record.last is not None else None
            if not record.finished:
                missing[topology, gamma] = record.state
            elif validation is None:
                missing[topology, gamma] = "no validation accuracy (RUN.validate was off)"
            else:
                cells[gamma] = (validation, record.training_wh[-1])
                if record.read_inside_cycle:
                    notes.append(f"{topology}, Γ {gamma[0]}/{gamma[1]}: {INSIDE_CYCLE}")
        notes += [f"{t}, Γ {g[0]}/{g[1]}: {why}" for (t, g), why in missing.items() if t == topology and g not in cells]
        if len(cells) > 1:
            accuracy = {gamma: value for gamma, (value, _) in cells.items()}
            energy = {gamma: wh for gamma, (_, wh) in cells.items()}
            title = f"{topology}: validation accuracy [%]"
            panels.append(_heat(title, "Validation accuracy [%]", accuracy, best_cell(cells), 1, True))
            energies |= energy
    if not panels:
        return None
    panels.append(_heat("Training energy of all nodes [Wh]", ENERGY, energies, None, _decimals(energies), False))
    caption = (
        "Mean validation accuracy of the nodes by Γ_train and Γ_sync, read after the last whole cycle, and the training"
        " energy, which does not depend on the topology. Darker is better. The framed cell is the best by the paper's"
        " rule: highest accuracy (to one decimal), ties to the lower energy."
    )
    title = "Figure 3: choosing Γ_train and Γ_sync"
    return Chart(name, title, family.subtitle, caption, panels, len(panels), tuple(notes))


def best_cell(cells: dict[tuple[int, int], tuple[float, float]]) -> tuple[int, int]:
    """(Γ_train, Γ_sync) with the highest accuracy as printed, one decimal; ties to the lowest energy."""
    return min(cells, key=lambda gamma: (-round(cells[gamma][0], 1), cells[gamma][1], gamma))


def _heat(
    title: str,
    unit: str,
    cells: dict[tuple[int, int], float],
    best: tuple[int, int] | None,
    decimals: int,
    darker_is_more: bool,
) -> HeatPanel:
    training = tuple(sorted({gamma[0] for gamma in cells}))
    synching = tuple(sorted({gamma[1] for gamma in cells}))
    values = tuple(tuple(cells.get((t, s)) for s in synching) for t in training)
    return HeatPanel(title, unit, training, synching, values, best, decimals, darker_is_more)


def _decimals(cells: dict[tuple[int, int], float]) -> int:
    """So many that three figures or more are seen."""
    most = max(cells.values(), default=0)
    return 0 if most >= 100 else 1 if most >= 10 else 2


def figure4(family: Family, name: str) -> Chart | None:
    """SkipTrain evaluated more often than once a cycle, with its spread and the training rounds shaded."""
    panels, notes = [], []
    for topology in family.topologies:
        record = next(
            (r for r in family.of("skiptrain", topology) if r.experiment.test_after < r.experiment.schedule.period),
            None,
        )
        if record is None or len(record.readings) < 2:
            continue
        series = _series("SkipTrain: mean of the nodes", record)
        band = tuple(r.deviation for r in record.readings)
        line = Series(series.name, series.style, series.x, series.y, band)
        schedule = record.experiment.schedule
        title = f"{topology}, Γ_train {schedule.training}, Γ_sync {schedule.synchronization}"
        panels.append(LinePanel(title, ROUNDS, ACCURACY, (line,), training_spans(record.kinds), "training rounds"))
        notes += _unfinished([record])
    if not panels:
        return None
    every = min(r.experiment.test_after for r in family.records if r.algorithm == "skiptrain")
    caption = (
        f"Mean test accuracy of the nodes, evaluated every {every} rounds; the band is one standard deviation over the"
        " nodes. Accuracy falls and spread grows while nodes train, and the reverse while they synchronize."
    )
    title = "Figure 4: training and synchronization rounds"
    return Chart(name, title, family.subtitle, caption, panels, len(panels), tuple(notes))


def training_spans(kinds: Sequence[RoundKind]) -> tuple[tuple[float, float], ...]:
    """Where consecutive training rounds begin and end on an axis of completed rounds."""
    flags = np.array([False, *(kind is RoundKind.TRAINING for kind in kinds), False])
    edges = np.flatnonzero(flags[1:] != flags[:-1])
    return tuple((float(start), float(end)) for start, end in zip(edges[::2], edges[1::2], strict=True))


def figure5(family: Family, name: str) -> Chart | None:
    """SkipTrain and D-PSGD: accuracy against rounds and against energy."""
    caption = (
        "Mean test accuracy of the nodes against rounds and against the training energy of all nodes, without budgets."
    )
    return _comparison(family, name, "Figure 5: SkipTrain and D-PSGD", caption, ("skiptrain", "dpsgd"), "skiptrain", {})


def figure6(family: Family, name: str) -> Chart | None:
    """The constrained setting: SkipTrain-constrained, Greedy and D-PSGD."""
    caption = (
        "Mean test accuracy of the nodes against rounds and against the training energy of all nodes. The nodes of"
        " SkipTrain-constrained and Greedy stop training when their budget is spent; D-PSGD has none and is compared"
        " at the energy that SkipTrain-constrained ends with (vertical line)."
    )
    limits = {
        topology: record.training_wh[-1]
        for topology in family.topologies
        if (record := family.pick("skiptrain_constrained", topology)) is not None and record.finished
    }
    algorithms = ("skiptrain_constrained", "greedy", "dpsgd")
    title = "Figure 6: with energy budgets"
    return _comparison(family, name, title, caption, algorithms, "skiptrain_constrained", limits)


def overview(family: Family, name: str) -> Chart | None:
    """Accuracy of every run of a family, whatever its algorithm; for sets of runs that fit no figure."""
    algorithms = tuple(dict.fromkeys(record.algorithm for record in family.records))
    caption = "Mean test accuracy of the nodes against rounds and against the training energy of all nodes."
    return _comparison(family, name, "Accuracy of the runs", caption, algorithms, None, {})


def _comparison(
    family: Family,
    name: str,
    title: str,
    caption: str,
    algorithms: Sequence[str],
    needed: str | None,
    limits: dict[str, float],
) -> Chart | None:
    """Panels over rounds, then over energy, a column for each topology; ``needed`` must be among the runs."""
    chosen: dict[str, list[Record]] = {}
    notes: list[str] = []
    for topology in family.topologies:
        records = [family.pick(algorithm, topology) for algorithm in algorithms]
        drawn = [record for record in records if record is not None and record.readings]
        names = {record.algorithm for record in drawn}
        if not drawn or (needed is not None and (needed not in names or len(names) < 2)):
            continue
        chosen[topology] = drawn
        missing = [a for a in algorithms if a not in names]
        notes += [f"{topology}: no run of algorithm {algorithm} with an evaluation" for algorithm in missing]
        notes += _unfinished(drawn)
    if not chosen:
        return None
    axes: tuple[tuple[str, Callable[[Reading], float]], ...] = (
        (ROUNDS, lambda reading: float(reading.round)),
        (ENERGY, lambda reading: reading.training_wh),
    )
    panels = [
        LinePanel(
            topology,
            label,
            ACCURACY,
            tuple(_series(algorithm_name(record.algorithm), record, value, record.whole) for record in records),
            marks=(Mark(limits[topology], "equal energy"),) if label == ENERGY and topology in limits else (),
        )
        for label, value in axes
        for topology, records in chosen.items()
    ]
    columns = 2 if len(chosen) == 1 else len(chosen)
    return Chart(name, title, family.subtitle, caption, panels, columns, tuple(notes))


def _series(
    name: str,
    record: Record,
    value: Callable[[Reading], float] = lambda reading: float(reading.round),
    readings: Sequence[Reading] | None = None,
) -> Series:
    """``readings``: by default all of them."""
    shown = record.readings if readings is None else readings
    x = tuple(value(reading) for reading in shown)
    return Series(name, style_of(record.algorithm), x, tuple(reading.accuracy for reading in shown))


def _unfinished(records: Sequence[Record | None]) -> list[str]:
    return [
        f"{algorithm_name(record.algorithm)}, {record.topology}: {record.state}"
        for record in records
        if record is not None and not record.finished
    ]
