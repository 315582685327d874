"""Saying how far a download or a conversion is: a bar on a terminal, one quiet line elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

Advance = Callable[[int], None]
"""Called with the number of bytes done so far."""


@contextmanager
def byte_bar(text: str, total: int | None, show: bool = True) -> Iterator[Advance]:
    """Show ``text`` on standard error and yield a function that takes the bytes done so far, of ``total``."""
    console = Console(stderr=True)
    if not show:
        yield lambda done: None
    elif not console.is_terminal:
        console.print(text, highlight=False, markup=False, soft_wrap=True)
        yield lambda done: None
    else:
        text_column = TextColumn("{task.description}", markup=False)
        columns = (text_column, BarColumn(bar_width=None), DownloadColumn(), TransferSpeedColumn())
        with Progress(*columns, console=console, transient=True) as progress:
            task = progress.add_task(text, total=total)
            yield lambda done: progress.update(task, completed=done)
