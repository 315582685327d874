"""Tables 1 to 4 of the paper, each value beside the paper's."""

from __future__ import annotations

from collections.abc import Sequence

from skiptrain_plugin.experiment.experiment import Experiment
from skiptrain_plugin.results import paper_values
from skiptrain_plugin.results.paper_values import PaperValue
from skiptrain_plugin.results.readings import INSIDE_CYCLE, Family, Reading, Record
from skiptrain_plugin.results.style import algorithm_name
from skiptrain_plugin.results.tables import Cell, Table

_HYPERPARAMETERS = (
    ("η", "Learning rate", "learning_rate"),
    ("|ξ|", "Batch size [samples]", "batch_size"),
    ("E", "Local steps", "local_steps"),
    ("|x|", "Model size [parameters]", "parameters"),
    ("T", "Total number of rounds", "rounds"),
)
_COMPARED = (
    "Algorithm",
    "Data",
    "Topology",
    "Γ_train/Γ_sync",
    "Read at round",
    "Energy [Wh]",
    "Paper: energy [Wh]",
    "Share of D-PSGD's energy [%]",
    "Paper: share [%]",
    "Test accuracy [%]",
    "Paper: accuracy [%]",
    "Over D-PSGD [points]",
    "Paper: over D-PSGD [points]",
)


_PRINTED = (
    ("Algorithm", "Algorithm", None),
    ("Topology", "Topology", None),
    ("Round", "Read at round", None),
    ("Wh (paper)", "Energy [Wh]", "Paper: energy [Wh]"),
    ("% of D-PSGD (paper)", "Share of D-PSGD's energy [%]", "Paper: share [%]"),
    ("Accuracy % (paper)", "Test accuracy [%]", "Paper: accuracy [%]"),
    ("Over D-PSGD (paper)", "Over D-PSGD [points]", "Paper: over D-PSGD [points]"),
)


def narrow(table: Table) -> Table:
    """Table 3 or 4 for a terminal: fewer columns, the paper's value in brackets."""
    rows = []
    for row in table.rows:
        cells = dict(zip(table.columns, row, strict=True))
        printed = []
        for _, mine, paper in _PRINTED:
            beside = f" ({table.text(cells[paper])})" if paper and cells[paper] is not None else ""
            printed.append(table.text(cells[mine]) + beside)
        rows.append(tuple(printed))
    data = "; ".join(dict.fromkeys(str(row[table.columns.index("Data")]) for row in table.rows))
    return Table(f"{table.title} ({data})", tuple(name for name, _, _ in _PRINTED), tuple(rows), table.notes)


def table1(experiments: Sequence[Experiment]) -> Table:
    """Hyperparameters of each dataset."""
    columns = ["Symbol", "Hyperparameter"]
    for experiment in experiments:
        columns += [experiment.facts.name, f"{experiment.facts.name}, paper"]
    rows = []
    for symbol, words, key in _HYPERPARAMETERS:
        row: list[Cell] = [symbol, words]
        for experiment in experiments:
            paper = paper_values.TABLE1.get(experiment.facts.name, {}).get(key)
            row += [_plain(_hyperparameters(experiment)[key]), _plain(paper) if paper is not None else None]
        rows.append(tuple(row))
    return Table("Table 1: hyperparameters", tuple(columns), tuple(rows), decimals=None)


def _hyperparameters(experiment: Experiment) -> dict[str, float]:
    return {
        "learning_rate": experiment.optimizer.lr,
        "batch_size": experiment.train.batch_size,
        "local_steps": experiment.train.rounds,
        "parameters": experiment.architecture.parameters,
        "rounds": experiment.rounds,
    }


def _plain(value: float) -> Cell:
    return int(value) if value == int(value) else value


def table2(experiments: Sequence[Experiment]) -> Table:
    """Energy of a training round and training rounds τ of each device."""
    columns = ["Device"]
    for experiment in experiments:
        name = experiment.facts.name
        columns += [f"{name} [mWh]", f"{name}, paper [mWh]", f"{name}: τ [rounds]", f"{name}, paper: τ [rounds]"]
    devices = list(dict.fromkeys(row.name for experiment in experiments for row in experiment.trace))
    rows = []
    for device in devices:
        row: list[Cell] = [device]
        for experiment in experiments:
            mine = next((line for line in experiment.trace if line.name == device), None)
            paper = paper_values.TABLE2.get(experiment.facts.name, {}).get(device)
            row += [mine.wh_per_round * 1000 if mine else None, paper[0] if paper else None]
            row += [mine.budget if mine else None, paper[1] if paper else None]
        rows.append(tuple(row))
    notes = tuple(
        f"{e.facts.name}: the budgets τ are scaled from {e.node.budget_horizon} to {e.rounds} rounds."
        for e in experiments
        if e.node.budget_horizon not in (None, e.rounds)
    )
    return Table("Table 2: energy traces", tuple(columns), tuple(rows), notes)


def table3(families: Sequence[Family]) -> Table | None:
    """Training energy and mean test accuracy of SkipTrain and D-PSGD, without budgets."""
    rows: list[tuple[Cell, ...]] = []
    notes: list[str] = []
    used: list[Family] = []
    for family in families:
        for topology in family.topologies:
            records = {name: family.pick(name, topology) for name in ("skiptrain", "dpsgd")}
            if records["skiptrain"] is None or records["dpsgd"] is None:
                continue
            used.append(family)
            readings = {name: _final(record, notes) for name, record in records.items()}
            rows += _rows(family, records, readings, paper_values.TABLE3, records["skiptrain"].degree, full=True)
    title = "Table 3: training energy and mean test accuracy without budgets"
    return Table(title, _COMPARED, tuple(rows), _scale_notes(used, notes)) if rows else None


def table4(families: Sequence[Family]) -> Table | None:
    """Energy and mean test accuracy with budgets, at equal energy.

    D-PSGD and Greedy are read at their last evaluation whose training energy does not exceed what
    SkipTrain-constrained has spent in the end.
    """
    rows: list[tuple[Cell, ...]] = []
    notes: list[str] = []
    used: list[Family] = []
    for family in families:
        for topology in family.topologies:
            names = ("skiptrain_constrained", "greedy", "dpsgd")
            records = {name: family.pick(name, topology) for name in names}
            reference = records["skiptrain_constrained"]
            if reference is None or not (records["greedy"] or records["dpsgd"]):
                continue
            used.append(family)
            own = _final(reference, notes)
            readings: dict[str, Reading | None] = {"skiptrain_constrained": own}
            for name in names[1:]:
                other = records[name]
                readings[name] = other.at_energy(reference.training_wh[-1]) if own and other else None
                if own and other and readings[name] is None:
                    notes.append(f"{algorithm_name(name)}, {topology}: no evaluation at that energy; {other.state}.")
            rows += _rows(family, records, readings, paper_values.TABLE4, reference.degree, full=False)
            notes += _missing(family, topology, records)
    if not rows:
        return None
    if any(family.dataset == "femnist" for family in used):
        notes.append(paper_values.TABLE4_NOTE)
    title = "Table 4: energy and mean test accuracy with budgets, at equal energy"
    return Table(title, _COMPARED, tuple(rows), _scale_notes(used, notes))


def _final(record: Record | None, notes: list[str]) -> Reading | None:
    """The evaluation that stands for a finished run; an unfinished one has no final value."""
    if record is None:
        return None
    if not record.finished:
        notes.append(f"{algorithm_name(record.algorithm)}, {record.topology}: {record.state}.")
        return None
    if record.read_inside_cycle:
        notes.append(f"{algorithm_name(record.algorithm)}, {record.topology}: {INSIDE_CYCLE}.")
    return record.last


def _rows(
    family: Family,
    records: dict[str, Record | None],
    readings: dict[str, Reading | None],
    paper: paper_values.Cells,
    degree: int | None,
    *,
    full: bool,
) -> list[tuple[Cell, ...]]:
    """``full``: the energy of the whole run (table 3) instead of the energy at the reading."""
    energies: dict[str, float | None] = {}
    for name, record in records.items():
        reading, whole = readings[name], full or name == "skiptrain_constrained"
        energies[name] = (record.training_wh[-1] if whole else reading.training_wh) if record and reading else None
    baseline, base = readings["dpsgd"], _paper(family, paper, degree, "dpsgd")
    rows: list[tuple[Cell, ...]] = []
    for name, record in records.items():
        if record is None:
            continue
        reading, value, energy = readings[name], _paper(family, paper, degree, name), energies[name]
        schedule = record.experiment.schedule
        rows.append(
            (
                algorithm_name(name),
                family.data,
                record.topology,
                f"{schedule.training}/{schedule.synchronization}" if "skiptrain" in name else None,
                reading.round if reading else None,
                energy,
                value.energy_wh if value else None,
                _share(energy, energies["dpsgd"]),
                _share(value.energy_wh, base.energy_wh) if value and base else None,
                reading.accuracy if reading else None,
                value.accuracy if value else None,
                reading.accuracy - baseline.accuracy if reading and baseline and name != "dpsgd" else None,
                value.accuracy - base.accuracy if value and base and name != "dpsgd" else None,
            )
        )
    return rows


def _share(energy: float | None, base: float | None) -> float | None:
    return 100 * energy / base if energy is not None and base else None


def _paper(family: Family, cells: paper_values.Cells, degree: int | None, algorithm: str) -> PaperValue | None:
    """The paper's cell; none for generated data, which are not the paper's."""
    if degree is None or family.first.generated:
        return None
    return cells.get((family.dataset, degree, algorithm))


def _missing(family: Family, topology: str, records: dict[str, Record | None]) -> list[str]:
    return [
        f"{family.first.title}, {topology}: no run of algorithm {name}, or several and none with the tuned Γ."
        for name, record in records.items()
        if record is None
    ]


def _scale_notes(families: Sequence[Family], notes: Sequence[str]) -> tuple[str, ...]:
    scales = []
    for family in families:
        e = family.first.experiment
        rounds = paper_values.ROUNDS.get(family.dataset)
        if not family.first.generated and rounds and (e.nodes, e.rounds) != (paper_values.NODES, rounds):
            scales.append(
                f"Obtained with {e.nodes} nodes and {e.rounds} rounds, the paper's values with {paper_values.NODES}"
                f" nodes and {rounds} rounds on {family.first.title}: energies in Wh grow with both, so compare shares."
            )
    return tuple(dict.fromkeys([*scales, *notes]))
