"""A table and its three forms: CSV, Markdown and LaTeX."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from pathlib import Path

from skiptrain_plugin.results.record import write_atomically

Cell = str | int | float | None
"""None: there is no value."""

MISSING = "–"

_LATEX = {
    **{c: f"\\{c}" for c in "&%#_{}"},
    **{"$": r"\textdollar{}", "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"},
    **{"Γ": r"$\Gamma$", "τ": r"$\tau$", "η": r"$\eta$", "ξ": r"$\xi$", "λ": r"$\lambda$"},
    **{"±": r"$\pm$", "−": "$-$", "–": "--", "×": r"$\times$", "≤": r"$\leq$", "|": "$|$", "·": r"$\cdot$"},
}


@dataclass(frozen=True)
class Table:
    """Columns with units in their names, rows, and notes below."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()
    decimals: int | None = 2
    """Of numbers that are not whole; None: as many as they have, six at most."""

    def text(self, cell: Cell) -> str:
        """A cell as people read it."""
        if cell is None:
            return MISSING
        if isinstance(cell, float):
            return _shortest(cell) if self.decimals is None else f"{cell:.{self.decimals}f}"
        return str(cell)

    def to_csv(self) -> str:
        """Numbers with six decimals at most; an empty field where there is no value."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow([_csv(column) for column in self.columns])
        writer.writerows([_csv(cell) for cell in row] for row in self.rows)
        return out.getvalue()

    def to_markdown(self) -> str:
        """With its title and notes."""
        numeric = [self._numeric(index) for index in range(len(self.columns))]
        lines = [f"**{_markdown(self.title)}**", ""]
        lines.append(_markdown_row(self.columns))
        lines.append("|" + "|".join(" ---: " if right else " --- " for right in numeric) + "|")
        lines += [_markdown_row([self.text(cell) for cell in row]) for row in self.rows]
        lines += [f"\n{_markdown(note)}" for note in self.notes]
        return "\n".join(lines) + "\n"

    def to_latex(self) -> str:
        """A ``table`` with booktabs rules."""
        form = "".join("r" if self._numeric(index) else "l" for index in range(len(self.columns)))
        lines = [r"% needs \usepackage{booktabs,graphicx}", r"\begin{table}", r"\centering"]
        lines += [
            rf"\caption{{{latex(self.title)}}}",
            r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
        ]
        lines += [rf"\begin{{tabular}}{{{form}}}", r"\toprule"]
        lines.append(" & ".join(latex(column) for column in self.columns) + r" \\")
        lines.append(r"\midrule")
        lines += [" & ".join(latex(self.text(cell)) for cell in row) + r" \\" for row in self.rows]
        lines += [r"\bottomrule", r"\end{tabular}}"]
        lines += [rf"\par\smallskip\footnotesize {latex(note)}" for note in self.notes]
        lines.append(r"\end{table}")
        return "\n".join(lines) + "\n"

    def write(self, folder: Path, name: str) -> list[Path]:
        """Writes the three forms as ``name`` with its ending."""
        forms = {"csv": self.to_csv(), "md": self.to_markdown(), "tex": self.to_latex()}
        paths = []
        for ending, text in forms.items():
            paths.append(folder / f"{name}.{ending}")
            write_atomically(paths[-1], text)
        return paths

    def numeric_columns(self) -> list[bool]:
        """Which columns hold numbers, to be set to the right."""
        return [self._numeric(index) for index in range(len(self.columns))]

    def _numeric(self, index: int) -> bool:
        cells = [row[index] for row in self.rows if row[index] is not None]
        return bool(cells) and all(isinstance(cell, (int, float)) for cell in cells)


def latex(text: str) -> str:
    """Text with LaTeX's special characters made harmless."""
    return "".join(_LATEX.get(character, character) for character in text).replace("$$", "")


def _shortest(number: float) -> str:
    return f"{number:.6f}".rstrip("0").rstrip(".")


def _csv(cell: Cell) -> Cell:
    """Text that a spreadsheet would take for a formula gets an apostrophe before it."""
    if isinstance(cell, float):
        return _shortest(cell)
    if isinstance(cell, str) and cell[:1] in ("=", "+", "-", "@", "\t"):
        return f"'{cell}"
    return cell


def _markdown(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("<", "&lt;").replace(">", "&gt;").replace("](", "]\\(")
    for character in "|*`":
        escaped = escaped.replace(character, f"\\{character}")
    return escaped


def _markdown_row(cells: tuple[str, ...] | list[str]) -> str:
    return "| " + " | ".join(_markdown(cell) for cell in cells) + " |"
