"""What a figure shows, as plain numbers: drawn by matplotlib for print and as inline SVG for the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from skiptrain_plugin.results.tables import Table


@dataclass(frozen=True)
class Series:
    """One line."""

    name: str
    style: str
    """Key of ``style.MARKS``."""
    x: tuple[float, ...]
    y: tuple[float, ...]
    band: tuple[float, ...] | None = None
    """Half-width of the band around the line, in the unit of y."""


@dataclass(frozen=True)
class Mark:
    """A vertical line at ``x`` with a label."""

    x: float
    label: str


@dataclass(frozen=True)
class LinePanel:
    """Lines over one axis."""

    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    shaded: tuple[tuple[float, float], ...] = ()
    """Spans of x with a grey background."""
    shaded_label: str = ""
    marks: tuple[Mark, ...] = ()

    def table(self) -> Table:
        """x and the value of every line there; as many rows for an x as a line has values."""
        xs = sorted({x for one in self.series for x in one.x})
        lookups = [_by_x(one.x, one.y) for one in self.series]
        bands = [_by_x(one.x, one.band) if one.band else None for one in self.series]
        whole = all(x == int(x) for x in xs)
        columns = [self.x_label]
        for one in self.series:
            columns += [f"{one.name}: {self.y_label}"] + ([f"{one.name}: standard deviation"] if one.band else [])
        rows = []
        for x in xs:
            for turn in range(max(len(lookup.get(x, ())) for lookup in lookups)):
                row: list[float | None] = [int(x) if whole else x]
                for lookup, band in zip(lookups, bands, strict=True):
                    row.append(_item(lookup.get(x, ()), turn))
                    if band is not None:
                        row.append(_item(band.get(x, ()), turn))
                rows.append(tuple(row))
        return Table(self.title, tuple(columns), tuple(rows))


def _by_x(xs: Sequence[float], values: Sequence[float]) -> dict[float, list[float]]:
    found: dict[float, list[float]] = {}
    for x, value in zip(xs, values, strict=True):
        found.setdefault(x, []).append(value)
    return found


def _item(values: Sequence[float], index: int) -> float | None:
    return values[index] if index < len(values) else None


@dataclass(frozen=True)
class HeatPanel:
    """Values by Γ_train (upwards) and Γ_sync (to the right)."""

    title: str
    unit: str
    training: tuple[int, ...]
    synching: tuple[int, ...]
    values: tuple[tuple[float | None, ...], ...]
    """A row for each Γ_train; None where there is no run."""
    best: tuple[int, int] | None
    """(Γ_train, Γ_sync) of the marked cell."""
    decimals: int
    darker_is_more: bool = True

    def table(self) -> Table:
        """One row a cell."""
        rows = [
            (training, synching, value, "best" if self.best == (training, synching) else "")
            for training, line in zip(self.training, self.values, strict=True)
            for synching, value in zip(self.synching, line, strict=True)
        ]
        return Table(self.title, ("Γ_train", "Γ_sync", self.unit, ""), tuple(rows))


@dataclass(frozen=True)
class OperationPanel:
    """What each node does in each round."""

    title: str
    nodes: tuple[str, ...]
    first_round: int
    trains: tuple[tuple[bool, ...], ...]
    """A row for each node, a value for each round."""

    def table(self) -> Table:
        """One row a round."""
        rounds = range(len(self.trains[0]) if self.trains else 0)
        rows = [(self.first_round + r, *("train" if line[r] else "sync" for line in self.trains)) for r in rounds]
        return Table(self.title, ("Round", *self.nodes), tuple(rows))


@dataclass(frozen=True)
class BubblePanel:
    """Samples of each class on each node."""

    title: str
    counts: tuple[tuple[int, ...], ...]
    """A row for each node, a count for each class."""

    def table(self) -> Table:
        """One row for each node and class with samples."""
        rows = [
            (node, label, count) for node, line in enumerate(self.counts) for label, count in enumerate(line) if count
        ]
        return Table(self.title, ("Node", "Class", "Samples"), tuple(rows))


Panel = LinePanel | HeatPanel | OperationPanel | BubblePanel


@dataclass(frozen=True)
class Chart:
    """One figure."""

    name: str
    """File name without ending, for example ``figure5-cifar``."""
    title: str
    subtitle: str
    """Dataset and scale; says so when the data are generated."""
    caption: str
    panels: Sequence[Panel]
    columns: int
    notes: tuple[str, ...] = ()
    """What is missing or unfinished."""
