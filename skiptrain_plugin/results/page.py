"""The report as one HTML page: nothing is fetched, and every text from a record stays text."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Sequence
from html import escape

from skiptrain_plugin import __version__
from skiptrain_plugin.results.charts import Chart, HeatPanel, LinePanel, OperationPanel, Panel
from skiptrain_plugin.results.glossary import GLOSSARY
from skiptrain_plugin.results.page_assets import SCRIPT, style_sheet
from skiptrain_plugin.results.page_charts import Drawing, dashes, draw_panel, marker
from skiptrain_plugin.results.readings import Record
from skiptrain_plugin.results.report import Headline, Part, Report
from skiptrain_plugin.results.style import algorithm_name, clean
from skiptrain_plugin.results.tables import Table

_LONG = 24
"""Cells with more characters get a wider column."""


def page(report: Report) -> str:
    """The whole page."""
    values: dict[str, object] = {}
    titles = ", ".join(dict.fromkeys(part.family.first.title for part in report.parts))
    sections = [
        _section("summary", "What came out", _summary(report)),
        *(_section(f"part{number}", part.family.subtitle, _part(part, values)) for number, part in _numbered(report)),
    ]
    if report.tables:
        tables = "".join(_table(table) for table in report.tables.values())
        sections.append(_section("tables", "Tables beside the paper's", tables))
    sections.append(_section("differences", "What differs from the paper's set-up", _differences(report)))
    sections.append(_section("configuration", "Configuration", _configuration(report)))
    sections.append(_section("glossary", "Glossary", _glossary()))
    script_hash = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{script_hash}'; img-src data:"
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n<link rel="icon" href="data:,">\n'
        f"<title>SkipTrain report: {escape(titles)}</title>\n<style>{style_sheet()}</style>\n</head>\n<body>\n"
        f"{_header(report, titles)}\n<main>\n{''.join(sections)}</main>\n"
        f"<footer><p>Made by skiptrain-plugin {escape(__version__)} from the records of the runs; energies are computed"
        " from phone benchmarks, not measured.</p></footer>\n"
        f'<script id="values" type="application/json">{_json(values)}</script>\n'
        f"<script>{SCRIPT}</script>\n</body>\n</html>\n"
    )


def rich(text: str) -> str:
    """Escaped text in which Γ has its subscript."""
    safe = escape(text)
    for word in ("train", "sync"):
        safe = safe.replace(f"Γ_{word}", f"Γ<sub>{word}</sub>")
    return safe


def _json(values: object) -> str:
    """JSON that cannot end the script element it stands in."""
    text = json.dumps(values, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _numbered(report: Report) -> list[tuple[int, Part]]:
    return list(enumerate(report.parts, start=1))


def _section(name: str, title: str, body: str) -> str:
    heading = f'<h2 id="{name}-h">{rich(title)}</h2>'
    return f'<section id="{name}" aria-labelledby="{name}-h">\n{heading}\n{body}\n</section>\n'


def _header(report: Report, titles: str) -> str:
    records = report.collection.records
    finished = sum(record.finished for record in records)
    links = [("summary", "What came out")]
    links += [(f"part{number}", part.family.subtitle) for number, part in _numbered(report)]
    links += [("tables", "Tables")] if report.tables else []
    links += [("differences", "Differences"), ("configuration", "Configuration"), ("glossary", "Glossary")]
    items = "".join(f'<li><a href="#{name}">{escape(title)}</a></li>' for name, title in links)
    generated = any(record.generated for record in records)
    warning = (
        "<p><strong>Some of these data are generated: no result on them is a result on the real dataset.</strong></p>"
    )
    return (
        f'<header class="top">\n<h1>SkipTrain: energy and accuracy</h1>\n<p>{len(records)} runs ({finished} finished)'
        f" on {escape(titles)}. Point at a figure, tap it, or reach it with the Tab key and move with the arrow keys,"
        f" to see its values.</p>\n{warning if generated else ''}"
        f'<nav aria-label="Contents"><ul>{items}</ul></nav>\n</header>'
    )


def _summary(report: Report) -> str:
    cards = "".join(_card(headline) for headline in report.headlines)
    body = (
        f'<div class="cards">{cards}</div>'
        if cards
        else (
            "<p>There is no pair of finished runs of SkipTrain and D-PSGD on the same data, nodes, rounds, topology and"
            " seed, so there is no headline.</p>"
        )
    )
    return body + _notes("Left out", report.collection.problems) + _notes("Unfinished", _unfinished(report))


def _unfinished(report: Report) -> list[str]:
    return [
        f"{algorithm_name(record.algorithm)}, {record.topology}, {record.title}: {record.state}"
        for record in report.collection.records
        if not record.finished
    ]


def _card(headline: Headline) -> str:
    numbers = ""
    if headline.saved is not None:
        numbers += f"<div><strong>{headline.saved:.1f} %</strong><span>energy saved</span></div>"
    label = "points at equal energy" if headline.saved is None else "points of accuracy"
    numbers += f"<div><strong>{headline.gained:+.2f}</strong><span>{label}</span></div>"
    return f'<div class="card"><div class="big">{numbers}</div><p>{escape(headline.sentence)}</p></div>'


def _notes(title: str, notes: Iterable[str]) -> str:
    items = "".join(f"<li>{rich(note)}</li>" for note in notes)
    return f'<div class="notes"><strong>{escape(title)}</strong><ul>{items}</ul></div>' if items else ""


def _part(part: Part, values: dict[str, object]) -> str:
    charts = "".join(_chart(chart, values) for chart in part.charts)
    return _data(part.family.first) + charts + _notes("Missing", part.notes) + _table(part.runs)


def _data(record: Record) -> str:
    data = record.run.info.get("data")
    data = data if isinstance(data, dict) else {}
    facts = [f"{record.title}, {record.experiment.partition} partition"]
    if data.get("source"):
        facts.append(f"from {clean(data['source'])}")
    if data.get("test_samples"):
        facts.append(f"{clean(data['test_samples'])} test samples on {clean(data.get('evaluated_nodes', '?'))} nodes")
    if record.digest:
        facts.append(f"sha256 {record.digest[:16]}…")
    host = record.run.info.get("host")
    host = host if isinstance(host, dict) else {}
    computer = f"{clean(host.get('cores', '?'))} cores, {clean(host.get('system', 'unknown system'))}"
    engine = f"Engine: {record.engine}; {computer}."
    return f'<p class="soft">Data: {escape("; ".join(facts))}. {escape(engine)}</p>'


def _chart(chart: Chart, values: dict[str, object]) -> str:
    panels = []
    for number, panel in enumerate(_by_column(chart)):
        key = f"{chart.name}-{number}"
        drawing = draw_panel(panel, f"{chart.title}, {panel.title}; the values are in the table below the figure")
        values[key] = _hits(drawing)
        panels.append(
            f'<div class="panel" data-values="{escape(key)}"><h4>{rich(panel.title)}</h4>{drawing.svg}'
            '<div class="tip" role="status" hidden></div></div>'
        )
    wide = "" if isinstance(chart.panels[0], HeatPanel) else " wide"
    tables = "".join(_table(panel.table()) for panel in chart.panels)
    return (
        f'<figure id="{escape(chart.name)}"><h3>{rich(chart.title)}</h3><p class="soft">{escape(chart.subtitle)}</p>'
        f'{_legend(chart)}<div class="panels{wide}">{"".join(panels)}</div><figcaption>{rich(chart.caption)} Files:'
        f" {escape(chart.name)}.png, .svg, and .csv of each panel.</figcaption>"
        f"{_notes('Missing or unfinished', chart.notes)}"
        f"<details><summary>Values</summary>{tables}</details></figure>\n"
    )


def _by_column(chart: Chart) -> list[Panel]:
    """The panels of a figure with two rows, column after column: what belongs together stands side by side."""
    panels = list(chart.panels)
    if len(panels) != 2 * chart.columns:
        return panels
    return [panels[row * chart.columns + column] for column in range(chart.columns) for row in range(2)]


def _hits(drawing: Drawing) -> dict[str, object]:
    return {"alongX": drawing.along_x, "hits": [[hit.x, hit.y, list(hit.lines)] for hit in drawing.hits]}


def _legend(chart: Chart) -> str:
    names = {one.name: one.style for panel in chart.panels if isinstance(panel, LinePanel) for one in panel.series}
    items = [
        f'<li><svg viewBox="0 0 40 14" aria-hidden="true"><g class="s-{style}"><path class="line" d="M1 7H39"'
        f"{dashes(style)}/>{marker(style, 20, 7, 4)}</g></svg>{escape(name)}</li>"
        for name, style in names.items()
    ]
    first = chart.panels[0]
    if isinstance(first, LinePanel) and first.shaded_label:
        items.append(_swatch("shade", first.shaded_label))
        items.append("<li>band: one standard deviation over the nodes</li>")
    if isinstance(first, OperationPanel):
        items += [_swatch("train", "T: train, share, average"), _swatch("sync", "S: share, average")]
    return f'<ul class="legend">{"".join(items)}</ul>' if items else ""


def _swatch(kind: str, text: str) -> str:
    return (
        f'<li><svg viewBox="0 0 40 14" aria-hidden="true"><rect class="{kind}" width="40" height="14" rx="2"/></svg>'
        f"{escape(text)}</li>"
    )


def _table(table: Table) -> str:
    numeric = table.numeric_columns()
    head = "".join(
        f'<th scope="col"{" class=n" if right else ""}>{rich(column)}</th>'
        for column, right in zip(table.columns, numeric, strict=True)
    )
    rows = "".join(f"<tr>{_cells([table.text(cell) for cell in row], numeric)}</tr>" for row in table.rows)
    notes = "".join(f'<p class="soft">{rich(note)}</p>' for note in table.notes)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(table.title)}"><table><caption>'
        f"{rich(table.title)}</caption><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>{notes}"
    )


def _cells(texts: Sequence[str], numeric: Sequence[bool]) -> str:
    kinds = ["n" if right else "long" if len(text) > _LONG else "" for text, right in zip(texts, numeric, strict=True)]
    return "".join(
        f"<td{f' class={kind}' if kind else ''}>{rich(text)}</td>" for text, kind in zip(texts, kinds, strict=True)
    )


def _differences(report: Report) -> str:
    parts = [f"<h3>{escape(part.family.subtitle)}</h3>{_table(part.differences)}" for part in report.parts]
    return "".join(parts)


def _configuration(report: Report) -> str:
    parts = []
    for part in report.parts:
        first = part.family.first
        commands = dict.fromkeys(_command(record) for record in part.family.records)
        lines = "\n".join(command for command in commands if command)
        parts.append(
            f"<h3>{escape(part.family.subtitle)}</h3><p>Commands that made the runs:</p><pre>{escape(lines)}</pre>"
            f"<details><summary>Configuration of {escape(algorithm_name(first.algorithm))}, {escape(first.topology)};"
            " the other runs of this group differ only in algorithm, topology, Γ and evaluation</summary>"
            f"<pre>{escape(first.experiment.to_ini())}</pre></details>"
        )
    return "".join(parts)


def _command(record: Record) -> str:
    command = record.run.info.get("command")
    words = [clean(word, 200) for word in command] if isinstance(command, list) else []
    if not words:
        return ""
    return clean(" ".join([words[0].rpartition("/")[2] or words[0], *words[1:]]), 600)


def _glossary() -> str:
    items = "".join(f"<dt>{rich(term)}</dt><dd>{rich(meaning)}</dd>" for term, meaning in GLOSSARY.items())
    return f"<dl>{items}</dl>"
