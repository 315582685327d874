"""Device tables and energy traces as CSV text: this project's format and the paper authors' layouts."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence

from skiptrain_plugin.energy.devices import Device, TraceRow
from skiptrain_plugin.errors import InputError

DEVICE_COLUMNS = ("device", "mobilenet_v2 [ms]", "power [W]", "battery [Wh]")
TRACE_COLUMNS = ("device", "energy per training round [Wh]", "training rounds [rounds]")
AUTHORS_COLUMNS = ("Device Name", "Energy (Wh)", "Number of training rounds")
"""The columns of the authors' published CSVs that are read; the others are intermediate results."""


def parse_trace(text: str, where: str) -> tuple[TraceRow, ...]:
    """The rows of a trace in either format; node uid takes row uid mod (number of rows)."""
    records = _records(text, where)
    columns = AUTHORS_COLUMNS if AUTHORS_COLUMNS[0] in records[0] else TRACE_COLUMNS
    _require(records[0], columns, where)
    rows = []
    for line, record in enumerate(records, start=2):
        place = f"{where}, line {line}"
        wh = _positive(record, columns[1], place)
        budget = _number(record, columns[2], place)
        if budget < 0:
            raise InputError(f"{place}, column '{columns[2]}': must not be negative, not {budget:g}")
        if budget != math.floor(budget):
            raise InputError(f"{place}, column '{columns[2]}': '{record[columns[2]]}' is not a whole number")
        rows.append(TraceRow(_name(record, columns[0], place), wh, int(budget)))
    _distinct([row.name for row in rows], where)
    return tuple(rows)


def format_trace(rows: Sequence[TraceRow]) -> str:
    """The CSV that ``parse_trace`` reads back to the same rows."""
    return _format(TRACE_COLUMNS, [(row.name, repr(row.wh_per_round), row.budget) for row in rows])


def parse_devices(text: str, where: str) -> tuple[Device, ...]:
    """The rows of a device table."""
    records = _records(text, where)
    _require(records[0], DEVICE_COLUMNS, where)
    devices = []
    for line, record in enumerate(records, start=2):
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


def _records(text: str, where: str) -> list[dict[str, str]]:
    try:
        lines = [row for row in csv.reader(io.StringIO(text.removeprefix("\ufeff")), strict=True) if row]
    except csv.Error as error:
        raise InputError(f"{where}: not a CSV file ({error})") from None
    if not lines:
        raise InputError(f"{where}: the file is empty; expected a header and at least one device")
    header = [column.strip() for column in lines[0]]
    if len(lines) == 1:
        raise InputError(f"{where}: no rows; expected at least one device below the header")
    for number, row in enumerate(lines[1:], start=2):
        if len(row) != len(header):
            raise InputError(f"{where}, line {number}: {len(row)} values where the header has {len(header)}")
    return [dict(zip(header, (value.strip() for value in row), strict=True)) for row in lines[1:]]


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
