"""``skiptrain report``: figures, tables and one page to look at, from the records of runs."""

from __future__ import annotations

from pathlib import Path

import click

from skiptrain_plugin.cli.figure import say_files
from skiptrain_plugin.cli.show import console


@click.command()
@click.argument("folders", nargs=-1, required=True, metavar="DIR...", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), help="Directory of the files; by default DIR/report.")
def report(folders: tuple[Path, ...], out: Path | None) -> None:
    """Redraw every figure and table that the runs in DIR... allow, finished or not.

    Writes PNG and SVG of each figure, tables as CSV, Markdown and LaTeX, and report.html, one page that needs
    no network and no other file.
    """
    from skiptrain_plugin.results.report import build, write

    made = build(folders)
    files = write(made, out or folders[0] / "report")
    for line in [*made.collection.problems, *(headline.sentence for headline in made.headlines)]:
        console().print(line, markup=False)
    say_files(files)
