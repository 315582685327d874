"""Tables for people: rich on a terminal, plain aligned text elsewhere."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from typing import TextIO

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

_PLAIN_WIDTH = 400


def console(file: TextIO | None = None) -> Console:
    """Standard output, or ``file``; as wide as needed when it is not a terminal."""
    if file is None and sys.stdout.isatty():
        return Console()
    return Console(file=file or sys.stdout, width=_PLAIN_WIDTH, color_system=None, highlight=False)


def show_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Prints a table; the first column is text, columns of numbers are right-aligned."""
    terminal = sys.stdout.isatty()
    table = Table(box=box.SIMPLE_HEAD if terminal else None, pad_edge=False, header_style="bold")
    for index, column in enumerate(columns):
        numeric = index > 0 and all(_is_number(row[index]) for row in rows)
        table.add_column(Text(column), justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(str(value)) for value in row))
    if terminal:
        out = console()
        if title:
            out.print(Text(title, style="bold"))
        out.print(table)
        return
    plain = io.StringIO()
    console(plain).print(table)
    for line in [title, *plain.getvalue().splitlines()] if title else plain.getvalue().splitlines():
        print(line.rstrip())


def _is_number(value: object) -> bool:
    return str(value)[:1].isdigit() or str(value)[:1] in "-+–"


def human_bytes(count: float) -> str:
    """A number of bytes with a binary unit."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def human_seconds(seconds: float) -> str:
    """A duration as a person says it: 40 s, 3 min 20 s, 5 h 12 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
