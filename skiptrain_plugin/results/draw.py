"""Charts as PNG and SVG for print: fonts of 8 points and more, the same bytes for the same numbers."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import MaxNLocator

from skiptrain_plugin.errors import InputError
from skiptrain_plugin.results.charts import BubblePanel, Chart, HeatPanel, LinePanel, OperationPanel
from skiptrain_plugin.results.style import MARKS

_SETTINGS: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 8,
    "axes.titlesize": 8.5,
    "axes.labelsize": 8,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.fontsize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#D9D9D9",
    "grid.linewidth": 0.5,
    "axes.axisbelow": True,
    "lines.linewidth": 1.4,
    "lines.markersize": 3.8,
    "svg.fonttype": "none",
    "svg.hashsalt": "skiptrain",
    "path.simplify": False,
}
_DPI = 250
_TRAIN, _SYNC = "#0072B2", "#F5E6C8"
_WIDTH = 7.0
"""Inches: two columns of a printed page."""


def write_chart(chart: Chart, folder: Path) -> list[Path]:
    """Writes ``chart`` as PNG, SVG and a CSV of the values of each panel; returns the files."""
    with matplotlib.rc_context(_SETTINGS):
        figure = draw(chart)
        png, svg = io.BytesIO(), io.BytesIO()
        figure.savefig(png, format="png", dpi=_DPI, metadata={"Software": None})
        figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
    contents = {f"{chart.name}.png": png.getvalue(), f"{chart.name}.svg": svg.getvalue()}
    for number, panel in enumerate(chart.panels, start=1):
        suffix = f"-panel{number}" if len(chart.panels) > 1 else ""
        contents[f"{chart.name}{suffix}.csv"] = panel.table().to_csv().encode()
    paths = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            paths.append(folder / name)
            paths[-1].write_bytes(content)
    except OSError as error:
        raise InputError(f"{folder} cannot be written: {error.strerror or error}") from None
    return paths


def draw(chart: Chart) -> Figure:
    """The matplotlib figure."""
    columns = chart.columns
    rows = -(-len(chart.panels) // columns)
    width, height = _size(chart, rows)
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(_plain(f"{chart.title}\n{chart.subtitle}"), fontsize=9.5)
    axes: list[Axes] = list(figure.subplots(rows, columns, squeeze=False).flat)
    for panel, ax in zip(chart.panels, axes, strict=False):
        ax.set_title(_plain(panel.title))
        if isinstance(panel, LinePanel):
            _lines(ax, panel)
        elif isinstance(panel, HeatPanel):
            _heat(ax, panel)
        elif isinstance(panel, OperationPanel):
            _operations(ax, panel)
        else:
            _bubbles(ax, panel)
    for ax in axes[len(chart.panels) :]:
        ax.set_visible(False)
    _outside(figure, axes, chart)
    return figure


def _size(chart: Chart, rows: int) -> tuple[float, float]:
    first = chart.panels[0]
    if isinstance(first, OperationPanel):
        return _WIDTH, 0.95 + rows * (0.75 + 0.2 * len(first.nodes))
    if isinstance(first, HeatPanel):
        return min(_WIDTH, 2.3 * chart.columns), 2.6
    if isinstance(first, BubblePanel):
        classes = max(len(panel.counts[0]) for panel in chart.panels if isinstance(panel, BubblePanel))
        return (_WIDTH if chart.columns > 1 else 4.2), max(3.6, 1.2 + 0.08 * classes)
    return (_WIDTH if chart.columns > 1 else 4.6), 1.0 + 2.25 * rows


def _lines(ax: Axes, panel: LinePanel) -> None:
    for start, end in panel.shaded:
        ax.axvspan(start, end, color="#E3E3E3", linewidth=0, zorder=0)
    for series in panel.series:
        mark = MARKS[series.style]
        ax.plot(
            series.x,
            series.y,
            color=mark.colour,
            marker=mark.marker,
            linestyle=(0, mark.dashes) if mark.dashes else "-",
            markevery=max(1, len(series.x) // 25),
            label=_plain(series.name),
        )
        if series.band is not None:
            y, half = np.array(series.y), np.array(series.band)
            ax.fill_between(series.x, y - half, y + half, color=mark.colour, alpha=0.22, linewidth=0)
    for line in panel.marks:
        ax.axvline(line.x, color="#555555", linewidth=0.9, linestyle=(0, (2, 2)))
        ax.annotate(
            _plain(line.label),
            (line.x, 0.03),
            xycoords=("data", "axes fraction"),
            xytext=(3, 0),
            textcoords="offset points",
            color="#333333",
        )
    ax.set_xlabel(panel.x_label)
    ax.set_ylabel(panel.y_label)
    ax.set_xlim(left=0)
    ax.xaxis.set_major_locator(
        MaxNLocator(6, steps=[1, 2, 4, 5, 8, 10], integer=max(x for s in panel.series for x in s.x) >= 6)
    )
    ax.yaxis.set_major_locator(MaxNLocator(7))


def _heat(ax: Axes, panel: HeatPanel) -> None:
    known = [value for row in panel.values for value in row if value is not None]
    low, high = min(known), max(known)
    cmap = matplotlib.colormaps["Blues" if panel.darker_is_more else "Oranges_r"]
    for y, row in enumerate(panel.values):
        for x, value in enumerate(row):
            if value is None:
                ax.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor="white", hatch="////", edgecolor="#AAAAAA"))
                continue
            level = 0.5 if high == low else (value - low) / (high - low)
            colour = cmap(0.08 + 0.8 * level)
            ax.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=colour, edgecolor="white"))
            red, green, blue, _ = colour
            bright = 0.299 * red + 0.587 * green + 0.114 * blue > 0.55
            ink = "black" if bright else "white"
            ax.text(x, y, f"{value:.{panel.decimals}f}", ha="center", va="center", color=ink)
    if panel.best is not None:
        x, y = panel.synching.index(panel.best[1]), panel.training.index(panel.best[0])
        ax.add_patch(Rectangle((x - 0.46, y - 0.46), 0.92, 0.92, fill=False, edgecolor="#D55E00", linewidth=2.2))
    ax.set_xticks(range(len(panel.synching)), [str(value) for value in panel.synching])
    ax.set_yticks(range(len(panel.training)), [str(value) for value in panel.training])
    ax.set_xlim(-0.5, len(panel.synching) - 0.5)
    ax.set_ylim(-0.5, len(panel.training) - 0.5)
    ax.set_xlabel(_plain("Γ_sync [rounds]"))
    ax.set_ylabel(_plain("Γ_train [rounds]"))
    ax.set_title(_plain(panel.title).replace(": ", ":\n").replace("energy of", "energy\nof"))
    ax.set_aspect("equal")
    _bare(ax)


def _operations(ax: Axes, panel: OperationPanel) -> None:
    rounds = len(panel.trains[0])
    for y, row in enumerate(panel.trains):
        for x, trains in enumerate(row):
            style: dict[str, Any] = {"facecolor": _TRAIN} if trains else {"facecolor": _SYNC, "hatch": "...."}
            ax.add_patch(Rectangle((x + 0.04, y + 0.06), 0.92, 0.88, edgecolor="#8A8A8A", linewidth=0.4, **style))
            ax.text(x + 0.5, y + 0.5, "T" if trains else "S", ha="center", va="center", **_letter(trains))
    ax.set_xlim(0, rounds)
    ax.set_ylim(len(panel.trains), 0)
    ax.set_xticks([x + 0.5 for x in range(rounds)], [str(panel.first_round + x) for x in range(rounds)])
    ax.set_yticks([y + 0.5 for y in range(len(panel.nodes))], [_plain(name) for name in panel.nodes])
    ax.set_xlabel("Round")
    _bare(ax)


def _letter(trains: bool) -> dict[str, Any]:
    return {"color": "white", "fontweight": "bold"} if trains else {"color": "#444444"}


def _bubbles(ax: Axes, panel: BubblePanel) -> None:
    counts = np.array(panel.counts)
    nodes, classes = counts.shape
    x, y = np.nonzero(counts)
    most = max(1, int(counts.max()))
    biggest = 130.0 if classes <= 20 else 36.0
    ax.scatter(x, y, s=biggest * counts[x, y] / most, color="#0072B2", edgecolor="white", linewidth=0.4, zorder=3)
    ax.set_xticks(range(nodes), [str(node) for node in range(nodes)])
    step = 1 if classes <= 20 else 5
    ax.set_yticks(range(0, classes, step), [str(label) for label in range(0, classes, step)])
    ax.set_xlim(-0.7, nodes - 0.3)
    ax.set_ylim(-0.8, classes - 0.2)
    ax.set_xlabel("Node")
    ax.set_ylabel("Class")
    title = _plain(panel.title).replace(": ", ":\n")
    ax.set_title(f"{title}\nlargest dot: {most} samples")


def _bare(ax: Axes) -> None:
    ax.grid(False)
    ax.tick_params(length=0)
    for spine in ax.spines.values():
        spine.set_visible(False)


def _outside(figure: Figure, axes: Sequence[Axes], chart: Chart) -> None:
    """One legend for all panels, below them."""
    handles: dict[str, Any] = {}
    for ax in axes:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    first = chart.panels[0]
    if isinstance(first, LinePanel) and first.shaded_label:
        handles[first.shaded_label] = Patch(facecolor="#E3E3E3")
        handles["one standard deviation over nodes"] = Patch(facecolor=MARKS[first.series[0].style].colour, alpha=0.22)
    if isinstance(first, OperationPanel):
        handles["T: train, share, average"] = Patch(facecolor=_TRAIN)
        handles["S: share, average"] = Patch(facecolor=_SYNC, hatch="....", edgecolor="#8A8A8A")
    if handles:
        wide = figure.get_figwidth() >= _WIDTH
        columns = min(len(handles), 3 if wide else 1)
        figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=columns, frameon=False)


def _plain(text: str) -> str:
    """Text that matplotlib takes as it is, not as a formula; only Γ gets its subscript."""
    safe = text.replace("$", r"\$")
    for word in ("train", "sync"):
        safe = safe.replace(f"Γ_{word}", rf"Γ$_{{\mathrm{{{word}}}}}$")
    return safe
