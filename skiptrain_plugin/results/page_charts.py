"""Panels as inline SVG for the page, with the places and texts of the values that are shown when pointed at."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from skiptrain_plugin.results.charts import BubblePanel, HeatPanel, LinePanel, OperationPanel, Panel, Series
from skiptrain_plugin.results.style import MARKS

_WIDTH, _HEIGHT = 460.0, 290.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 46.0, 14.0, 12.0, 42.0
_MOST_MARKS = 25

Scale = Callable[[float], float]


@dataclass(frozen=True)
class Hit:
    """A place in the drawing and the lines of text that belong to it."""

    x: float
    y: float
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Drawing:
    """An SVG and what it shows when pointed at."""

    svg: str
    hits: tuple[Hit, ...]
    along_x: bool
    """Whether the nearest hit is looked for along the x axis only."""


def draw_panel(panel: Panel, label: str) -> Drawing:
    """The drawing of one panel; ``label`` says what it is to those who cannot see it."""
    if isinstance(panel, LinePanel):
        return _lines(panel, label)
    if isinstance(panel, HeatPanel):
        return _heat(panel, label)
    if isinstance(panel, OperationPanel):
        return _operations(panel, label)
    return _bubbles(panel, label)


def _svg(label: str, width: float, height: float, parts: Sequence[str]) -> str:
    body = "".join(parts)
    return (
        f'<svg viewBox="0 0 {width:g} {height:g}" role="img" tabindex="0" aria-label="{escape(label)}"'
        f' preserveAspectRatio="xMidYMid meet">{body}<g class="guide" hidden="hidden"></g></svg>'
    )


def _text(x: float, y: float, text: str, anchor: str = "middle", extra: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{extra}>{escape(text)}</text>'


def ticks(low: float, high: float, most: int) -> list[float]:
    """Round numbers from ``low`` to ``high``, at most ``most`` of them."""
    span = max(high - low, 1e-9)
    raw = span / max(1, most - 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(index * step, 10) for index in range(first, last + 1)]


def marker(style: str, x: float, y: float, size: float = 3.6) -> str:
    """The mark of a style at a place."""
    kind = MARKS[style].marker
    if kind == "o":
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{size:g}"/>'
    shapes = {
        "s": ((-1, -1), (1, -1), (1, 1), (-1, 1)),
        "^": ((0, -1.2), (1.1, 0.9), (-1.1, 0.9)),
        "v": ((0, 1.2), (1.1, -0.9), (-1.1, -0.9)),
        "D": ((0, -1.3), (1.3, 0), (0, 1.3), (-1.3, 0)),
        "P": (
            *((-0.4, -1.2), (0.4, -1.2), (0.4, -0.4), (1.2, -0.4), (1.2, 0.4), (0.4, 0.4)),
            *((0.4, 1.2), (-0.4, 1.2), (-0.4, 0.4), (-1.2, 0.4), (-1.2, -0.4), (-0.4, -0.4)),
        ),
        "X": (
            (0, -0.5),
            (0.9, -1.3),
            (1.3, -0.9),
            (0.5, 0),
            (1.3, 0.9),
            (0.9, 1.3),
            (0, 0.5),
            (-0.9, 1.3),
            (-1.3, 0.9),
            (-0.5, 0),
            (-1.3, -0.9),
            (-0.9, -1.3),
        ),
    }
    points = " ".join(f"{x + size * dx * 0.9:.1f},{y + size * dy * 0.9:.1f}" for dx, dy in shapes[kind])
    return f'<polygon points="{points}"/>'


def dashes(style: str) -> str:
    """The dash attribute of a style."""
    pattern = MARKS[style].dashes
    return f' stroke-dasharray="{" ".join(f"{2 * part:g}" for part in pattern)}"' if pattern else ""


def _lines(panel: LinePanel, label: str) -> Drawing:
    xs = [x for one in panel.series for x in one.x] + [mark.x for mark in panel.marks]
    lows = [y - b for one in panel.series for y, b in zip(one.y, one.band or (0.0,) * len(one.y), strict=True)]
    highs = [y + b for one in panel.series for y, b in zip(one.y, one.band or (0.0,) * len(one.y), strict=True)]
    right = max(xs) * 1.02 or 1.0
    padding = max(1.0, 0.06 * (max(highs) - min(lows)))
    low, high = max(0.0, min(lows) - padding), min(100.0, max(highs) + padding)

    def px(x: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * x / right

    def py(y: float) -> float:
        return _TOP + (_HEIGHT - _TOP - _BOTTOM) * (high - y) / (high - low)

    bottom = _HEIGHT - _BOTTOM
    parts = []
    for start, end in panel.shaded:
        parts.append(
            f'<rect class="shade" x="{px(start):.1f}" y="{_TOP:g}" width="{px(end) - px(start):.1f}"'
            f' height="{bottom - _TOP:g}"/>'
        )
    for tick in ticks(low, high, 7):
        parts.append(f'<path class="grid" d="M{_LEFT:g} {py(tick):.1f}H{_WIDTH - _RIGHT:g}"/>')
        parts.append(_text(_LEFT - 6, py(tick) + 4, f"{tick:g}", "end"))
    for tick in ticks(0, right, 7):
        parts.append(f'<path class="grid" d="M{px(tick):.1f} {_TOP:g}V{bottom:g}"/>')
        parts.append(_text(px(tick), bottom + 16, f"{tick:g}"))
    parts.append(f'<path class="axis" d="M{_LEFT:g} {_TOP:g}V{bottom:g}H{_WIDTH - _RIGHT:g}"/>')
    parts.append(_text((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 8, panel.x_label))
    middle = (_TOP + bottom) / 2
    parts.append(_text(13, middle, panel.y_label, "middle", f' transform="rotate(-90 13 {middle:.1f})"'))
    for mark in panel.marks:
        parts.append(f'<path class="mark" d="M{px(mark.x):.1f} {_TOP:g}V{bottom:g}"/>')
        near = px(mark.x) > _WIDTH * 0.7
        parts.append(_text(px(mark.x) + (-5 if near else 5), bottom - 6, mark.label, "end" if near else "start"))
    for one in panel.series:
        parts.append(_line(one, px, py))
    return Drawing(_svg(label, _WIDTH, _HEIGHT, parts), _line_hits(panel, px, py), True)


def _line(one: Series, px: Scale, py: Scale) -> str:
    points = [(px(x), py(y)) for x, y in zip(one.x, one.y, strict=True)]
    path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    band = ""
    if one.band:
        above = [f"{px(x):.1f} {py(y + b):.1f}" for x, y, b in zip(one.x, one.y, one.band, strict=True)]
        below = [f"{px(x):.1f} {py(y - b):.1f}" for x, y, b in zip(one.x, one.y, one.band, strict=True)]
        band = f'<path class="band" d="M{"L".join([*above, *below[::-1]])}Z"/>'
    every = max(1, len(points) // _MOST_MARKS)
    marks = "".join(marker(one.style, x, y) for x, y in points[::every])
    return f'<g class="s-{one.style}">{band}<path class="line" d="{path}"{dashes(one.style)}/>{marks}</g>'


def _line_hits(panel: LinePanel, px: Scale, py: Scale) -> tuple[Hit, ...]:
    name = panel.x_label.partition(" of ")[0].partition(" [")[0]
    unit = " Wh" if "[Wh]" in panel.x_label else ""
    hits = []
    for x in sorted({x for one in panel.series for x in one.x}):
        shown = [f"{name}: {x:.2f}{unit}" if unit else f"{name}: {x:g}"]
        top = _HEIGHT
        for one in panel.series:
            here = [index for index, at in enumerate(one.x) if at == x]
            if here:
                y, spread = one.y[here[-1]], f" ± {one.band[here[-1]]:.2f}" if one.band else ""
                shown.append(f"{one.name}: {y:.2f} %{spread}{' in the end' if len(here) > 1 else ''}")
                top = min(top, py(y))
        hits.append(Hit(round(px(x), 1), round(top, 1), tuple(shown)))
    return tuple(hits)


def _heat(panel: HeatPanel, label: str) -> Drawing:
    size, left, top = 76.0, 52.0, 6.0
    columns, rows = len(panel.synching), len(panel.training)
    height_of = 52.0
    width, height = left + size * columns + 8, top + height_of * rows + 46
    known = [value for row in panel.values for value in row if value is not None]
    low, high = min(known), max(known)
    parts, hits = [], []
    for index, row in enumerate(panel.values):
        y = top + height_of * (rows - 1 - index)
        parts.append(_text(left - 10, y + height_of / 2 + 5, str(panel.training[index]), "end"))
        for column, value in enumerate(row):
            x = left + size * column
            gamma = (panel.training[index], panel.synching[column])
            text = "no run" if value is None else f"{value:.{panel.decimals}f}"
            level = 0.5 if value is None or high == low else (value - low) / (high - low)
            level = level if panel.darker_is_more else 1 - level
            kind = "none" if value is None else f"heat{round(level * 8)}"
            parts.append(
                f'<rect class="cell {kind}" x="{x + 1:g}" y="{y + 1:g}" width="{size - 2:g}"'
                f' height="{height_of - 2:g}"/>'
            )
            parts.append(_text(x + size / 2, y + height_of / 2 + 5, text, "middle", f' class="on-{kind}"'))
            if panel.best == gamma:
                parts.append(
                    f'<rect class="best" x="{x + 3:g}" y="{y + 3:g}" width="{size - 6:g}" height="{height_of - 6:g}"/>'
                )
            best = ("best cell",) if panel.best == gamma else ()
            lines = (f"Γ_train {gamma[0]}, Γ_sync {gamma[1]}", f"{panel.unit}: {text}", *best)
            hits.append(Hit(x + size / 2, y + height_of / 2, lines))
    for column, value_sync in enumerate(panel.synching):
        parts.append(_text(left + size * (column + 0.5), top + height_of * rows + 17, str(value_sync)))
    parts.append(_text(left + size * columns / 2, height - 6, "Γ_sync [rounds]"))
    middle = top + height_of * rows / 2
    parts.append(_text(14, middle, "Γ_train [rounds]", "middle", f' transform="rotate(-90 14 {middle:.1f})"'))
    return Drawing(_svg(label, width, height, parts), tuple(hits), False)


def _operations(panel: OperationPanel, label: str) -> Drawing:
    rounds = len(panel.trains[0])
    cell, left, top = min(26.0, 390.0 / rounds), 58.0, 4.0
    width, height = left + cell * rounds + 6, top + 28 * len(panel.nodes) + 38
    parts, hits = [], []
    for row, (name, line) in enumerate(zip(panel.nodes, panel.trains, strict=True)):
        y = top + 28 * row
        parts.append(_text(left - 8, y + 18, name.partition(" (")[0], "end"))
        for index, trains in enumerate(line):
            x = left + cell * index
            kind, letter = ("train", "T") if trains else ("sync", "S")
            parts.append(
                f'<rect class="op {kind}" x="{x + 1:.1f}" y="{y + 1:g}" width="{cell - 2:.1f}" height="26" rx="2"/>'
            )
            parts.append(_text(x + cell / 2, y + 18, letter, "middle", f' class="on-{kind}"'))
            does = "trains, shares, averages" if trains else "shares, averages"
            hits.append(Hit(round(x + cell / 2, 1), y + 14, (name, f"Round {panel.first_round + index}: {does}")))
    for index in range(0, rounds, 1 if rounds <= 20 else 5):
        x = left + cell * (index + 0.5)
        parts.append(_text(x, top + 28 * len(panel.nodes) + 15, str(panel.first_round + index)))
    parts.append(_text(left + cell * rounds / 2, height - 4, "Round"))
    return Drawing(_svg(label, width, height, parts), tuple(hits), False)


def _bubbles(panel: BubblePanel, label: str) -> Drawing:
    nodes, classes = len(panel.counts), len(panel.counts[0])
    step_x, step_y = 40.0, 28.0 if classes <= 20 else 11.0
    left, top = 46.0, 8.0
    width, height = left + step_x * nodes + 8, top + step_y * classes + 44
    most = max(1, max(max(line) for line in panel.counts))
    biggest = min(step_x, step_y) * 0.48
    parts, hits = [], []
    bottom = top + step_y * classes
    for label_number in range(0, classes, 1 if classes <= 20 else 5):
        y = bottom - step_y * (label_number + 0.5)
        parts.append(f'<path class="grid" d="M{left:g} {y:.1f}H{width - 8:g}"/>')
        parts.append(_text(left - 6, y + 4, str(label_number), "end"))
    for node, line in enumerate(panel.counts):
        x = left + step_x * (node + 0.5)
        parts.append(f'<path class="grid" d="M{x:.1f} {top:g}V{bottom:g}"/>')
        parts.append(_text(x, bottom + 16, str(node)))
        for number, count in enumerate(line):
            if count:
                y = bottom - step_y * (number + 0.5)
                radius = biggest * math.sqrt(count / most)
                parts.append(f'<circle class="bubble" cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}"/>')
                hits.append(Hit(round(x, 1), round(y, 1), (f"Node {node}, class {number}", f"{count} samples")))
    parts.append(_text(left + step_x * nodes / 2, height - 6, "Node"))
    middle = (top + bottom) / 2
    parts.append(_text(14, middle, "Class", "middle", f' transform="rotate(-90 14 {middle:.1f})"'))
    return Drawing(_svg(label, width, height, parts), tuple(hits), False)
