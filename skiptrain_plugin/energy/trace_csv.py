"""Device tables and energy traces as CSV text: this project's format and the paper authors' layouts."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Mapping, Sequence

from skiptrain_plugin.energy.devices import Device, Trace, TraceRow, Workload
from skiptrain_plugin.errors import InputError

DEVICE_COLUMNS = ("device", "mobilenet_v2 [ms]", "power [W]", "battery [Wh]")
TRACE_COLUMNS = ("device", "energy per training round [Wh]", "training rounds [rounds]")
ALLOWANCE_COLUMN = "battery share [Wh]"
"""The share of the battery that pays for the training rounds; a trace may leave it out."""
AUTHORS_COLUMNS = ("Device Name", "Energy (Wh)", "Number of training rounds")
"""The columns of the authors' published CSVs that are read; the others are intermediate results."""


_COMMENT = "#"
_WORKLOAD = "# workload:"
"""How the first line of a trace says for which workload it was made: ``# workload: parameters = 89834, …``."""


def parse_trace(text: str, where: str) -> Trace:
    """A trace in either format, with the workload that its first line names."""
    records = _records(text, where)
    first = records[0][1]
    columns = AUTHORS_COLUMNS if AUTHORS_COLUMNS[0] in first else TRACE_COLUMNS
    _require(first, columns, where)
    rows = []
    for line, record in records:
        place = f"{where}, line {line}"
        wh = _positive(record, columns[1], place)
        budget = _number(record, columns[2], place)
        if budget < 0:
            raise InputError(f"{place}, column '{columns[2]}': must not be negative, not {budget:g}")
        if budget != math.floor(budget):
            raise InputError(f"{place}, column '{columns[2]}': '{record[columns[2]]}' is not a whole number")
        allowance = _positive(record, ALLOWANCE_COLUMN, place) if ALLOWANCE_COLUMN in record else None
        rows.append(TraceRow(_name(record, columns[0], place), wh, int(budget), allowance))
    _distinct([row.name for row in rows], where)
    return Trace(tuple(rows), _workload(text, where), columns is AUTHORS_COLUMNS)


def format_trace(rows: Sequence[TraceRow], workload: Workload) -> str:
    """The CSV that ``parse_trace`` reads back to the same rows, made for ``workload``."""
    named = ", ".join(f"{field} = {getattr(workload, field)}" for field in Workload.__dataclass_fields__)
    table = [(row.name, repr(row.wh_per_round), row.budget, repr(row.allowance_wh)) for row in rows]
    return f"{_WORKLOAD} {named}\n" + _format((*TRACE_COLUMNS, ALLOWANCE_COLUMN), table)


def _workload(text: str, where: str) -> Workload | None:
    """The workload that the first line names; None where it is no such line."""
    first = text.removeprefix("\ufeff").partition("\n")[0].strip()
    if not first.startswith(_WORKLOAD):
        return None
    named = dict(re.findall(r"(\w+) = (\d{1,18})\b", first))
    fields = list(Workload.__dataclass_fields__)
    if sorted(named) != sorted(fields):
        raise InputError(f"{where}, line 1: expected '{_WORKLOAD} {', '.join(f'{name} = N' for name in fields)}'")
    try:
        return Workload(**{name: int(value) for name, value in named.items()})
    except InputError as error:
        raise InputError(f"{where}, line 1: {error}") from None


def parse_devices(text: str, where: str) -> tuple[Device, ...]:
    """The rows of a device table."""
    records = _records(text, where)
    _require(records[0][1], DEVICE_COLUMNS, where)
    devices = []
    for line, record in records:
        place = f"{where}, line {line}"
        ms, watts, battery = (_positive(record, column, place) for column in DEVICE_COLUMNS[1:])
        devices.append(Device(_name(record, DEVICE_COLUMNS[0], place), ms, watts, battery))
    _distinct([device.name for device in devices], where)
    return tuple(devices)


def _format(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return out.getvalue()


def _records(text: str, where: str) -> list[tuple[int, dict[str, str]]]:
    """The rows below the header, each with its line in the file; lines that begin with # are comments."""
    reader = csv.reader(io.StringIO(text.removeprefix("\ufeff")), strict=True)
    try:
        lines = [(reader.line_num, row) for row in reader if row and not row[0].startswith(_COMMENT)]
    except csv.Error as error:
        raise InputError(f"{where}: not a CSV file ({error})") from None
    if not lines:
        raise InputError(f"{where}: the file is empty; expected a header and at least one device")
    header = [column.strip() for column in lines[0][1]]
    if len(lines) == 1:
        raise InputError(f"{where}: no rows; expected at least one device below the header")
    for number, row in lines[1:]:
        if len(row) != len(header):
            raise InputError(f"{where}, line {number}: {len(row)} values where the header has {len(header)}")
    return [(number, dict(zip(header, map(str.strip, row), strict=True))) for number, row in lines[1:]]


def _require(record: Mapping[str, str], columns: Sequence[str], where: str) -> None:
    for column in columns:
        if column not in record:
            raise InputError(
                f"{where}: column '{column}' is missing; expected {', '.join(columns)}; found {', '.join(record)}"
            )


def _number(record: Mapping[str, str], column: str, place: str) -> float:
    text = record[column]
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InputError(f"{place}, column '{column}': '{text[:40]}' is not a number")
    return value


def _positive(record: Mapping[str, str], column: str, place: str) -> float:
    value = _number(record, column, place)
    if value <= 0:
        raise InputError(f"{place}, column '{column}': must be positive, not {value:g}")
    return value


def _name(record: Mapping[str, str], column: str, place: str) -> str:
    if not record[column]:
        raise InputError(f"{place}, column '{column}': the device has no name")
    return record[column]


def _distinct(names: Sequence[str], where: str) -> None:
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"{where}: device '{name}' is listed {names.count(name)} times")
