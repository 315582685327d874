"""A report over any set of runs: which figures and tables they allow, the headline, and what is missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from skiptrain_plugin.data import listing
from skiptrain_plugin.data.for_experiment import images_of
from skiptrain_plugin.errors import InputError, SkipTrainError
from skiptrain_plugin.results import figures
from skiptrain_plugin.results.charts import Chart
from skiptrain_plugin.results.classes import figure7
from skiptrain_plugin.results.differences import differences
from skiptrain_plugin.results.draw import write_chart
from skiptrain_plugin.results.paper_tables import table3, table4
from skiptrain_plugin.results.readings import Collection, Family, Record, collect
from skiptrain_plugin.results.record import write_atomically
from skiptrain_plugin.results.style import algorithm_name, clean
from skiptrain_plugin.results.tables import Cell, Table

_MAKERS: tuple[tuple[str, Callable[[Family, str], Chart | None]], ...] = (
    ("figure1", figures.figure1),
    ("figure2", figures.figure2),
    ("figure3", figures.figure3),
    ("figure4", figures.figure4),
    ("figure5", figures.figure5),
    ("figure6", figures.figure6),
)
_MOST_LINES = 12
"""An overview with more runs than this could not be read."""


@dataclass(frozen=True)
class Headline:
    """SkipTrain, or SkipTrain-constrained at equal energy, against D-PSGD on one set-up."""

    setting: str
    """Data, scale and topology."""
    saved: float | None
    """Training energy saved, percent of D-PSGD's; None at equal energy."""
    gained: float
    """Mean test accuracy above D-PSGD's, percentage points."""
    sentence: str


@dataclass(frozen=True)
class Part:
    """What the report says of one family of runs."""

    family: Family
    charts: tuple[Chart, ...]
    runs: Table
    differences: Table
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Report:
    """Everything a report shows."""

    collection: Collection
    parts: tuple[Part, ...]
    headlines: tuple[Headline, ...]
    tables: dict[str, Table]
    """Tables 3 and 4 by file name, where the runs allow them."""


def build(folders: Sequence[Path]) -> Report:
    """The report over the runs in ``folders``; an error when there is none to read."""
    collection = collect(folders)
    if not collection.families:
        places = ", ".join(map(str, folders))
        reasons = "; ".join(collection.problems)
        raise InputError(f"no run to report on in {places}" + (f": {reasons}" if reasons else ""))
    names: Counter[str] = Counter()
    parts = tuple(_part(family, names) for family in collection.families)
    found = [headline for family in collection.families for headline in _headlines(family)]
    headlines = tuple(sorted(found, key=lambda headline: headline.saved is None))
    made = {"table3": table3(collection.families), "table4": table4(collection.families)}
    return Report(collection, parts, headlines, {name: table for name, table in made.items() if table is not None})


def write(report: Report, out: Path) -> list[Path]:
    """Writes figures, tables and ``report.html`` to ``out``; returns the files."""
    from skiptrain_plugin.results.page import page

    files: list[Path] = []
    try:
        out.mkdir(parents=True, exist_ok=True)
        for part in report.parts:
            for chart in part.charts:
                files += write_chart(chart, out)
        for name, table in report.tables.items():
            files += table.write(out, name)
        files.append(out / "report.html")
        write_atomically(files[-1], page(report))
    except OSError as error:
        raise InputError(f"{out} cannot be written: {error.strerror or error}") from None
    return files


def _part(family: Family, names: Counter[str]) -> Part:
    charts: list[Chart] = []
    notes: list[str] = []

    def name(stem: str) -> str:
        base = f"{stem}-{family.dataset}"
        names[base] += 1
        return base if names[base] == 1 else f"{base}-{names[base]}"

    for stem, make in _MAKERS:
        try:
            chart = make(family, f"{stem}-{family.dataset}")
        except InputError as error:
            notes.append(f"{stem} is left out: {error}")
            continue
        if chart is not None:
            charts.append(_renamed(chart, name(stem)))
    drawn = {chart.name.partition("-")[0] for chart in charts}
    if not drawn & {"figure3", "figure5", "figure6"} and len(family.records) <= _MOST_LINES:
        chart = figures.overview(family, "accuracy")
        if chart is not None:
            charts.append(_renamed(chart, name("accuracy")))
    try:
        charts.append(_renamed(_classes(family), name("figure7")))
    except SkipTrainError as error:
        notes.append(f"Figure 7 is left out: {error}")
    notes += [f"{_label(r)} has no evaluation yet ({r.state})" for r in family.records if not r.readings]
    return Part(family, tuple(charts), runs_table(family), differences(family), tuple(notes))


def _renamed(chart: Chart, name: str) -> Chart:
    return Chart(name, chart.title, chart.subtitle, chart.caption, chart.panels, chart.columns, chart.notes)


def _classes(family: Family) -> Chart:
    """Figure 7 from the very data that the runs used; refused when they are not here or not the same."""
    record = family.first
    if not any(one.name == family.dataset and one.present for one in listing()):
        raise InputError(f"{record.title} is not on this computer")
    data = images_of(record.experiment, progress=False)
    if data.digest != record.digest:
        raise InputError(f"the data here are not those of the runs ({record.title})")
    return figure7([(record.experiment, data)], "figure7")


def _headlines(family: Family) -> list[Headline]:
    found = []
    for topology in family.topologies:
        setting = f"{family.subtitle}, {topology}"
        base = family.pick("dpsgd", topology)
        ours = family.pick("skiptrain", topology)
        if base and ours and base.finished and ours.finished and base.last and ours.last and base.training_wh[-1] > 0:
            saved = 100 * (1 - ours.training_wh[-1] / base.training_wh[-1])
            gained = ours.last.accuracy - base.last.accuracy
            sentence = (
                f"{setting}: SkipTrain used {ours.training_wh[-1]:.2f} Wh for training, D-PSGD"
                f" {base.training_wh[-1]:.2f} Wh ({saved:.1f} % saved); mean test accuracy {ours.last.accuracy:.2f} %"
                f" and {base.last.accuracy:.2f} % ({gained:+.2f} points)."
            )
            found.append(Headline(setting, saved, gained, sentence))
        ours = family.pick("skiptrain_constrained", topology)
        if base and ours and ours.finished and ours.last:
            energy = ours.training_wh[-1]
            reading = base.at_energy(energy)
            if reading is not None:
                gained = ours.last.accuracy - reading.accuracy
                sentence = (
                    f"{setting}: with budgets, at {energy:.2f} Wh, SkipTrain-constrained reached"
                    f" {ours.last.accuracy:.2f} % mean test accuracy and D-PSGD {reading.accuracy:.2f} % at round"
                    f" {reading.round}, with {reading.training_wh:.2f} Wh ({gained:+.2f} points)."
                )
                found.append(Headline(setting, None, gained, sentence))
    return found


def runs_table(family: Family) -> Table:
    """One row for each run of a family."""
    columns = (
        "Algorithm",
        "Topology",
        "Γ_train/Γ_sync",
        "State",
        "Read at round",
        "Test accuracy [%]",
        "± [points]",
        "Average model [%]",
        "Training energy [Wh]",
        "Communication energy [Wh]",
        "Time [s]",
    )
    notes = tuple(f"{_label(record)}: {caveat}." for record in family.records for caveat in record.caveats)
    return Table(f"Runs on {family.subtitle}", columns, tuple(_run_row(record) for record in family.records), notes)


def _run_row(record: Record) -> tuple[Cell, ...]:
    schedule, last = record.experiment.schedule, record.last
    return (
        algorithm_name(record.algorithm),
        record.topology,
        f"{schedule.training}/{schedule.synchronization}" if "skiptrain" in record.algorithm else None,
        record.state,
        last.round if last else None,
        last.accuracy if last else None,
        last.deviation if last else None,
        last.mean_model if last else None,
        record.training_wh[-1] if record.completed else None,
        record.communication_wh[-1] if record.completed else None,
        record.wall_seconds,
    )


def sweep_table(keys: Sequence[str], records: Sequence[Record]) -> Table:
    """One row for each run of a sweep: the varied keys, accuracy and energy."""
    measured = ("State", "Read at round", "Test accuracy [%]", "± [points]", "Training energy [Wh]", "Time [s]")
    rows = []
    for record in records:
        varied: list[Cell] = []
        for key in keys:
            section, _, name = key.partition(".")
            varied.append(clean(record.experiment.sections[section].model_dump(by_alias=True).get(name)))
        _, _, _, state, read, accuracy, deviation, _, energy, _, seconds = _run_row(record)
        rows.append((*varied, state, read, accuracy, deviation, energy, seconds))
    return Table("Results of the sweep", (*keys, *measured), tuple(rows))


def _label(record: Record) -> str:
    return f"{algorithm_name(record.algorithm)} ({record.topology})"
